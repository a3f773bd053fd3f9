"""Traffic: every answer of a run, with the kinds of its request and its drafts.

A kind is a property by which drafting may go wrong, such as ``requests with a grammar``. An answer has windows if the server reports, or
its stream shows, the tokens of each verify step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.judge.draft_steps import DraftStep, StepSum, steps, total
from pytest_specdec.judge.logprob_lists import asked_top
from pytest_specdec.model.workload import Route
from pytest_specdec.stats.request_params import penalties

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.captured_run import CapturedRun
    from pytest_specdec.model.timing import Timing
    from pytest_specdec.model.transcript import Answer
    from pytest_specdec.model.workload import JSON, Request

CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
"""Limits, in tokens, by which prompts and contexts are grouped."""
IN_FLIGHT = (1, 2, 4, 8, 16)
"""Limits on the requests in flight, by which answers are grouped."""
_MOMENTS = 9
"""Moments at which the requests in flight are counted, spread evenly over the time of one."""
_FORESEEABLE = {
    *("prompt", "messages", "chat_template_kwargs", "reasoning_effort", "max_tokens", "max_completion_tokens", "ignore_eos", "n"),
    *("temperature", "top_p", "top_k", "seed", "logprobs", "top_logprobs", "prompt_logprobs", "response_format", "stop"),
}
"""Request fields that make a drafter no worse although it does not see them; a bias or a penalty may fail every draft."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftedAnswer:
    """One answer with a single choice, and the drafts for it."""

    name: str
    """Workload and request."""
    kinds: frozenset[str]
    """Kinds of its request, in words: ``requests with a grammar``."""
    tasks: frozenset[str]
    """Names of its task: ``prompt``, and workload and request id up to a ``#``. Answers that share one have the same task."""
    prompt: str
    """Key of its prompt: :attr:`Request.prompt_key`."""
    in_test_workload: bool
    """Whether it answers the workload that the test names."""
    grammar: bool
    foreseeable: bool
    """Whether nothing in its request bends the distribution away from a drafter's view."""
    tokens: int
    drafted: bool | None
    """Whether any token was drafted for it; None if unknown."""
    accepted: int | None
    """Accepted draft tokens; None if unknown."""
    per_step: tuple[int, ...]
    """Draft tokens of every step with a draft; empty if unknown."""
    steps: tuple[DraftStep, ...]
    """Its verify steps without the last, which a limit may have cut; empty if unknown."""
    total: StepSum | None
    """The sums over its verify steps; None unless the server itself reports drafts: steps told by chunks of a stream merge under load."""
    request: str
    """Digest of the request, equal for requests in the same words."""
    in_flight: int
    """Requests in flight during most of its time, itself included."""

    @property
    def is_plain(self) -> bool:
        """True if neither a grammar nor another field of its request bends the distribution."""
        return self.foreseeable and not self.grammar


def drafted_answers(run: CapturedRun) -> tuple[DraftedAnswer, ...]:
    """Return the variant's answers from workloads light enough for drafting.

    A workload is left out if it sends more requests at once than the variant's settings draft for. If the settings say that drafting
    depends on load, only workloads of one request at a time are left.
    """
    draft = run.whole.pair.variant.draft
    most = 1 if draft.depends_on_load else draft.most_requests  # 0 for no limit
    parts = [part for part in run.parts if not most or part.workload.concurrency <= most]
    test_workload = run.whole.workload.name  # the one that the test names: some comparisons use its answers alone
    return tuple(answer for part in parts for answer in _part_answers(part, in_test_workload=part.workload.name == test_workload))


def _part_answers(part: Captured, *, in_test_workload: bool) -> Iterator[DraftedAnswer]:
    """Yield the successful one-choice answers of one workload, with their drafts.

    ``in_test_workload`` is True for the workload that the test names. Without timing the workload's concurrency is taken for the requests
    in flight.
    """
    requests = part.workload.by_id
    timings = [answer.timing for answer in part.speculative.answers if answer.timing is not None]
    for answer in part.speculative.answers:
        if answer.ok and len(answer.choices) == 1 and answer.request_id in requests:
            in_flight = part.workload.concurrency if answer.timing is None else _count_in_flight(answer.timing, timings)
            yield _drafted_answer(part, requests[answer.request_id], answer, in_flight, in_test_workload=in_test_workload)


