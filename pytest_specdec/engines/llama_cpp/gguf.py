"""The header of a GGUF file: architecture, precision and vocabulary, without the weights.

Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from pytest_specdec.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

_MAGIC, _VERSIONS = b"GGUF", {2, 3}
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of the types of a fixed size, by number."""
_UINT32, _STRING, _ARRAY = 4, 8, 9
"""Numbers of the types with values that are read."""
_MOST_KEYS, _MOST_ITEMS = 2**16, 2**24
"""More than any model has; a broken file may claim more."""
_ARCHITECTURE, _PRECISION, _TOKENS = "general.architecture", "general.file_type", "tokenizer.ggml.tokens"
_ALL_F32 = 0
"""``LLAMA_FTYPE_ALL_F32``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """The figures in a model file's header."""

    architecture: str = ""
    file_type: int | None = None
    """The precision of most weights, by llama.cpp's number; None if the file does not give it."""
    tokens: tuple[bytes, ...] = ()
    """The vocabulary, by id."""

    @property
    def single_precision(self) -> bool:
        """True if every weight is float32."""
        return self.file_type == _ALL_F32


def gib(path: Path) -> float | None:
    """Return a model file's size in GiB; None if missing.

    A split file, ``NAME-00001-of-00003.gguf``, counts with all its parts.
    """
    first_part_mark = "-00001-of-"
    parts = list(path.parent.glob(f"{path.name.partition(first_part_mark)[0]}-*-of-*.gguf")) if first_part_mark in path.name else [path]
    sizes = [part.stat().st_size for part in parts if part.is_file()]
    return sum(sizes) / 1024**3 if sizes else None


def header(path: Path) -> GgufHeader:
    """Return the header of the file at ``path``.

    Raises EngineError if it cannot be read, or is no GGUF file.
    """
    try:
        stat = path.stat()
        return _read_header(path, stat.st_size, stat.st_mtime_ns)
    except (OSError, ValueError, struct.error) as error:
        raise EngineError(
            what="the model file cannot be read",
            where=str(path),
            found=str(error),
            expected="a GGUF file of version 2 or 3",
            remedy="name a .gguf file, or download or convert it again",
        ) from None


@lru_cache(maxsize=32)
def _read_header(path: Path, size: int, modified_ns: int) -> GgufHeader:  # noqa: ARG001 - both tell a changed file
    """Return the header of a file, from the cache if it has not changed.

    ``size`` in bytes and ``modified_ns`` only make the cache miss a changed file. Raises ValueError for anything but
    GGUF of version 2 or 3.
    """
    with path.open("rb") as file:
        if file.read(4) != _MAGIC:
            msg = "other bytes than GGUF at its beginning"
            raise ValueError(msg)
        version, _, keys = struct.unpack("<IQQ", file.read(20))  # between them the number of tensors
        if version not in _VERSIONS:
            msg = f"version {version}"
            raise ValueError(msg)
        return _read_keys(file, _check_bound(keys, _MOST_KEYS))


def _read_keys(file: BinaryIO, keys: int) -> GgufHeader:
    """Return the architecture, precision and vocabulary in a header.

    ``keys`` is the number of keys in the header, which come in any order. Values of others are skipped. Reading ends with the
    last of the three. A key that is missing leaves its field at the default.
    """
    values: dict[str, object] = {}
    for _ in range(keys):
        name = _read_string(file).decode(errors="replace")
        values[name] = _read_value(file, _read_uint32(file), keep=name in {_ARCHITECTURE, _PRECISION, _TOKENS})
        if values.keys() >= {_ARCHITECTURE, _PRECISION, _TOKENS}:
            break
    architecture, file_type, tokens = (values.get(name) for name in (_ARCHITECTURE, _PRECISION, _TOKENS))
    return GgufHeader(
        architecture=architecture.decode(errors="replace") if isinstance(architecture, bytes) else "",
        file_type=file_type if isinstance(file_type, int) else None,
        tokens=tokens if isinstance(tokens, tuple) else (),
    )


def _read_value(file: BinaryIO, kind: int, *, keep: bool) -> object:
    """Return the value at the file's position, or skip it.

    ``kind`` is the number of its type in GGUF. With ``keep`` an unsigned number of 32 bits and the strings of an array
    are returned; a string always is. Returns None for any other number, and an empty tuple for any other array.
    """
    if kind == _STRING:
        return _read_string(file)
    if kind == _ARRAY:
        return _read_array(file, keep=keep)
    if kind == _UINT32 and keep:
        return _read_uint32(file)
    _skip_values(file, kind, 1)
    return None


def _read_array(file: BinaryIO, *, keep: bool) -> tuple[bytes, ...]:
    """Return the strings of an array, or skip it.

    Returns an empty tuple without ``keep``, and for items of any other type. Strings are read even so, since they differ in length.
    """
    kind, count = _read_uint32(file), _check_bound(struct.unpack("<Q", file.read(8))[0], _MOST_ITEMS)
    if kind == _STRING:
        items = [_read_string(file) for _ in range(count)]
        return tuple(items) if keep else ()
    _skip_values(file, kind, count)
    return ()


def _skip_values(file: BinaryIO, kind: int, count: int) -> None:
    """Skip ``count`` values of a type of fixed size.

    ``kind`` is the number of the type in GGUF. Raises ValueError for any other type.
    """
    if kind not in _SIZES:
        msg = f"a value of the unknown type {kind}"
        raise ValueError(msg)
    file.seek(_SIZES[kind] * count, 1)


def _read_uint32(file: BinaryIO) -> int:
    return int(struct.unpack("<I", file.read(4))[0])


def _read_string(file: BinaryIO) -> bytes:
    """Return a string; raise ValueError if the file states an absurd length."""
    (length,) = struct.unpack("<Q", file.read(8))
    return file.read(_check_bound(length, _MOST_ITEMS))


def _check_bound(count: int, limit: int) -> int:
    """Return ``count``; raise ValueError if it is above ``limit``."""
    if count > limit:
        msg = f"a count of {count:,}"
        raise ValueError(msg)
    return count
