"""The keys of a config as a table, from its schema."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["table"]

_MANY = "NAME"
"""Stands for a key that the config chooses, such as a variant's name."""


def table(schema: str) -> str:
    """Return every key with what it takes and what it means, one below another as in the file.

    What is defined once and taken in several places is explained in the first.
    """
    document = json.loads(schema)
    rows = [
        f"| `{key}` | {kind} | {_cell(meaning)} |"
        for key, kind, meaning in _rows("", document, document, {"#/properties/engine": "engine"})
    ]
    return "\n".join(["| key | takes | meaning |", "|---|---|---|", *rows])


def _rows(prefix: str, node: Mapping[str, Any], document: Mapping[str, Any], shown: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield the keys below ``node``, those of a repeated value under NAME or []; ``shown`` is where each definition is explained."""
    below = list(node.get("properties", {}).items())
    many = node.get("additionalProperties")
    if isinstance(many, dict) and {"properties", "items"} & _resolve(many, document).keys():
        below.append((_MANY, many))
    for name, given in below:
        child, key = _resolve(given, document), f"{prefix}.{name}".removeprefix(".")
        first = shown.setdefault(given["$ref"], key) if "$ref" in given else key
        if first != key:
            yield key, f"as `{first}`", given.get("description", "")
            continue
        yield key, _kind(child, document), child.get("description", "")
        yield from _rows(key, child, document, shown)
        yield from _rows(f"{key}[]", _resolve(child.get("items", {}), document), document, shown)


def _resolve(node: Mapping[str, Any], document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the node with what it refers to; its own description goes before."""
    if "$ref" not in node:
        return node
    place: Any = document
    for step in node["$ref"].removeprefix("#/").split("/"):
        place = place[step]
    return {**place, **{name: value for name, value in node.items() if name != "$ref"}}


def _kind(node: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    """Return the types or the words that a key takes."""
    if "enum" in node:
        return ", ".join(f"`{word}`" for word in node["enum"])
    if "const" in node:
        return f"`{node['const']}`"
    if "anyOf" in node or "oneOf" in node:
        kinds = (_kind(_resolve(one, document), document) for one in node.get("anyOf", node.get("oneOf")))
        return " or ".join(dict.fromkeys(filter(None, kinds)))
    kind = node.get("type", "")
    return " or ".join([kind] if isinstance(kind, str) else kind)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")
