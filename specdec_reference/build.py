"""An engine with the fault or the lawful variation of its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec_reference import lawful
from specdec_reference.engine import ReferenceEngine
from specdec_reference.faults import catalogue
from specdec_reference.wrappers import wrap_methods, wrap_rules

if TYPE_CHECKING:
    from specdec_reference.cli import ServerSettings


def build_engine(settings: ServerSettings, kind: type[ReferenceEngine] = ReferenceEngine) -> ReferenceEngine:
    """Return an engine with the fault or variation of its settings.

    Each replaces decisions of the engine, its rules, or wraps methods of the finished engine. Raises EngineError for an unknown fault or
    variation, and for settings that the engine refuses.
    """
    planted_rules = catalogue.rules(settings.fault, speculating=settings.speculation is not None)
    variation = lawful.wrappers(settings.variation)
    engine = kind(settings, wrap_rules(variation, planted_rules))
    for wrappers in (catalogue.wrappers(settings.fault), variation):
        wrap_methods(wrappers, engine)
    return engine
