"""The axes of a matrix: settings with several values each, and these laid over the sections of a config.

A cell of the matrix is a variant under one value of each axis. A place is the path of keys to a setting, such as ``engine.args.dtype``. An
overlay has, by section of the config, the settings that a value lays over it. A value's label is its part of a cell's id.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

from pytest_specdec.config import engines, validate
from pytest_specdec.config.rules import plain
from pytest_specdec.model.matrix import GROUP, VARIANT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.config.validate import Problem
    from pytest_specdec.files.yaml import KeyPath, YamlDocument
    from pytest_specdec.model.workload import JSON

__all__ = ["AXES", "Axis", "Value", "find_problems", "lay_over", "read_axes", "value_name"]

AXES = ("matrix", "axes")
"""Where the axes stand."""
_VARIANTS = "variants"
_PLACEMENT = "placement"
"""A section that is itself a setting."""
_ENGINES = ("engine", "scorer")
_SECTIONS = (*_ENGINES, "baseline", "draft", "speed", "cluster", _VARIANTS, _PLACEMENT)
_REQUEST = ("body", "headers", "served_as")
"""Settings of requests, which a server that runs already takes too."""
_PROGRAMS = ("executable", "venv", "image")
_BARE = re.compile(r"(minus-)?[0-9-]+|true|false|none|on|off|yes|no|auto|default")
"""Names of values that say nothing without their axis."""
_LONGEST_NAME = 60
_NAME_THEM = "give the values names: {name: value, other-name: value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One value of an axis."""

    name: str
    """As ``--specdec-only`` and the reports have it: ``fp8``, ``2``, ``none``."""
    label: str
    """Its part of a cell's id: the name, with the axis before it where the name alone says nothing, as in ``seed-2``."""
    overlay: Mapping[str, JSON]
    """By section of the config, what is laid over it; over each variant for ``variants``."""
    lines: Mapping[KeyPath, int]
    """By place in the overlay, the line in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A setting, or several together, with two or more values."""

    name: str
    path: KeyPath
    """Where it stands in the file."""
    values: tuple[Value, ...]

    @property
    def changes_baseline(self) -> bool:
        """Whether it touches more than the variants, so that each value has a baseline of its own."""
        return any(section != _VARIANTS for value in self.values for section in value.overlay)

    def value(self, name: str) -> Value:
        """Return the value called ``name``; KeyError without one."""
        return {value.name: value for value in self.values}[name]


def read_axes(document: YamlDocument) -> tuple[Axis, ...]:
    """Return the axes of a schema-valid config, in file order.

    An axis is called by the last step of its place. It is called by the whole place if two end alike, or if the step is ``variant`` or
    ``group``: these select cells already. A value is called by its key; in a list, by the value itself (:func:`value_name`).
    """
    stated: Any = document.data
    axes: Mapping[str, Any] = stated["matrix"]["axes"]
    last_steps = Counter([VARIANT, GROUP, *(_last_step(key) for key in axes)])
    return tuple(
        _read_axis(document, key, values, _last_step(key) if last_steps[_last_step(key)] == 1 else key) for key, values in axes.items()
    )


def _last_step(key: str) -> str:
    return key.rpartition(".")[2]


def _read_axis(document: YamlDocument, key: str, stated: Mapping[str, JSON] | list[JSON], name: str) -> Axis:
    """Return the axis called ``name``, of the entry ``key`` under ``axes``.

    ``stated`` has its values: by name, or as a list. If ``key`` is the place of a setting, each value is that setting; otherwise it is an
    overlay.
    """
    steps = tuple(key.split(".")) if _is_place(key, stated) else ()  # of the setting's place; () if each value is an overlay
    items: list[tuple[str | int, str, JSON]]  # of each value its key or index in the file, its name and what stands there
    if isinstance(stated, Mapping):
        items = [(own_name, own_name, setting) for own_name, setting in stated.items()]
    else:
        items = [(index, value_name(setting), setting) for index, setting in enumerate(stated)]
    values = (
        Value(
            name=own_name,
            label=_label(name, own_name),
            overlay=_make_overlay(steps, setting),
            lines=_overlay_lines(document, (*AXES, key, key_or_index), steps),
        )
        for key_or_index, own_name, setting in items
    )
    return Axis(name=name, path=(*AXES, key), values=tuple(values))


def _is_place(key: str, stated: JSON) -> bool:
    """Return True if an axis's ``key`` is the place of one setting.

    Otherwise it only names the axis, and each value has settings by section. ``stated`` has the values: by name, or as a list.
    """
    # Only a place has dots. Values in a list have no names, which those with settings by section need.
    return "." in key or not isinstance(stated, Mapping)


def _make_overlay(steps: tuple[str, ...], value: JSON) -> Mapping[str, JSON]:
    """Return the overlay that has ``value`` at the place ``steps``.

    Without a place the value is itself an overlay.
    """
    for step in reversed(steps):
        value = {step: value}
    return value if isinstance(value, Mapping) else {}


