"""The pytest entry point: options, hooks and fixtures, each one guard and one call."""

from __future__ import annotations
