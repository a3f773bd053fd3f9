"""Speculation counters, read off a Prometheus page."""

from __future__ import annotations

import re

from pytest_specdec.model.transcript import SpecCounters

__all__ = ["parse"]

_SAMPLE = re.compile(r"^vllm:spec_decode_num_(drafts|draft_tokens|accepted_tokens|accepted_tokens_per_pos)_total(?:\{(.*)\})?\s+(\S+)")
_POSITION = re.compile(r'position="(\d+)"')


def parse(text: str) -> SpecCounters | None:
    """Return vLLM's four ``spec_decode`` series, summed over engines and models; None where the page has none of them."""
    totals: dict[str, float] = {}
    positions: dict[int, float] = {}
    for name, labels, value in _samples(text):
        totals[name] = totals.get(name, 0.0) + value
        if name == "accepted_tokens_per_pos" and (found := _POSITION.search(labels)):
            positions[int(found[1])] = positions.get(int(found[1]), 0.0) + value
    if not totals:
        return None
    return SpecCounters(
        drafts=round(totals.get("drafts", 0)),
        draft_tokens=round(totals.get("draft_tokens", 0)),
        accepted_tokens=round(totals.get("accepted_tokens", 0)),
        accepted_per_position=tuple(round(positions.get(i, 0)) for i in range(max(positions, default=-1) + 1)),
    )


def _samples(text: str) -> list[tuple[str, str, float]]:
    found = (_SAMPLE.match(line) for line in text.splitlines())
    return [(match[1], match[2] or "", float(match[3])) for match in found if match]