def _overlay_lines(document: YamlDocument, path: KeyPath, steps: tuple[str, ...]) -> Mapping[KeyPath, int]:
    """Return the lines of a value's overlay, by place in the overlay.

    ``path`` is the value's place in the file, ``steps`` its place in the overlay: () if it is itself the overlay.
    """
    # `engine` and `engine.args` of an axis engine.args.dtype are no keys in the file: they get the value's line.
    above = {steps[:end]: document.line(path) for end in range(1, len(steps))}
    below = {place[len(path) :]: line for place, line in document.lines.items() if place[: len(path)] == path}
    return above | {(*steps, *place): line for place, line in below.items()}


def value_name(value: JSON) -> str:
    """Return the name of a value without one in the file.

    It has the value's letters and digits in lower case, with single dashes between; the sign of a number becomes ``minus``.
    """
    if value is None:
        return "none"
    text = value if isinstance(value, str) else json.dumps(value)
    if isinstance(value, int | float) and text.startswith("-"):
        text = f"minus{text}"
    return _slug(text)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _label(axis: str, name: str) -> str:
    return f"{_slug(axis)}-{name}" if _BARE.fullmatch(name) else name


def find_problems(document: YamlDocument, axes: tuple[Axis, ...]) -> Iterator[Problem]:
    """Yield the problems of axes that the JSON Schema cannot express."""
    stated: Any = document.data
    for axis in axes:
        key = str(axis.path[-1])
        values = stated["matrix"]["axes"][key]
        if axis.name in {VARIANT, GROUP}:
            hint = f"rename it: --specdec-only selects cells by their {axis.name} already"
            yield validate.problem(document, axis.path, f"an axis called {axis.name}", "another name", hint)
        if _is_place(key, values):
            yield from _check_place(document, axis.path, tuple(key.split(".")))
        else:
            for name, overlay in values.items():
                yield from _check_overlay(document, (*axis.path, name), overlay)
        yield from _check_names(document, axis)
        yield from _check_addresses(document, axis)
    for earlier, later in combinations(axes, 2):
        yield from _check_overlap(document, earlier, later)


def _check_place(document: YamlDocument, path: KeyPath, steps: tuple[str, ...]) -> Iterator[Problem]:
    """Yield the problem of an axis key that is no setting.

    ``steps`` are the parts of the key between its dots; ``path`` is where the axis stands in the document. A setting of one variant alone
    is a problem too.
    """
    example = "the path of a setting, such as engine.args.dtype"
    if "" in steps:
        yield validate.problem(document, path, "a path with an empty step", example, "write one dot between two steps")
    elif steps[0] not in _SECTIONS:
        hint = validate.nearest(steps[0], _SECTIONS) or "an axis of several settings has named values: {name: {engine: …}}"
        yield validate.problem(document, path, f"no section of settings: {steps[0]}", _join(_SECTIONS), hint)
    elif steps[0] == _PLACEMENT and len(steps) > 1:
        yield validate.problem(document, path, f"a step below {_PLACEMENT}, which is itself a setting", _PLACEMENT)
    elif len(steps) == 1 and steps[0] != _PLACEMENT:
        yield validate.problem(document, path, f"the section {steps[0]} without a setting of it", example)
    elif steps[0] == _VARIANTS and steps[1] in _variant_names(document):
        hint = f"write {'.'.join((_VARIANTS, *steps[2:]))}, and exclude combinations"
        yield validate.problem(document, path, f"a setting of the variant {steps[1]} alone", "a setting of all variants", hint)


def _check_overlay(document: YamlDocument, path: KeyPath, overlay: JSON) -> Iterator[Problem]:
    """Yield a problem for each part of a named value that is no section.

    A value that is no mapping at all is one problem.
    """
    if not isinstance(overlay, Mapping):
        actual = "nothing" if overlay is None else json.dumps(overlay)
        yield validate.problem(document, path, actual, "settings by section, such as {engine: {args: …}}, or {} for none")
        return
    for section in overlay:
        if section not in _SECTIONS:
            hint = validate.nearest(section, _SECTIONS)
            yield validate.problem(document, (*path, section), "no section of settings", _join(_SECTIONS), hint)


def _check_names(document: YamlDocument, axis: Axis) -> Iterator[Problem]:
    """Yield a problem for each empty, overlong or repeated value name.

    A name is repeated if its label is, since labels make the ids of cells: ``2`` and ``seed-2`` have one label on the axis ``seed``.
    """
    labels: set[str] = set()
    expected = f"a name of 1 to {_LONGEST_NAME} characters"
    for index, value in enumerate(axis.values):
        # Values in a list stand at an index, others at their name.
        path: KeyPath = (*axis.path, index if (*axis.path, index) in document.lines else value.name)
        if not value.name:  # a value in a list is called by its letters and digits (value_name)
            yield validate.problem(document, path, "a value without letters or digits for its name", expected, _NAME_THEM)
        elif len(value.name) > _LONGEST_NAME:
            yield validate.problem(document, path, f"a value whose name has {len(value.name)} characters", expected, _NAME_THEM)
        elif value.label in labels:
            yield validate.problem(document, path, f"a second value called {value.label}", "a different name for each value", _NAME_THEM)
        labels.add(value.label)


