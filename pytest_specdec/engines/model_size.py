"""The size of a model: of the checkpoint on this machine, or by the parameters in its name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pytest_specdec.engines import checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """The bytes of a model's weights, in units of 10^9."""

    weights_gb: float
    active_gb: float
    """Weights read for every token: all of a dense model, those of the active parameters of a sparse one."""


_BILLIONS = re.compile(r"(?<![a-z0-9.])(?:(\d+)x)?(\d+(?:\.\d+)?)([bm])(?![a-z0-9])")
"""``32b``, ``0.6b``, ``135m``, ``8x7b``; not ``4bit``, nor ``a3b``."""
_ACTIVE = re.compile(r"[-_]a(\d+(?:\.\d+)?)b(?![a-z0-9])")
_GIB_TO_GB = 1024**3 / 1e9


class _Parameters(NamedTuple):
    """A model's parameters, in billions."""

    billions: float
    active_billions: float
    """Those that are read for every token."""
    bytes_each: float | None = None
    """Bytes of one parameter; None if neither a publication nor the name gives them."""


_SPARSE = {
    "gpt-oss-120b": _Parameters(116.8, 5.1, 0.53),
    "gpt-oss-20b": _Parameters(20.9, 3.6, 0.62),
    "mixtral-8x7b": _Parameters(46.7, 12.9),
    "mixtral-8x22b": _Parameters(141.0, 39.0),
    "deepseek-v3": _Parameters(671.0, 37.0, 1.0),
    "deepseek-r1-0528": _Parameters(671.0, 37.0, 1.0),
}
"""Sparse models without their active parameters in the name, by the beginning of theirs (model cards)."""

_BYTES = (
    (r"fp4|nvfp4|mxfp4|awq|gptq|int4|w4a16|4bit|q4", 0.57),  # a scale for every 16 or 32 values comes to the four bits
    (r"fp8|int8|w8a8|8bit|q8", 1.03),
)
"""Bytes per parameter, by a word in a model's name."""
_HALF_PRECISION = 2.0


def of(model: str, path: Path) -> ModelSize | None:
    """Return the size of ``model``; None if unknown.

    ``path`` is the model's folder or file, if there is one. Its files come first, then the model's name.
    """
    return _size(model, _files_gb(path))


def by_name(model: str) -> ModelSize | None:
    """Return the size of ``model`` by its name alone; None if unknown.

    It is the same on every machine, whatever files are there.
    """
    return _size(model, None)


def _size(model: str, files_gb: float | None) -> ModelSize | None:
    """Return the size by ``files_gb``, or else by the model's name.

    Without files, all weights are the name's parameters times their bytes, 2 if the name gives none. Active weights, those
    read for every token, have the same part in all weights as the active parameters in all parameters. Returns None if
    neither files nor name tell the size.
    """
    parameters = _parameters_of(Path(model).name.lower())
    gb = files_gb or (parameters and parameters.billions * (parameters.bytes_each or _HALF_PRECISION))
    if not gb:
        return None
    return ModelSize(weights_gb=gb, active_gb=gb * (parameters.active_billions / parameters.billions if parameters else 1.0))


def _files_gb(path: Path) -> float | None:
    """Return the GB of a model's files; None without any."""
    if path.is_file():
        return path.stat().st_size / 1e9
    gib = checkpoint.gib(path)
    return None if gib is None else gib * _GIB_TO_GB


def _parameters_of(name: str) -> _Parameters | None:
    """Return the parameters of a model by its name in lower case.

    Some sparse models, which read only a part of their weights for a token, have published figures. Of any other name the largest number
    before ``b`` or ``m`` counts, and the active parameters are the number after ``-a`` or ``_a``: ``30b-a3b`` has 30 billion, 3 of them
    active. Without it all are active. A word such as ``fp8`` gives the bytes of a parameter. Returns None if the name gives no number.
    """
    bytes_each = next((size for pattern, size in _BYTES if re.search(pattern, name)), None)
    published = next((parameters for sparse, parameters in _SPARSE.items() if name.startswith(sparse)), None)
    if published is not None:
        return published._replace(bytes_each=published.bytes_each or bytes_each)
    # In billions: `8x7b` is 56, and `135m` is 0.135.
    counts = [int(experts or 1) * float(count) * (1.0 if unit == "b" else 1e-3) for experts, count, unit in _BILLIONS.findall(name)]
    if not counts:
        return None
    active = _ACTIVE.search(name)
    return _Parameters(max(counts), float(active[1]) if active else max(counts), bytes_each)
