"""Bursts: evidence that a server drafts, from the times at which the chunks of its streams arrive.

A server that drafts emits the tokens of one verify step together: as one chunk, or as chunks at next to no distance. Chunks so near to each
other are one group here. Two tests, both of which have to reject:

- *Coarser*: where a prompt is asked again and answered alike, more tokens come together both times than with the baseline on the same
  prompts (Mann and Whitney, Annals of Mathematical Statistics 18, 1947; one value per prompt, one-sided). Assumed: without drafting, and at
  equal load, the two have the same distribution.
- *Repeated*: the groups of two such answers end at the same tokens more often than ends that fall independently of each other: a and b of
  them among n places coincide a b / n times on average. What is above, prompt by prompt, is held against 0 by Student's t, since a busy
  client joins several tokens in a row and so spreads it more than single tokens would. Assumed: what joins chunks by chance, such as a busy
  client, machine or network, does so at any place of an answer alike.

Load that only the variant saw passes for the first and not for the second. A server or a proxy that always joins the same tokens, drafting
or not, passes for the second, and for the first only if the baseline is not served through it. Where the baseline's own stream comes in
pieces, nothing is known.
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

__all__ = ["LEVEL", "Bursts", "bursts"]

LEVEL = 1e-3
"""Chance, of each test, to reject where its assumption holds and nothing is drafted."""
_SHORT = 0.25
"""Share of the baseline's time per token; chunks nearer to each other than that are one group."""
_READ_S = 1e-4
"""Chunks that waited are read as near as that to each other (10 to 90 us each), whatever the server's pace."""
_WHOLE = 1.25
"""Tokens per group of a baseline whose stream still shows its steps: a little over 1, for tokens that end within a character."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bursts:
    """How a variant's streams arrived, compared with its baseline's."""

    tokens_per_step: float
    """Tokens of the variant that come together both times: an estimate of tokens per verify step, steps without a draft included."""
    baseline_tokens_per_step: float
    baseline_median: float
    """The same of the median prompt: some streams may have met a busy machine."""
    coarser_p: float
    repeated_p: float

    @property
    def known(self) -> bool:
        """Whether the baseline's stream comes token by token. Then the variant's may show its steps."""
        return self.baseline_median <= _WHOLE

    @property
    def drafting(self) -> bool:
        """Whether the stream is known and both tests reject."""
        return self.known and max(self.coarser_p, self.repeated_p) < LEVEL


def bursts(variant: Sequence[Stream], baseline: Sequence[Stream]) -> Bursts | None:
    """Compare the streams of two arms. None if one of them answered no prompt twice alike."""
    if not variant or not baseline:
        return None
    short_s = max(_READ_S, _SHORT * float(np.median([_token_s(stream) for stream in baseline])))
    pairs, baseline_pairs = _repeated_answers(variant, short_s), _repeated_answers(baseline, short_s)
    if not pairs or not baseline_pairs:
        return None
    from scipy.stats import mannwhitneyu  # noqa: PLC0415 - takes most of a second to import, and most servers count their drafts

    return Bursts(
        tokens_per_step=_tokens_per_step(pairs),
        baseline_tokens_per_step=_tokens_per_step(baseline_pairs),
        baseline_median=float(np.median([_tokens_per_step([pair]) for pair in baseline_pairs])),
        coarser_p=float(
            mannwhitneyu(
                [_tokens_per_step([pair]) for pair in pairs], [_tokens_per_step([pair]) for pair in baseline_pairs], alternative="greater"
            ).pvalue
        ),
        repeated_p=_above_zero_p([pair.coincidences for pair in pairs]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _RepeatedAnswer:
    """Two answers to a prompt, of the same text."""

    tokens: int
    first: frozenset[int]
    """Where its groups end, in characters; the end of the answer is left out."""
    second: frozenset[int]

    @property
    def coincidences(self) -> float:
        """Common ends, above the number expected of random ends. Random ends fall anywhere between two tokens."""
        places = max(self.tokens - 1, len(self.first | self.second))
        return len(self.first & self.second) - len(self.first) * len(self.second) / places if places else 0.0


def _above_zero_p(values: Sequence[float]) -> float:
    """Return the one-sided p-value of a mean of 0 (Student's t). 1 for one value, and for a mean not above 0."""
    mean = float(np.mean(values))
    if len(values) < 2 or mean <= 0.0:  # noqa: PLR2004 - a variance needs two
        return 1.0
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return float(stdtr(len(values) - 1, -mean / error)) if error else 0.0


def _repeated_answers(streams: Sequence[Stream], short_s: float) -> list[_RepeatedAnswer]:
    """Return two streams of each prompt's most frequent answer. These have the most groups: the others were disturbed more."""
    by_prompt: dict[int, list[Stream]] = {}
    for stream in streams:
        by_prompt.setdefault(stream.prompt, []).append(stream)
    pairs = []
    for answers in by_prompt.values():
        text, times = Counter(stream.text for stream in answers).most_common(1)[0]
        alike = [stream for stream in answers if stream.text == text]
        first, *rest = sorted((_ends(stream, short_s) for stream in alike), key=len, reverse=True)
        if times > 1:
            pairs.append(_RepeatedAnswer(tokens=alike[0].tokens, first=first, second=rest[0]))
    return pairs


def _token_s(stream: Stream) -> float:
    """Return the seconds per token after the first chunk."""
    return (stream.at_s[-1] - stream.at_s[0]) / max(1, stream.tokens - 1)


def _ends(stream: Stream, short_s: float) -> frozenset[int]:
    gaps = zip(stream.ends, stream.at_s, stream.at_s[1:], strict=False)
    return frozenset(end for end, at_s, next_s in gaps if next_s - at_s > short_s)


def _tokens_per_step(pairs: Sequence[_RepeatedAnswer]) -> float:
    """Return tokens per group, chunks grouped if together both times."""
    return sum(pair.tokens for pair in pairs) / sum(len(pair.first | pair.second) + 1 for pair in pairs)
