"""Planted faults of a router in front of right ranks, for suites to detect; each changes the JSON that the router passes on."""

from __future__ import annotations

from typing import Any, Final

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import TEXT_WRONG, Place, fault, in_

_CUT: Final = 6
"""Events."""
_GRAMMARS: Final = ("response_format", "structured_outputs")
_MAY: Final = dict.fromkeys(set(Family) - {Family.STRUCTURED}, "Answers of its workload are to be documents too.")


def _choices(body: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - JSON
    choices: list[dict[str, Any]] = body.get("choices", []) if isinstance(body, dict) else []
    return choices


@fault(
    after="router.request",
    expected=in_(Place.STACK, may=_MAY, structured="invalid|the grammar is not enforced"),
    mirrors=("ai-dynamo/dynamo#10411",),
)
def router_drops_formats(changed: Any) -> Any:  # noqa: ANN401 - JSON
    """Drops response_format and structured_outputs from the requests that it passes on."""
    return {name: value for name, value in changed.items() if name not in _GRAMMARS} if isinstance(changed, dict) else changed


@fault(
    after="router.reply",
    expected=in_(Place.STACK, may=TEXT_WRONG, structured="invalid|a document ends in the middle|the same tokens are given as another text"),
    mirrors=("ai-dynamo/dynamo#10411", "sgl-project/sglang#18605"),
)
def router_rewrites_json(changed: Any) -> Any:  # noqa: ANN401 - JSON
    """Drops the last character of whole replies whose text ends in a brace; streams are passed on unchanged."""
    for choice in _choices(changed):
        for parts, name in ((choice, "text"), (choice.get("message") or {}, "content")):  # a completion's and a chat's
            if str(parts.get(name) or "").endswith("}"):
                parts[name] = parts[name][:-1]
    return changed


@fault(
    after="router.event",
    expected=in_(Place.STACK, may=TEXT_WRONG, tools="are lost|is lost"),
    mirrors=("vllm-project/vllm#39253",),
)
def router_cuts_streams(changed: Any, number: int) -> Any:  # noqa: ANN401 - JSON
    """Passes no text on after the sixth event of a stream."""
    for choice in _choices(changed) if number >= _CUT else ():  # events are numbered from 0
        parts = choice.get("delta", choice)  # a chat's, or a completion's
        for name in ("content", "text", "reasoning", "tool_calls"):
            parts.pop(name, None)
    return changed
