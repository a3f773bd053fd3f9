"""The config file: read strictly, all of its problems reported at once, its pair linted."""
