"""The first bad release of an engine: the search, and what it needs of releases, environments, runs and files."""
