"""Documents: a made-up grammar that allows some tokens behind every context, and a valid text for what a request asks for.

The text is the same whichever tokens come: judges read documents from texts, and choices from tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Final

import numpy as np

from benchmarks.worlds.language import CONTEXTS, END, VOCABULARY
from pytest_specdec.judge.structured.output_formats import formats
from pytest_specdec.prompts.structured import CHOICES

if TYPE_CHECKING:
    import numpy.typing as npt

    from pytest_specdec.model.workload import JSON, Request

__all__ = ["TOKENS", "allowed", "text"]

TOKENS: Final = 24
"""Of a document, its end included."""
_ALLOWED: Final = 0.08
_SEED: Final = 20_261_126


@cache
def allowed() -> npt.NDArray[np.bool_]:
    """Return the tokens that the grammar allows behind every context, [CONTEXTS, VOCABULARY]; never an end."""
    permits = np.random.default_rng(_SEED).random((CONTEXTS, VOCABULARY)) < _ALLOWED
    permits[:, END] = False
    return permits


def text(request: Request) -> str:
    """Return a document that is valid by the judges' own reading; empty where none is known."""
    if request.asks not in _TEXTS:
        _TEXTS[request.asks] = _text(request)
    return _TEXTS[request.asks]


_TEXTS: Final[dict[str, str]] = {}
"""By what is asked, since schemas are slow to read."""


def _text(request: Request) -> str:
    candidates = [json.dumps({}), *_documents(request.body), *(choice for _, several in CHOICES.values() for choice in several)]
    wanted = formats((request,)).get(request.id)
    read = [(one, wanted.read(one, cut=False)) for one in candidates] if wanted is not None else []
    return next((one for one, reading in read if reading.complete and not reading.fault), "")


def _documents(body: Mapping[str, JSON]) -> list[str]:
    given = body.get("response_format")
    wrapped = given.get("json_schema") if isinstance(given, Mapping) else None
    schema = wrapped.get("schema") if isinstance(wrapped, Mapping) else None
    return [] if not isinstance(schema, Mapping) else [json.dumps(_instance(schema, schema))]


def _instance(schema: JSON, root: Mapping[str, JSON], depth: int = 0) -> JSON:
    """Return a small value that ``schema`` probably allows."""
    if not isinstance(schema, Mapping) or depth > 8:
        return "a"
    if isinstance(reference := schema.get("$ref"), str):
        target: JSON = root
        for key in reference.removeprefix("#/").split("/"):
            target = target.get(key) if isinstance(target, Mapping) else None
        return _instance(target, root, depth + 1)
    for key in ("const", "enum", "anyOf", "oneOf"):
        if key in schema:
            value = schema[key]
            first = value[0] if isinstance(value, Sequence) and key != "const" else value
            return first if key in {"const", "enum"} else _instance(first, root, depth + 1)
    return _typed(schema, root, depth)


def _typed(schema: Mapping[str, JSON], root: Mapping[str, JSON], depth: int) -> JSON:
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        properties, required = schema.get("properties"), schema.get("required", [])
        known = properties if isinstance(properties, Mapping) else {}
        names = [name for name in known if isinstance(required, Sequence) and name in required]
        return {name: _instance(known[name], root, depth + 1) for name in names}
    if kind == "array":
        least = schema.get("minItems", 0)
        return [_instance(schema.get("items", {}), root, depth + 1)] * (least if isinstance(least, int) else 0)
    if kind in {"integer", "number"}:
        return schema.get("minimum", 1)
    simple: Mapping[JSON, JSON] = {"boolean": True, "null": None}
    least = schema.get("minLength", 1)
    return simple.get(kind, "a" * (least if isinstance(least, int) else 1))
