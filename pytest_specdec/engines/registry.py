"""The engines that can be captured, by the name that a config gives: each an entry point of the group ``pytest_specdec.engines``."""

from __future__ import annotations

import difflib
from contextlib import suppress
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from pytest_specdec import __version__
from pytest_specdec.engines.protocol import PROTOCOL_VERSION, Engine
from pytest_specdec.errors import EngineError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "pytest_specdec.engines"
LOADED: dict[str, Engine] = {}
"""The engines loaded so far, by kind."""
_MEMBERS = sorted({*Engine.__annotations__, *(name for name in vars(Engine) if not name.startswith("_"))})
"""The members of the protocol, each of which an engine must have."""


def engine_of(kind: str) -> Engine:
    """Return the engine called ``kind``, loaded only once.

    Raises EngineError if there is none, or if it does not keep to the engine protocol.
    """
    if kind not in LOADED:
        LOADED[kind] = _load_engine(_entry_point(kind))
    return LOADED[kind]


def kinds() -> list[str]:
    """Return the names of the installed engines, sorted."""
    return sorted({*entry_points(group=GROUP).names, *LOADED})


def installed_engines() -> tuple[Engine, ...]:
    """Return every loadable engine, sorted by kind.

    One that does not load is left out. A config that names it gets the error.
    """
    engines = []
    for kind in kinds():
        with suppress(EngineError):
            engines.append(engine_of(kind))
    return tuple(engines)


def _entry_point(kind: str) -> EntryPoint:
    """Return the one entry point of the engine ``kind``.

    Raises EngineError if there is none, or if several packages have one of that name.
    """
    points = entry_points(group=GROUP)
    candidates = [point for point in points if point.name == kind]
    if len(candidates) > 1:
        raise EngineError(
            what=f"{len(candidates)} packages serve the engine {kind!r}",
            where="engine.kind",
            found=", ".join(map(_describe_entry_point, candidates)),
            expected="one",
            remedy="uninstall all but one",
        )
    if not candidates:
        raise _unknown_engine_error(kind, kinds())
    return candidates[0]


def _unknown_engine_error(kind: str, installed_kinds: list[str]) -> EngineError:
    """Return the error for an engine that is not installed."""
    similar_kinds = difflib.get_close_matches(kind, installed_kinds, n=1)
    return EngineError(
        f"no engine {kind!r}" + (f"; did you mean {similar_kinds[0]}?" if similar_kinds else ""),
        where="engine.kind",
        found=kind,
        expected=f"one of {', '.join(installed_kinds)}" if installed_kinds else f"an entry point of the group {GROUP}",
        remedy="correct the name, or install the package that serves it"
        if installed_kinds
        else "install pytest-specdec again: installation writes the entry points",
    )


def _load_engine(point: EntryPoint) -> Engine:
    """Return an entry point's engine, checked against the protocol.

    The entry point is a class to be called without arguments, or the engine itself. Raises EngineError if it cannot be loaded,
    whatever its module raises: the code is another package's.
    """
    try:
        entry_object: Any = point.load()
        engine: Engine = entry_object() if isinstance(entry_object, type) else entry_object
    except Exception as error:
        raise EngineError(
            what=f"the engine {point.name!r} cannot be loaded",
            where=_describe_entry_point(point),
            found=f"{type(error).__name__}: {error}",
            expected="a module that imports, and in it a class without arguments or an object",
            remedy="repair the package or uninstall it",
        ) from error
    _check_protocol(point, engine)
    return engine


def _check_protocol(point: EntryPoint, engine: Engine) -> None:
    """Raise EngineError unless the engine keeps to the protocol.

    It needs the same protocol version, every member of the protocol, and the kind in its entry point's name.
    """
    version = getattr(engine, "protocol_version", None)
    if version != PROTOCOL_VERSION:
        raise EngineError(
            what=f"the engine {point.name!r} has another version of the engine protocol",
            where=_describe_entry_point(point),
            found=f"protocol_version {version}",
            expected=f"protocol_version {PROTOCOL_VERSION}, that of pytest-specdec {__version__}",
            remedy="install releases of the two packages that go together",
        )
    missing = [name for name in _MEMBERS if not hasattr(engine, name)]
    if missing or engine.kind != point.name:
        raise EngineError(
            what=f"the engine {point.name!r} does not keep to the engine protocol",
            where=_describe_entry_point(point),
            found=f"no {', '.join(missing)}" if missing else f"kind {engine.kind!r}",
            expected=f"every member of {Engine.__module__}.Engine" if missing else f"kind {point.name!r}, the entry point's name",
            remedy="repair the package: pytest_specdec.engines.protocol has every member and what it returns",
        )


def _describe_entry_point(point: EntryPoint) -> str:
    package = f" of {point.dist.name} {point.dist.version}" if point.dist else ""
    return f"entry point {point.name} = {point.value}{package}"
