"""A pytest plugin that checks whether speculative decoding still gives the same answers, sooner.

The names in ``__all__`` load on first use (PEP 562), so importing the package costs nothing to a pytest run that does not use it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    from pytest_specdec import judge, prompts

__all__ = ["judge", "prompts"]
__version__ = "0.1.0"


def __getattr__(name: str) -> ModuleType:
    """Import a module of ``__all__`` when it is first used."""
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
