"""The judge of drafting by kind of traffic, and the findings that it weighs."""
