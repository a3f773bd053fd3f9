"""The acceptance length: tokens per verify step, with limits where the answers show it prompt by prompt."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scipy.special import stdtrit

if TYPE_CHECKING:
    from pytest_specdec.model.transcript import Transcript

__all__ = ["AcceptanceLength", "acceptance_length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceLength:
    """Tokens per verify step, the bonus or recovered token included."""

    tokens: float
    standard_error: float | None
    """Of its log, over prompts, which are its independent units; None where windows of at least two prompts are not known."""
    prompts: int
    """Prompts whose windows are known."""

    def at_least(self, error: float) -> float:
        """Return what the true length is below with probability ``error``; 0 without limits."""
        return 0.0 if self.standard_error is None else self.tokens * math.exp(-self._half(error))

    def at_most(self, error: float) -> float:
        """Return what the true length is above with probability ``error``; infinity without limits."""
        return math.inf if self.standard_error is None else self.tokens * math.exp(self._half(error))

    def _half(self, error: float) -> float:
        return -float(stdtrit(self.prompts - 1, error)) * (self.standard_error or 0.0)


def acceptance_length(transcript: Transcript) -> AcceptanceLength | None:
    """Return tokens over steps, of all prompts together; None where neither windows nor counters are known.

    From the windows of the answers: the ratio r = T / S of all tokens to all steps, steps that nothing was drafted for included, with the
    variance that counts prompts and not their steps, n / (n - 1) sum (t_i - r s_i)^2 / T^2 for its log (Cochran, Sampling Techniques,
    3rd edition, section 6.4), and Student's t with n - 1 degrees of freedom. Steps of one prompt depend on each other: as independent
    units they give 12 to 18 % false alarms at nominal 1 %. Without windows what the server counted, which
    leaves out steps without a draft and has no limits.
    """
    sums = [(sum(each), len(each)) for each in _by_prompt(transcript)]
    if sums:
        return _over_prompts(sums)
    counters = transcript.counters
    if counters is None or not counters.drafts:
        return None
    return AcceptanceLength(tokens=counters.mean_acceptance_length, standard_error=None, prompts=0)


def _over_prompts(sums: list[tuple[int, int]]) -> AcceptanceLength:
    """Take (tokens, steps) of each prompt."""
    tokens, steps, count = sum(t for t, _ in sums), sum(s for _, s in sums), len(sums)
    ratio = tokens / steps
    if count == 1:
        return AcceptanceLength(tokens=ratio, standard_error=None, prompts=1)
    squares = math.fsum((t - ratio * s) ** 2 for t, s in sums)
    return AcceptanceLength(tokens=ratio, standard_error=math.sqrt(count / (count - 1) * squares) / tokens, prompts=count)


def _by_prompt(transcript: Transcript) -> list[list[int]]:
    """Return each request's windows over all its passes, the prefill's and the last, which a limit may have cut, left out."""
    windows: dict[str, list[int]] = {}
    for answer in transcript.answers:
        for choice in answer.choices:
            windows.setdefault(answer.request_id, []).extend((choice.windows or ())[1:-1])
    return [each for each in windows.values() if each]
