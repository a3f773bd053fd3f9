"""The config file: read strictly, all of its problems told at once, its pair linted."""
