"""Everything that is read from or written to disk: run directories, transcripts, scores, baseline files, strict YAML."""
