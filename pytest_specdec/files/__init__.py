"""Everything that is read from or written to disk: run directories, transcripts, scores, strict YAML."""
