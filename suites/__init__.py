"""The suites, a folder per family."""