def _count_in_flight(timing: Timing, timings: Sequence[Timing]) -> int:
    """Return the requests in flight during most of an answer's time.

    At seven of nine moments spread over that time at least so many were in flight, the answer's own request included. ``timings`` are those
    of all answers to the workload: its concurrency says too much, since at a workload's end fewer requests are in flight.
    """
    moments = [timing.sent_s + (timing.done_s - timing.sent_s) * (index + 0.5) / _MOMENTS for index in range(_MOMENTS)]
    # The third smallest of the nine counts.
    return sorted(sum(other.sent_s <= moment <= other.done_s for other in timings) for moment in moments)[_MOMENTS // 4]


def _drafted_answer(part: Captured, request: Request, answer: Answer, in_flight: int, *, in_test_workload: bool) -> DraftedAnswer:
    """Return one answer with its drafts, from the best source for each figure.

    ``in_flight`` is the number of requests in flight during most of its time. ``in_test_workload`` says that the test names its workload.
    An answer is ``foreseeable`` if nothing in its request bends the target's distribution away from the drafter's.
    """
    choice = answer.choice
    accepted = None
    if choice.windows is not None:
        steps_tokens = choice.windows[1:]  # without the prefill's window
        accepted = sum(steps_tokens) - len(steps_tokens)  # one token of each verify step is no draft token
    elif answer.counters is not None:
        accepted = answer.counters.accepted_tokens
    # Else the windows are read from the chunks of a stream, which merge under load, so that their sums are of no use.
    reports_drafts = choice.drafted is not None or answer.counters is not None
    return DraftedAnswer(
        name=f"{part.workload.name}/{request.id}",
        kinds=request_kinds(part, request, answer, in_flight),
        prompt=request.prompt_key,
        # Answers have the same task if they have the same prompt, or if the ids of their requests are equal up to a "#".
        tasks=frozenset({request.prompt_key, f"{part.workload.name}/{request.id.partition('#')[0]}"}),
        in_test_workload=in_test_workload,
        grammar=request.grammar is not None,
        foreseeable=request.body.keys() <= _FORESEEABLE and _number(request.body.get("temperature", 1.0)) <= 1.0,
        tokens=answer.tokens or 0,
        drafted=_is_drafted(part, answer, accepted),
        accepted=accepted,
        per_step=tuple(filter(None, choice.drafted or ())),
        steps=steps(answer),
        total=total(answer) if reports_drafts else None,
        request=request.digest,
        in_flight=in_flight,
    )


def _is_drafted(part: Captured, answer: Answer, accepted: int | None) -> bool | None:
    """Return True if any token was drafted for an answer, by the best source.

    ``accepted`` is its number of accepted draft tokens, None if unknown. Returns None without any source.
    """
    if answer.choice.drafted is not None:
        return any(answer.choice.drafted)
    if accepted:
        return True
    # If nothing was accepted, drafts may all have been rejected. Only counters tell: its own, which servers report for answers without
    # verify windows, or else those of the workload, which cannot tell its answers apart.
    if answer.choice.windows is None and answer.counters is not None:
        return answer.counters.draft_tokens > 0
    counters = part.speculative.counters
    return None if counters is None else counters.drafts > 0


def request_kinds(part: Captured, request: Request, answer: Answer, in_flight: int) -> frozenset[str]:
    """Return the names of all kinds of one request, in words.

    They are plural nouns from a closed list, such as ``requests with a grammar``. ``in_flight`` is the number of requests in flight during
    most of the answer's time, its own included.
    """
    body, prompt = request.body, answer.prompt_tokens
    named = {
        "requests with log-probabilities": asked_top(request) is not None,
        "requests with log-probabilities of the prompt": body.get("prompt_logprobs") is not None,
        "requests with a grammar": request.grammar is not None,
        "requests with penalties": not penalties(body).neutral,
        "requests with a logit bias": bool(body.get("logit_bias")),
        "requests with stop strings": bool(body.get("stop")),
        "requests with top-p": _number(body.get("top_p", 1.0)) < 1.0,
        "requests with top-k": _number(body.get("top_k", 0)) > 0,
        "requests with min-p": _number(body.get("min_p", 0.0)) > 0.0,
        "requests above temperature 0": not request.greedy,
        "requests at temperature 0": request.greedy,
        "requests with a seed": request.seed is not None,
        "requests that draw without a seed": request.draws_unseeded,
        "requests that reason": any(choice.reasoning for choice in answer.choices),
        "chat requests": request.route is Route.CHAT,
        "completions": request.route is Route.COMPLETIONS,
        "streamed answers": part.workload.stream,
        "answers in one piece": not part.workload.stream,
    }
    longer = {f"prompts of more than {tokens} tokens": prompt > tokens for tokens in CONTEXTS}
    busier = {f"requests with more than {most} in flight": in_flight > most for most in IN_FLIGHT}
    alone = {"requests alone in flight": in_flight == 1}
    return frozenset(name for name, is_one in {**named, **longer, **busier, **alone}.items() if is_one)


def _number(value: JSON) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
