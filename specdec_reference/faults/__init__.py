"""Planted faults: a module per topic, a function per fault, in place of a decision of the engine's rules. No right one knows of them."""
