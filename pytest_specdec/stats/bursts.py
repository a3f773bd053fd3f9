"""Bursts: evidence that a server drafts, from the times at which the chunks of its streams arrive.

A server that drafts emits the tokens of one verify step together: as one chunk, or as chunks at next to no distance. Chunks so near to each
other are one group here. Two tests must both reject:

- *Coarser*: a prompt is sent twice and answered alike, and more tokens come together both times than with the baseline on the same prompts
  (Mann and Whitney, Annals of Mathematical Statistics 18, 1947; one value per prompt, one-sided). It assumes that the two have the same
  distribution without drafting, at equal load.
- *Repeated*: the groups of two such answers end at the same tokens more often than independent ends would: a and b of them among n places
  coincide a b / n times on average. The excess, prompt by prompt, is compared with 0 by Student's t, since a busy client joins several
  tokens in a row and so spreads it more than single tokens would. It assumes that a busy client, machine or network joins chunks at any
  place of an answer alike.

Load on the variant alone makes the first test reject, but not the second. A server or a proxy that always joins the same tokens, drafting
or not, makes the second reject, and the first only if the baseline is not served through it. If the baseline's own stream comes in groups,
nothing is known.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import stdtr

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.model.transcript import Stream

__all__ = ["LEVEL", "Bursts", "compare_streams"]

LEVEL = 1e-3
"""Probability that a test rejects if its assumption holds and nothing is drafted."""
_SHORT = 0.25
"""Fraction of the baseline's time per token; chunks nearer to each other than that are one group."""
_READ_S = 1e-4
"""Seconds between chunks that waited and are read one after the other: 10 to 90 us were measured, at any pace of the server."""
_ONE_BY_ONE = 1.25
"""Tokens per group of a baseline whose stream still shows its steps: a little over 1, for tokens that end within a character."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bursts:
    """How a variant's streams arrived, compared with its baseline's."""

    tokens_per_step: float
    """Tokens of the variant that come together both times: an estimate of tokens per verify step, steps without a draft included."""
    baseline_tokens_per_step: float
    baseline_median: float
    """The baseline's tokens per group at the median prompt, which streams disturbed by a busy machine do not move."""
    coarser_p: float
    repeated_p: float

    @property
    def known(self) -> bool:
        """True if the baseline's stream comes token by token.

        A group of the variant's tokens is then evidence of a verify step; else nothing is known.
        """
        return self.baseline_median <= _ONE_BY_ONE

    @property
    def drafting(self) -> bool:
        """True if the streams show steps and both tests reject."""
        return self.known and max(self.coarser_p, self.repeated_p) < LEVEL


def compare_streams(variant: Sequence[Stream], baseline: Sequence[Stream]) -> Bursts | None:
    """Return the comparison of two arms' streams, by both tests.

    ``variant`` and ``baseline`` are streams of the same prompts, each prompt sent several times to either arm, a server. None if an arm
    gave no prompt the same answer twice.
    """
    if not variant or not baseline:
        return None
    # Chunks not further apart are one group: a fraction of the baseline's time per token, at least that between two reads of a client.
    short_s = max(_READ_S, _SHORT * float(np.median([_token_s(stream) for stream in baseline])))
    pairs, baseline_pairs = _repeated_answers(variant, short_s), _repeated_answers(baseline, short_s)
    if not pairs or not baseline_pairs:
        return None
    from scipy.stats import mannwhitneyu  # noqa: PLC0415 - takes most of a second to import, and most servers count their drafts

    by_prompt, baseline_by_prompt = ([_tokens_per_step([pair]) for pair in arm] for arm in (pairs, baseline_pairs))
    return Bursts(
        tokens_per_step=_tokens_per_step(pairs),
        baseline_tokens_per_step=_tokens_per_step(baseline_pairs),
        baseline_median=float(np.median(baseline_by_prompt)),
        coarser_p=float(mannwhitneyu(by_prompt, baseline_by_prompt, alternative="greater").pvalue),
        # The second test: whether ends of groups coincide more often than by chance, in the variant's answers alone.
        repeated_p=_above_zero_p([pair.coincidences for pair in pairs]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _RepeatedAnswer:
    """Two answers to one prompt with the same text."""

    tokens: int
    first: frozenset[int]
    """Ends of the first answer's groups, in characters, without the end of the answer."""
    second: frozenset[int]
    """The same of the second answer."""

    @property
    def coincidences(self) -> float:
        """The number of common group ends less the number expected by chance.

        With a and b ends placed at random among n places, a b / n coincide on average.
        """
        # A group may end between any two tokens. The server's count of tokens may leave fewer places than ends were seen.
        places = max(self.tokens - 1, len(self.first | self.second))
        if not places:
            return 0.0
        return len(self.first & self.second) - len(self.first) * len(self.second) / places


def _above_zero_p(values: Sequence[float]) -> float:
    """Return the p-value of a mean of at most 0.

    It is one-sided, by Student's t over ``values``, and 1 for a single value and for a mean not above 0. Equal values have no spread, and
    have the p-value of the sign test.
    """
    mean = float(np.mean(values))
    if len(values) < 2 or mean <= 0.0:  # noqa: PLR2004 - a variance needs two
        return 1.0
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return float(stdtr(len(values) - 1, -mean / error)) if error else 0.5 ** len(values)


def _repeated_answers(streams: Sequence[Stream], short_s: float) -> list[_RepeatedAnswer]:
    """Return two equal answers to each prompt, with their groups' ends.

    Chunks ``short_s`` seconds apart or less are one group. The answers are two with the prompt's most frequent text, those with the most
    groups, since disturbances only join chunks. Prompts without two equal answers are left out.
    """
    by_prompt: dict[int, list[Stream]] = {}
    for stream in streams:
        by_prompt.setdefault(stream.prompt, []).append(stream)
    pairs = []
    for answers in by_prompt.values():
        text, count = Counter(stream.text for stream in answers).most_common(1)[0]
        alike = [stream for stream in answers if stream.text == text]
        first, *others = sorted((_ends(stream, short_s) for stream in alike), key=len, reverse=True)
        if count > 1:
            pairs.append(_RepeatedAnswer(tokens=alike[0].tokens, first=first, second=others[0]))
    return pairs


def _token_s(stream: Stream) -> float:
    """Return the seconds per token after the first chunk."""
    return (stream.at_s[-1] - stream.at_s[0]) / max(1, stream.tokens - 1)


def _ends(stream: Stream, short_s: float) -> frozenset[int]:
    """Return the ends of a stream's groups, in characters, without the answer's end."""
    gaps = zip(stream.ends, stream.at_s, stream.at_s[1:], strict=False)
    return frozenset(end for end, at_s, next_s in gaps if next_s - at_s > short_s)


def _tokens_per_step(pairs: Sequence[_RepeatedAnswer]) -> float:
    """Return tokens per group of chunks that came together both times."""
    return sum(pair.tokens for pair in pairs) / sum(len(pair.first | pair.second) + 1 for pair in pairs)
