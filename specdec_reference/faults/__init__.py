"""Planted faults: a module of rows per topic, gathered in the catalogue; their rules stand in ``reference/faulty_rules``."""
