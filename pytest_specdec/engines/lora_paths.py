"""Arguments that name LoRA adapters with their paths, as vLLM and SGLang take them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_specdec.prompts.adapters import Adapter, Adapters

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_specdec.model.workload import JSON

__all__ = ["adapter_paths", "entries", "named_adapters", "resolve_paths"]

_NAMES, _PATHS = ("name", "lora_name"), ("path", "lora_path")
"""Keys of an adapter given as JSON: vLLM's first, then SGLang's."""


def entries(value: JSON) -> Sequence[JSON]:
    """Return an argument's values, also of one that is no list; empty for None."""
    return value if isinstance(value, Sequence) and not isinstance(value, str) else [] if value is None else [value]


def named_adapters(value: JSON, field: str) -> Adapters:
    """Return the adapters of an argument, chosen by one field of a body.

    ``value`` has an entry for each: ``name=path``, JSON with both, or a path alone, which then is the name too. ``field`` is
    the field of a request's body that takes the name. Entries without a name are left out.
    """
    names = dict.fromkeys(name for entry in entries(value) if (name := _read_name(entry)))
    return Adapters(named=tuple(Adapter(name=name, fields={field: name}) for name in names))


def _read_name(entry: JSON) -> str:
    """Return an adapter's name; empty for an entry in no known form.

    An entry is ``name=path``, an object (or its JSON text) with both, or a path alone: SGLang then takes the path for the name.
    """
    fields = _read_object(entry)
    if fields:
        return next((str(fields[key]) for key in (*_NAMES, *_PATHS) if fields.get(key)), "")
    return entry.partition("=")[0] if isinstance(entry, str) else ""


def _read_path(entry: str) -> str:
    """Return the path in ``name=path``, or a path alone.

    Only the first equals sign ends the name: a path may hold more.
    """
    name, equals, path = entry.partition("=")
    return path if equals else name


def _read_object(entry: JSON) -> Mapping[str, JSON]:
    """Return an entry given as an object or as its JSON text; empty for others."""
    if isinstance(entry, str) and entry.lstrip().startswith("{"):
        try:
            entry = json.loads(entry)
        except json.JSONDecodeError:
            return {}
    return entry if isinstance(entry, Mapping) else {}


def adapter_paths(value: JSON) -> list[str]:
    """Return the paths of an argument's adapters.

    An entry is JSON with a path, or text: ``name=path`` or a path alone.
    """
    paths: list[str] = []
    for entry in entries(value):
        fields = _read_object(entry)
        paths += [str(fields[key]) for key in _PATHS if key in fields] if fields else [_read_path(str(entry))]
    return paths


def resolve_paths(value: JSON, resolve: Callable[[str], str]) -> JSON:
    """Return an argument with the paths of its adapters resolved.

    ``value`` is the text of one adapter, which gives a text, or the adapters' entries, which give a list. Objects become JSON texts,
    the form in which a command line takes them.
    """
    if isinstance(value, str):
        return _resolve_entry(value, resolve)
    return [_resolve_entry(entry, resolve) for entry in entries(value)]


def _resolve_entry(entry: JSON, resolve: Callable[[str], str]) -> JSON:
    """Return one adapter's entry with its path resolved.

    An object, or its JSON text, becomes JSON text. An entry in no known form is returned unchanged.
    """
    fields = _read_object(entry)
    if fields:
        return json.dumps({key: resolve(str(item)) if key in _PATHS else item for key, item in fields.items()})
    if not isinstance(entry, str):
        return entry
    path = _read_path(entry)
    resolved_path = resolve(path)
    if resolved_path == path:
        return entry
    # The name stays, since requests ask for it: that of a path alone is the path as written.
    return f"{_read_name(entry)}={resolved_path}"
