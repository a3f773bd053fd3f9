"""Correct speculative servers whose numbers are not exact, judged by the shipped judges."""
