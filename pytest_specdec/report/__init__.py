"""Verdicts become text here; every function is pure, so that a stored run can be reported again anywhere."""
