"""Starting servers so that every one of them ends, whatever happens to us."""
