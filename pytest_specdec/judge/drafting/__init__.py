"""The judge of drafting by kind of request, and the findings that it weighs."""
