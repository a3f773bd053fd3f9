"""The speculation counters in a vLLM log: what releases before 0.8 and later ones write of them, read back as counts.

``drafts`` is the number of verify steps. A step emits the accepted draft tokens and one more.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from operator import add
from typing import TYPE_CHECKING

from pytest_specdec.model.spec_counters import SpecCounters

if TYPE_CHECKING:
    from collections.abc import Iterator

_INTERVAL = re.compile(r"SpecDecoding metrics: (?P<fields>.+)")
_TOTAL = re.compile(r"Speculative metrics: (?P<fields>.+)")
_RATES = re.compile(r"Per-position acceptance rate: (?P<rates>\d\.\d+(?:, \d\.\d+)*)")
_ACCEPTED, _DRAFTED, _LENGTH = r"Accepted: (\d+) tokens", r"Drafted: (\d+) tokens", r"Mean acceptance length: (\d+\.\d+)"
_TOTAL_FIELDS = (r"Number of speculative tokens: (\d+)", r"Number of draft tokens: (\d+)", r"Number of emitted tokens: (\d+)")
_LENGTH_ROUNDING = 0.005
"""Of a mean acceptance length rounded to a hundredth."""
_MOST_CANDIDATES = 10_000


def logged_counters(text: str, draft_tokens: int = 0) -> SpecCounters | None:
    """Return the counters in a server's log; None without any.

    ``draft_tokens`` are those of a step, for the lines of 0.8, which do not report the number of steps; 0 if unknown.

    From 0.8 on (``v1/spec_decode/metrics.py``) a line counts the events since the last one, and the sum over
    lines is returned. Releases before it (``engine/metrics.py``) count from the start of the server. The log may hold
    several starts, whose last lines are added up. What came after the last line is not counted.
    """
    intervals = [counters for match in _INTERVAL.finditer(text) if (counters := _read_interval_line(match["fields"], draft_tokens))]
    totals = [counters for match in _TOTAL.finditer(text) if (counters := _read_total_line(match["fields"]))]
    readings = [*intervals, *_last_reading_per_start(totals)]
    return reduce(add, readings) if readings else None


def _read_interval_line(fields: str, draft_tokens: int) -> SpecCounters | None:
    """Return the counters of one log line from 0.8 on.

    ``fields`` is the text after the line's title, which differs between releases. The number of verify steps follows from the mean
    acceptance length, or without it from ``draft_tokens``, those of a step (0 if unknown). Returns None if it does not follow.
    """
    accepted, drafted, length = (re.search(pattern, fields) for pattern in (_ACCEPTED, _DRAFTED, _LENGTH))
    if not accepted or not drafted:
        return None
    accepted_tokens, drafted_tokens = int(accepted[1]), int(drafted[1])
    rates = tuple(map(float, match["rates"].split(", "))) if (match := _RATES.search(fields)) else ()
    if length:
        drafts = _Line(accepted=accepted_tokens, drafted=drafted_tokens, length=float(length[1]), rates=rates).drafts
    elif draft_tokens:
        drafts = math.ceil(drafted_tokens / draft_tokens)
    elif not drafted_tokens:
        drafts = 0  # whatever a step would draft
    else:
        return None
    return SpecCounters(
        drafts=drafts,
        draft_tokens=drafted_tokens,
        accepted_tokens=accepted_tokens,
        accepted_per_position=tuple(round(rate * drafts) for rate in rates),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """The figures of one line with a mean acceptance length."""

    accepted: int
    """Accepted draft tokens."""
    drafted: int
    """Draft tokens."""
    length: float
    """Mean number of tokens that a verify step emitted, rounded to a hundredth."""
    rates: tuple[float, ...]
    """By position in the draft, the part of verify steps that accepted it; empty if the line has none."""

    @property
    def drafts(self) -> int:
        """Number of verify steps, worked out from the line's figures.

        There is a rate for each position of the longest draft. If all drafts are that long, the number is the drafted tokens
        divided by the number of rates. N-gram drafts differ in length: then the mean length allows some numbers, since it is
        rounded, and the one is taken that agrees best with the rates.
        """
        if not self.drafted:
            return 0
        even_drafts, remainder = divmod(self.drafted, len(self.rates) or 1)
        if self.rates and not remainder and self._fits_length(even_drafts):
            return even_drafts
        # Without an accepted token the mean length is 1 for any number, and decides nothing.
        if not self.accepted:
            return max(even_drafts, 1)
        return min(self._possible_drafts(), key=self._mismatch_with_rates)

    def _fits_length(self, drafts: int) -> bool:
        """Return True if ``drafts`` agree with the mean acceptance length."""
        return abs(1 + self.accepted / drafts - self.length) <= _LENGTH_ROUNDING + 1e-9

    def _possible_drafts(self) -> range:
        """Return the numbers of verify steps allowed by the rounded length.

        A step emits one token besides the accepted ones. So a step accepts ``length`` - 1 tokens on average, and the number of
        steps is ``accepted`` divided by that.
        """
        most_per_step = self.length - 1 + _LENGTH_ROUNDING
        # A step drafts a token at least: there are at most `drafted` steps, and at least accepted / drafted tokens in one.
        least_per_step = max(self.length - 1 - _LENGTH_ROUNDING, self.accepted / self.drafted)
        fewest = max(1, round(self.accepted / most_per_step))
        most = max(fewest, round(self.accepted / least_per_step))
        return range(fewest, min(most, fewest + _MOST_CANDIDATES) + 1)  # not more: the caller tries each of them

    def _mismatch_with_rates(self, drafts: int) -> float:
        """Return how badly a possible number of verify steps, ``drafts``, fits the rates.

        Each rate times ``drafts`` is the count of accepted tokens at a position. For the true number the counts are nearly
        whole and add up to all accepted tokens. Deviations from both are added up, in tokens.
        """
        counts = [rate * drafts for rate in self.rates]
        return abs(sum(map(round, counts)) - self.accepted) + sum(abs(count - round(count)) for count in counts)


def _read_total_line(fields: str) -> SpecCounters | None:
    """Return the counters of one log line from before 0.8.

    ``fields`` is the text after the line's title. The accepted tokens in the line are not used: they include tokens after a
    rejected one, which were not emitted (``spec_decode_base_sampler.py``). The emitted tokens give the true count, since
    every verify step emits one token that is no draft token. Returns None if a figure is missing, or without a verify step.
    """
    matches = [re.search(pattern, fields) for pattern in _TOTAL_FIELDS]
    if not all(matches):
        return None
    tokens_per_step, drafted, emitted = (int(match[1]) for match in matches if match)
    drafts = drafted // tokens_per_step if tokens_per_step else 0
    return SpecCounters(drafts=drafts, draft_tokens=drafted, accepted_tokens=max(0, emitted - drafts)) if drafts else None


def _last_reading_per_start(totals: list[SpecCounters]) -> Iterator[SpecCounters]:
    """Yield the last reading of each start of the server.

    Counters that fall show a new start.
    """
    for reading, following in pairwise(totals):
        if following.draft_tokens < reading.draft_tokens:
            yield reading
    yield from totals[-1:]
