"""The reference engine: a small decoder in numpy that really speculates, and is wrong on request."""
