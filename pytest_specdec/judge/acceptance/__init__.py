"""Acceptance: tokens per verify step, compared with gates and a stored run."""
