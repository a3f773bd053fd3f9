"""The codec: the model's dataclasses to JSON and back, checked against their annotations."""

from __future__ import annotations

import math
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from pytest_specdec.errors import RunError

if TYPE_CHECKING:
    from pytest_specdec.model.workload import JSON

T = TypeVar("T")
_Decoder: TypeAlias = Callable[[Any], Any]
_NUMBER = re.compile(r"[0-9]{1,9}$")
_RELEASE = "judge it with the release that wrote it"


def check_schema(where: str, found: object, expected: str) -> None:
    """Raise RunError unless a file's schema, ``found``, is the ``expected`` one.

    A schema's name ends with its version, as in ``plan:2``. If only that differs, the error says that an older or newer release wrote the
    file.
    """
    if found == expected:
        return
    what, remedy = "the file is of another kind", "restore the file that the capture wrote, or capture again"
    if isinstance(found, str) and _NUMBER.search(found) and _NUMBER.sub("", found) == _NUMBER.sub("", expected):
        is_older = int(_NUMBER.findall(found)[0]) < int(_NUMBER.findall(expected)[0])
        what = f"{'an older' if is_older else 'a newer'} release wrote this run"
        remedy = f"{_RELEASE}, or capture again" if is_older else _RELEASE
    raise RunError(what, where=where, found=f"schema {found!r}", expected=f"schema {expected!r}", remedy=remedy)


