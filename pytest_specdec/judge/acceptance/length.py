"""The accepted length of an arm: tokens per verify step over its prompts, with limits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scipy.special import stdtrit

from pytest_specdec.gates.rulings import PROVEN_ERROR
from pytest_specdec.judge.draft_steps import drafted_total, total

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_specdec.judge.draft_steps import StepSum
    from pytest_specdec.model.pair import Draft
    from pytest_specdec.model.transcript import Answer, Transcript
    from pytest_specdec.model.workload import Workload

__all__ = ["AcceptanceLength", "acceptance_length", "describe_length", "drafted_length", "totals"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceLength:
    """Tokens per verify step, the bonus or recovered token included."""

    tokens: float
    standard_error: float | None
    """Of the log of ``tokens``, over prompts, which are taken as independent units; None if steps are known of fewer than two prompts."""
    prompts: int
    """Prompts whose verify steps the server reported; requests with one prompt count together."""

    def at_least(self, error: float) -> float:
        """Return the lower confidence limit of the true length.

        The true length is below it with probability ``error``. Returns 0 without a standard error.
        """
        return 0.0 if self.standard_error is None else self.tokens * math.exp(-self._half_width(error))

    def at_most(self, error: float) -> float:
        """Return the upper confidence limit of the true length.

        The true length is above it with probability ``error``. Returns infinity without a standard error.
        """
        return math.inf if self.standard_error is None else self.tokens * math.exp(self._half_width(error))

    def _half_width(self, error: float) -> float:
        """Return the distance of a one-sided limit from the log of the length."""
        return -float(stdtrit(self.prompts - 1, error)) * (self.standard_error or 0.0)


def acceptance_length(transcript: Transcript, workload: Workload) -> AcceptanceLength | None:
    """Return tokens per verify step, over all requests together.

    It is the ratio r = T / S of all tokens to all verify steps of the answers, steps without a draft included. The variance of its log is n
    / (n - 1) sum (t_i - r s_i)^2 / T^2 over n prompts with t_i tokens in s_i steps each (Cochran, Sampling Techniques, 3rd edition,
    section 6.4), with Student's t of n - 1 degrees of freedom. Prompts are the units because steps of one prompt depend on each other: as
    independent units they give 12 to 18 % false alarms at nominal 1 %. ``workload`` says which requests have the same prompt.

    If the answers show no steps, the server's counters are used, which leave out steps without a draft and give no limits. Returns None
    without either.
    """
    sums = totals(transcript)
    if sums:
        return _over_prompts(sums, workload)
    counters = transcript.counters
    if counters is None or not counters.drafts:
        return None
    return AcceptanceLength(tokens=counters.mean_acceptance_length, standard_error=None, prompts=0)


def drafted_length(transcript: Transcript, workload: Workload, draft: Draft) -> AcceptanceLength | None:
    """Return tokens per verify step with a draft, over all requests together.

    Other projects count in this way: 1 + (accepted draft tokens) / (steps with a draft). Its error is estimated as in
    :func:`acceptance_length`. Returns None if it is unknown of some verify steps whether they had a draft, or if none had one.
    """

    def sum_drafted(answer: Answer) -> StepSum | None:
        return drafted_total(answer, every_step=draft.kind.every_step)

    # The steps of such an answer are known, but not which of them had a draft.
    if any(total(answer) is not None and sum_drafted(answer) is None for answer in transcript.answers):
        return None
    sums = {request_id: of_request for request_id, of_request in totals(transcript, sum_drafted).items() if of_request.steps}
    return _over_prompts(sums, workload) if sums else None


def totals(transcript: Transcript, count: Callable[[Answer], StepSum | None] = total) -> Mapping[str, StepSum]:
    """Return each request's tokens and verify steps, over all its passes.

    ``count`` gives the sums of one answer, or None if its steps are unknown. Requests without known steps are left out.
    """
    sums: dict[str, StepSum] = {}
    for answer in transcript.answers:
        answer_sum = count(answer)
        if answer_sum is not None:
            sums[answer.request_id] = sums[answer.request_id] + answer_sum if answer.request_id in sums else answer_sum
    return sums


def _over_prompts(by_request: Mapping[str, StepSum], workload: Workload) -> AcceptanceLength:
    """Return the length and the error of its log, from tokens and steps by request.

    Requests with the same prompt are one unit, and one that the workload lacks is a unit of its own. The error is None for a single prompt.
    """
    prompts = {request.id: request.prompt_key for request in workload.requests}
    sums: dict[str, StepSum] = {}
    for request_id, of_request in by_request.items():
        prompt = prompts.get(request_id, request_id)
        sums[prompt] = sums[prompt] + of_request if prompt in sums else of_request
    tokens, steps, count = sum(unit.tokens for unit in sums.values()), sum(unit.steps for unit in sums.values()), len(sums)
    length = tokens / steps
    if count == 1:
        return AcceptanceLength(tokens=length, standard_error=None, prompts=1)
    # The length is a ratio of sums over prompts, and this the usual error of such a ratio (Cochran, Sampling Techniques, section 6.4). It
    # comes from each prompt's tokens beyond those that its steps let expect. Divided by all steps it would be the error of the length
    # itself. Divided by all tokens, which are length times steps, it is relative: the error of its log.
    squares = math.fsum((unit.tokens - length * unit.steps) ** 2 for unit in sums.values())
    log_error = math.sqrt(count / (count - 1) * squares) / tokens
    return AcceptanceLength(tokens=length, standard_error=log_error, prompts=count)


def describe_length(length: AcceptanceLength | None) -> str:
    """Return the length with its limits, as in ``3.08 [2.91, 3.26] tokens per step``."""
    if length is None:
        return "unknown tokens per step"
    has_limits = length.standard_error is not None
    limits = f" [{length.at_least(PROVEN_ERROR):.2f}, {length.at_most(PROVEN_ERROR):.2f}]" if has_limits else ""
    return f"{length.tokens:.2f}{limits} tokens per step"
