"""Planted faults: a module per topic, a function per fault, wrapped around rules and methods of an engine, which knows of none."""
