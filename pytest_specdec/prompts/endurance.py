"""Mixed traffic that goes on for minutes: greedy and drawn, seeded and not, one long text, several at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.model.workload import Depth, Need, Request, Workload
from pytest_specdec.prompts import CODE, EXTRACT, LONG, RAG, REPEAT, STORY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.model.workload import JSON

__all__ = ["mixed_traffic"]

_PROMPTS = (REPEAT.items[-3], CODE.items[-1], EXTRACT.items[-2], RAG.items[-2], STORY.items[-1], LONG.items[-1])
"""They stand at the end of their lists, where other workloads hardly come to; the first goes on as it began, so that any drafter drafts."""
_DRAWN = _PROMPTS[:2]
_TEMPERATURE = 0.7
_MIXES: Mapping[str, Mapping[str, JSON]] = {"seeded": {"temperature": _TEMPERATURE, "seed": 11}, "drawn": {"temperature": _TEMPERATURE}}


def mixed_traffic(*, max_tokens: int = 32, concurrency: int = 4, name: str = "mixed-traffic") -> Workload:
    """Return the requests of a soak, sent at deep depth alone.

    A soak is the same traffic for minutes; the config states how many. Before and after these minutes every request is
    answered in full, as two passes. An id has a mix, which names the sampling parameters, and a prompt: ``greedy/rag-05``,
    ``seeded/code-12``.
    """
    limits: dict[str, JSON] = {"max_tokens": max_tokens, "top_p": 1.0}
    greedy = [
        Request(id=f"greedy/{prompt.id}", route=prompt.route, body={**prompt.content, **limits, "temperature": 0.0}) for prompt in _PROMPTS
    ]
    drawn = [
        Request(id=f"{mix}/{prompt.id}", route=prompt.route, body={**prompt.content, **limits, **fields})
        for mix, fields in _MIXES.items()
        for prompt in _DRAWN
    ]
    return Workload(
        name=name,
        version=1,
        requests=(*greedy, *drawn),
        take={Depth.SMOKE: 0, Depth.STANDARD: 0},
        concurrency=concurrency,
        passes=2,
        top_tokens=5,
        needs=Need.ENDURANCE,
    )
