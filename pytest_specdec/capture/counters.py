"""Speculation counters, read off a Prometheus page."""

from __future__ import annotations

import re

from pytest_specdec.model.transcript import SpecCounters

__all__ = ["parse"]

_SAMPLE = re.compile(r"^vllm:spec_decode_num_(drafts|draft_tokens|accepted_tokens|accepted_tokens_per_pos)_total(?:\{(.*)\})?\s+(\S+)")
_POSITION = re.compile(r'position="(\d{1,3})"')
_MOST = 2**53
"""Prometheus keeps counts as floats, which count up to there."""


def parse(text: str) -> SpecCounters | None:
    """Return vLLM's four ``spec_decode`` series, summed over engines and models; None where the page has none, or no counts in them."""
    try:
        return _parsed(text)
    except (ValueError, OverflowError):  # NaN, infinities, no number at all
        return None


def _parsed(text: str) -> SpecCounters | None:
    totals: dict[str, int] = {}
    positions: dict[int, int] = {}
    for name, labels, told in _samples(text):
        value = _count(told)
        totals[name] = totals.get(name, 0) + value
        if name == "accepted_tokens_per_pos" and (found := _POSITION.search(labels)):
            positions[int(found[1])] = positions.get(int(found[1]), 0) + value
    if not totals:
        return None
    return SpecCounters(
        drafts=totals.get("drafts", 0),
        draft_tokens=totals.get("draft_tokens", 0),
        accepted_tokens=totals.get("accepted_tokens", 0),
        accepted_per_position=tuple(positions.get(i, 0) for i in range(max(positions, default=-1) + 1)),
    )


def _samples(text: str) -> list[tuple[str, str, str]]:
    found = (_SAMPLE.match(line) for line in text.splitlines())
    return [(match[1], match[2] or "", match[3]) for match in found if match]


def _count(told: str) -> int:
    value = round(float(told))
    if not 0 <= value < _MOST:
        msg = f"{told} is no count"
        raise ValueError(msg)
    return value
