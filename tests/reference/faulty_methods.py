"""A method with a fault around it, outside any engine."""

from __future__ import annotations

from specdec_reference.faults.catalogue import FAULTS


def with_fault(fault, name, method, engine=None):
    """Return ``method`` as the fault wraps what is called ``name``."""
    return FAULTS[fault].wrappers[name].wrap(method, engine)


def verified(fault, rows, draft, windows):
    """Return the windows of a verify step that came to ``windows``."""
    return with_fault(fault, "verify", lambda rows, p, draft, uniforms, given: windows)(rows, None, draft, None, None)
