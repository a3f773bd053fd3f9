"""The first burst of a stream: what was there to be read when the client read its first token.

Where cores are scarce the server's own processes keep the client from reading. What it finds then came earlier than it says, the first
token most of all: a real server of 260 tokens a second was once told to make 2,382.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.capture import reply

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.model.answer import Usage
    from pytest_specdec.model.workload import JSON

__all__ = ["WAITED_S", "Burst", "first"]

WAITED_S = 0.0005
"""A chunk so soon behind another had been waiting: this client reads one in 10 to 90 us, and a step of a server takes a millisecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """Chunks that were read in one go, as part of what followed as well."""

    at_s: float
    """When the first of them was read."""
    token_ids: int
    """0 where the server tells none."""
    share: float
    """Of the characters of the whole answer, 0..1."""

    def tokens(self, usage: Usage | None) -> int | None:
        """Return how many tokens came with it: by their ids, else by its share of the text; None where neither tells."""
        if self.token_ids:
            return self.token_ids
        return max(1, round(self.share * usage.completion_tokens)) if usage else None


def first(stamped: Sequence[tuple[float, Mapping[str, JSON]]]) -> Burst | None:
    """Return the first burst of a stream's stamped chunks; None where none of them brings text or tokens."""
    sizes = [(at_s, reply.size(chunk)) for at_s, chunk in stamped]
    told = [(at_s, size) for at_s, size in sizes if size.token_ids or size.characters]
    if not told:
        return None
    ends = (i for i in range(1, len(told)) if told[i][0] - told[i - 1][0] > WAITED_S)
    there = [size for _, size in told[: next(ends, len(told))]]
    written = sum(size.characters for _, size in told)
    return Burst(
        at_s=told[0][0],
        token_ids=sum(size.token_ids for size in there),
        share=sum(size.characters for size in there) / written if written else 1.0,
    )
