"""For all tests: hypothesis measures no time, for a busy machine is no fault."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