def encode(value: object) -> JSON:
    """Return a value of the model as JSON data.

    Dataclasses become objects with all their fields, tuples become lists, and infinities and NaN, which JSON does not
    have, become strings. Raises TypeError for a value of any other kind.
    """
    if isinstance(value, Enum):
        return encode(value.value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        return {str(encode(key)): encode(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    if is_dataclass(value):
        return {field.name: encode(getattr(value, field.name)) for field in fields(value)}
    msg = f"no JSON for {value!r} ({type(value).__name__})"
    raise TypeError(msg)


def decode(cls: type[T], data: JSON) -> T:
    """Return the object of type ``cls`` that ``data`` encodes.

    It is the inverse of :func:`encode`. Missing fields get their defaults. Raises RunError, with the path in ``data``, for an unknown
    field, for a missing one without a default, and for a value of the wrong type.
    """
    try:
        decoder: Callable[[JSON], T] = _decoder_of(cls)  # type: ignore[arg-type]  # every class is hashable
        return decoder(data)
    except RecursionError:
        msg = f"this is no {cls.__name__}"
        raise RunError(msg, found="values that are nested too deeply", remedy=f"{_RELEASE}, or capture again") from None
    except _Mismatch as error:
        msg = f"this is no {cls.__name__}"
        raise RunError(
            msg,
            where="".join(error.path).lstrip("."),
            found=error.found,
            expected=error.expected,
            remedy=f"{_RELEASE}, or capture again",
        ) from None


class _Mismatch(Exception):  # noqa: N818 - it never leaves this module
    """A value that is not of the expected type, with the path to it."""

    def __init__(self, found: str, expected: str) -> None:
        super().__init__(found, expected)
        self.found = found
        self.expected = expected
        self.path: list[str] = []

    def under(self, step: str) -> _Mismatch:
        """Return this error with ``step`` in front of its path."""
        self.path.insert(0, step)
        return self


@cache
def _decoder_of(hint: Any) -> _Decoder:  # noqa: ANN401 - any annotation
    """Return the decoder of the type ``hint``, built once per type.

    A decoder takes JSON data and returns the value, or raises :class:`_Mismatch`.
    """
    if hint in _PLAIN:
        return _PLAIN[hint]
    if isinstance(hint, type) and is_dataclass(hint):
        return _dataclass_decoder(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum_decoder(hint)
    return _generic_decoder(get_origin(hint), get_args(hint))


def _generic_decoder(origin: object, args: tuple[Any, ...]) -> _Decoder:
    """Return the decoder of a union, literal, tuple or mapping.

    ``origin`` and ``args`` are those of ``typing``. Raises TypeError for any other type.
    """
    if origin in {Union, types.UnionType}:
        return _union_decoder([arg for arg in args if arg is not types.NoneType])  # it decodes null as None in any case
    if origin is Literal:
        return _literal_decoder(args)
    if origin is tuple:
        return _list_decoder(args[0]) if args[1:] == (...,) else _fixed_tuple_decoder(args)  # tuple[int, ...], or tuple[int, str]
    if origin in {Mapping, dict}:
        return _mapping_decoder(*args)
    msg = f"the codec knows no {origin!r} of {args!r}"
    raise TypeError(msg)


def _dataclass_decoder(cls: Any) -> _Decoder:  # noqa: ANN401 - any dataclass
    """Return the decoder of a dataclass, built from its annotations.

    It raises _Mismatch for an unknown field, then for a missing one without a default, then for a value of the wrong type.
    """
    hints = get_type_hints(cls, localns={"JSON": object})  # free JSON, whose alias is recursive, has the decoder of `object`
    decoders = {field.name: _decoder_of(hints[field.name]) for field in fields(cls)}
    required = [field.name for field in fields(cls) if field.default is MISSING and field.default_factory is MISSING]

    def decode_object(data: object) -> object:
        values = _check_type(dict, data, f"the fields of a {cls.__name__}")
        for name in values.keys() - decoders.keys():
            msg = f"an unknown field {name!r}"
            raise _Mismatch(msg, f"one of {', '.join(decoders)}")
        for name in required:
            if name not in values:
                msg = f".{name}"
                raise _Mismatch("nothing", "a value").under(msg)
        arguments: dict[str, object] = {}
        try:
            for name, value in values.items():
                arguments[name] = decoders[name](value)
        except _Mismatch as error:
            raise error.under("." + name) from None
        return cls(**arguments)

    return decode_object


def _enum_decoder(cls: type[Enum]) -> _Decoder:
    """Return the decoder of an enum's members, by their values."""

    def decode_member(data: object) -> object:
        try:
            return cls(data)
        except ValueError:
            raise _Mismatch(repr(data), f"one of {', '.join(str(member.value) for member in cls)}") from None

    return decode_member


def _literal_decoder(values: tuple[Any, ...]) -> _Decoder:
    """Return the decoder of a literal with one of ``values``."""

    def decode_literal(data: object) -> object:
        if data not in values:
            raise _Mismatch(repr(data)[:_SHOWN], f"one of {', '.join(map(str, values))}")
        return data

    return decode_literal


def _union_decoder(members: list[Any]) -> _Decoder:
    """Return the decoder of a union, which decodes null as None.

    ``members`` are its types but None: one type, or several dataclasses with a different ``kind`` each.
    """
    decoder = _decoder_of(members[0]) if len(members) == 1 else _kind_decoder(members)
    return lambda data: None if data is None else decoder(data)


def _kind_decoder(classes: list[Any]) -> _Decoder:
    """Return the decoder of one of several dataclasses.

    Each has a field ``kind`` with a literal of its own, by which the class is chosen.
    """
    decoders = {get_args(get_type_hints(cls)["kind"])[0]: _decoder_of(cls) for cls in classes}
    decode_kind = _literal_decoder(tuple(decoders))

    def decode_object(data: object) -> object:
        kind = decode_kind(_check_type(dict, data, "an object with a kind").get("kind"))
        return decoders[kind](data)

    return decode_object


def _list_decoder(hint: Any) -> _Decoder:  # noqa: ANN401 - any annotation
    """Return the decoder of a tuple of any length, stored as a list."""
    item_decoder = _decoder_of(hint)

    def decode_list(data: object) -> object:
        values, items = _check_type(list, data, "a list"), []
        # Token ids are most of what a run holds: a list of them is checked as a whole.
        if hint is int and set(map(type, values)) == {int} and min(values) >= -_MOST_INT and max(values) <= _MOST_INT:
            return tuple(values)
        try:
            for value in values:
                items.append(item_decoder(value))  # noqa: PERF401 - the length gives the place of an error
        except _Mismatch as error:
            step = f"[{len(items)}]"
            raise error.under(step) from None
        return tuple(items)

    return decode_list


def _fixed_tuple_decoder(args: tuple[Any, ...]) -> _Decoder:
    """Return the decoder of a tuple of fixed length, stored as a list."""
    decoders = [_decoder_of(arg) for arg in args]

    def decode_items(data: object) -> object:
        items = _check_type(list, data, f"a list of {len(decoders)}")
        if len(items) != len(decoders):
            msg = f"{len(items)} items"
            raise _Mismatch(msg, f"{len(decoders)} items")
        return tuple(_decode_at(f"[{index}]", decoder, value) for index, (decoder, value) in enumerate(zip(decoders, items, strict=True)))

    return decode_items


def _mapping_decoder(key_hint: Any, value_hint: Any) -> _Decoder:  # noqa: ANN401 - any annotation
    """Return the decoder of a mapping, stored as an object."""
    key_decoder, item_decoder = _decoder_of(key_hint), _decoder_of(value_hint)
    return lambda data: {
        key_decoder(name): _decode_at(f".{name}", item_decoder, value) for name, value in _check_type(dict, data, "an object").items()
    }


def _decode_at(step: str, decoder: _Decoder, data: object) -> object:
    """Return the decoded ``data``; an error gets ``step`` in front of its path."""
    try:
        return decoder(data)
    except _Mismatch as error:
        raise error.under(step) from None


def _check_type(cls: type[T], data: object, expected: str) -> T:
    """Return ``data``; raise _Mismatch unless it is of type ``cls``.

    ``expected`` is the type in words, for the error. A bool is no number here, though it is an int in Python.
    """
    if not isinstance(data, cls) or (isinstance(data, bool) and cls is not bool):
        raise _Mismatch(repr(data)[:_SHOWN], expected)
    return data


def _decode_int(data: object) -> int:
    """Return ``data``; raise _Mismatch unless it is a whole number of 64 bits."""
    number = _check_type(int, data, "a whole number")
    if abs(number) > _MOST_INT:
        raise _Mismatch(f"{number:e}" if abs(number) < _MOST_FLOAT else "a longer number", f"a whole number of at most {_MOST_INT:e}")
    return number


def _decode_float(data: object) -> float:
    """Return the float encoded as ``data``, a number or special string.

    Infinities and NaN are strings; a number too large for a float, such as 1e999, comes from JSON as infinite and passes too. Raises
    _Mismatch for any other number beyond :data:`_MOST_FLOAT`, the range of single precision.
    """
    if isinstance(data, str) and data in {"inf", "-inf", "nan"}:
        return float(data)
    number = _check_type(int, data, "a number") if isinstance(data, int) else _check_type(float, data, "a number")
    if _MOST_FLOAT < abs(number) < math.inf:  # a whole number may be too large for a float
        raise _Mismatch(repr(data)[:_SHOWN], f"a number of at most {_MOST_FLOAT:g}")
    return float(number)


def _decode_json(data: object) -> object:
    """Return ``data``, any JSON; raise _Mismatch if it is nested too deeply."""
    if not _is_shallow(data, _DEEPEST):
        msg = f"values nested more than {_DEEPEST} deep"
        raise _Mismatch(msg, "JSON as requests have it")
    return data


def _is_shallow(data: object, levels: int) -> bool:
    """Return True if ``data`` is nested at most ``levels`` deep."""
    items = data.values() if isinstance(data, Mapping) else data if isinstance(data, list) else ()
    return levels > 0 and all(_is_shallow(item, levels - 1) for item in items)


_SHOWN = 200
"""Characters of a wrong value that an error shows."""
_MOST_INT = 2**63 - 1
_MOST_FLOAT = 1e39
"""Beyond single precision; the squares of larger ones are infinite."""
_DEEPEST = 100
"""Levels of free JSON: what writes or copies it goes a level deeper with each."""

_PLAIN: Mapping[object, _Decoder] = {
    str: lambda data: _check_type(str, data, "a string"),
    bool: lambda data: _check_type(bool, data, "true or false"),
    int: _decode_int,
    float: _decode_float,
    object: _decode_json,
}