def _check_addresses(document: YamlDocument, axis: Axis) -> Iterator[Problem]:
    """Yield a problem for an axis that attached servers cannot follow.

    An attached server runs already and keeps the settings with which it was started. So no axis may have addresses. Beside an address in
    the file an axis may have settings of requests only (``_REQUEST``): with others all of its values would be the same server.
    """
    data: Any = document.data
    attached = next(engines.list_addresses(data), None)  # the place of an address
    # A place begins with a section and a key in it: engine, body, seed.
    places = [place for value in axis.values for place in _leaves(value.overlay)]
    if any(place[1:] == ("url",) for place in places):
        hint = "judge servers that run already by a config each"
        yield validate.problem(document, axis.path, "the address of a server that runs already", "settings of servers started here", hint)
    elif attached is not None and not all(len(place) > 1 and place[1] in _REQUEST for place in places):
        actual = f"settings of servers, and one that runs already at {validate.dotted_path(attached)}"
        yield validate.problem(document, axis.path, actual, f"{_join(_REQUEST)}, which requests have, or servers started here")


def _check_overlap(document: YamlDocument, earlier: Axis, later: Axis) -> Iterator[Problem]:
    """Yield a problem for each place that two axes set.

    The later axis would undo the earlier, and ids would name values that no server has. A place below another one counts as the same.
    """
    earlier_places = {place for value in earlier.values for place in _leaves(value.overlay)}
    for place in dict.fromkeys(place for value in later.values for place in _leaves(value.overlay)):
        if any(place[: len(other)] == other or other[: len(place)] == place for other in earlier_places):
            actual = f"{'.'.join(place)}, which the axis {earlier.name} sets too"
            yield validate.problem(document, later.path, actual, "a setting of one axis")


def _leaves(overlay: JSON, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the place of each setting in an overlay.

    ``path`` is the place of ``overlay`` itself. An empty mapping is a setting too. Flags, the keys under ``args``, are in one spelling.
    Directly in a section, ``executable``, ``venv`` and ``image`` are one place, ``program``, since only one of them holds.
    """
    if isinstance(overlay, Mapping) and overlay:
        for key, value in overlay.items():
            step = "program" if len(path) == 1 and key in _PROGRAMS else plain(key) if "args" in path else key
            yield from _leaves(value, (*path, step))
    elif path:
        yield path


def lay_over(section: str, settings: JSON, overlay: JSON) -> JSON:
    """Return a section's settings with those of ``overlay`` laid over them.

    An overlay that is no mapping replaces them. Mappings are merged key by key, those inside of ``args`` too, flags in either spelling.
    Null takes a setting out.
    """
    if not isinstance(overlay, Mapping):
        return overlay
    below: Mapping[str, JSON] = settings if isinstance(settings, Mapping) else {}
    # An engine has one program: a new one replaces it, whichever key names it.
    result = engines.drop_program(below, overlay) if section in _ENGINES else dict(below)
    args = _parse_mapping(overlay.get("args"))
    # Arguments that are no mapping, such as null, are laid over like any other setting.
    result = _merge(result, {key: value for key, value in overlay.items() if key != "args" or args is None})
    if args is not None:
        # Other sections' args are laid over the engine's later: a null has to stay there, to take out the engine's argument.
        keep_null = section not in _ENGINES
        result["args"] = _merge(_parse_mapping(result.get("args")) or {}, args, flags=True, keep_null=keep_null)
    return result


def _merge(settings: Mapping[str, JSON], overlay: Mapping[str, JSON], *, flags: bool = False, keep_null: bool = False) -> dict[str, JSON]:
    """Return ``settings`` with ``overlay`` merged into them.

    With ``flags`` the names are those of flags, the same with dashes or underscores: the spelling in ``settings`` stays. A null takes a
    setting out; with ``keep_null`` it replaces the setting.
    """
    merged = dict(settings)
    for key, value in overlay.items():
        spelling = next((name for name in settings if plain(name) == plain(key)), key) if flags else key
        if isinstance(value, Mapping):
            # Without keep_null: a null is kept for whole arguments only, which it takes out of the engine's.
            merged[spelling] = _merge(_parse_mapping(settings.get(spelling)) or {}, value, flags=flags)
        elif value is None and not keep_null:
            merged.pop(spelling, None)
        else:
            merged[spelling] = value
    return merged


def _parse_mapping(value: JSON) -> Mapping[str, JSON] | None:
    """Return a mapping, which may be in a string of JSON; None for anything else."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return value if isinstance(value, Mapping) else None


def _variant_names(document: YamlDocument) -> tuple[str, ...]:
    data: Any = document.data
    return tuple(data[_VARIANTS])


def _join(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"
