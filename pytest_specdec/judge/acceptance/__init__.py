"""Acceptance: tokens per verify step, held against gates and a stored run."""
