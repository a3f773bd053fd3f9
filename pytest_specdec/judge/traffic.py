"""Traffic: every answer of a run with its kind of request and what was drafted for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.judge.draft_steps import DraftStep, StepSum, steps, total
from pytest_specdec.model.workload import Route
from pytest_specdec.stats.request_params import penalties

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.captured_run import CapturedRun
    from pytest_specdec.model.transcript import Answer, Timing
    from pytest_specdec.model.workload import JSON, Request

__all__ = ["DraftedAnswer", "answers", "kinds"]

_LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
_IN_FLIGHT = (1, 2, 4, 8, 16)
_MOMENTS = 9
"""At which the requests in flight are counted, evenly over the time of one."""


_FORESEEABLE = {
    *("prompt", "messages", "chat_template_kwargs", "reasoning_effort", "max_tokens", "max_completion_tokens", "ignore_eos", "n"),
    *("temperature", "top_p", "top_k", "seed", "logprobs", "top_logprobs", "prompt_logprobs", "response_format", "stop"),
}
"""Fields under which a drafter that does not see them is about as right as ever; a bias or a penalty may fail every draft."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftedAnswer:
    """One answer with a single choice, and what was drafted for it."""

    name: str
    """Workload and request."""
    kinds: frozenset[str]
    """What its request is: ``requests with a grammar``."""
    prompts: frozenset[str]
    """By these names its prompt is known: answers that share one have the same task."""
    prompt: str
    """The first of them."""
    own: bool
    """Whether it is to the workload that the test sends."""
    grammar: bool
    foreseeable: bool
    """Whether nothing in its request bends the distribution away from what a drafter can foresee."""
    tokens: int
    drafted: bool | None
    """Whether any token was drafted for it; None where unknown."""
    accepted: int | None
    """Draft tokens that it took; None where unknown."""
    per_step: tuple[int, ...]
    """Draft tokens of every step with a draft; empty where unknown."""
    steps: tuple[DraftStep, ...]
    """Its verify steps, the last one left out; empty where unknown."""
    total: StepSum | None
    """All its verify steps together, as the server reports them; None where it does not: chunks of a stream run together under load."""
    request: str
    """Digest of the request: answers that share one were asked for in the same words."""
    company: int
    """Requests in flight with it, itself included."""


def answers(run: CapturedRun) -> tuple[DraftedAnswer, ...]:
    """Return the variant's answers over all workloads, those left out in which its settings say that nothing is drafted."""
    draft = run.whole.pair.variant.draft
    most = 1 if draft.depends_on_load else draft.most_requests
    parts = [part for part in run.parts if not most or part.workload.concurrency <= most]
    return tuple(answer for part in parts for answer in _of_part(part, own=part.workload.name == run.whole.workload.name))


def _of_part(part: Captured, *, own: bool) -> Iterator[DraftedAnswer]:
    requests = part.workload.by_id
    timings = [answer.timing for answer in part.speculative.answers if answer.timing is not None]
    for answer in part.speculative.answers:
        if answer.ok and len(answer.choices) == 1 and answer.request_id in requests:
            company = part.workload.concurrency if answer.timing is None else _in_flight(answer.timing, timings)
            yield _drafted(part, requests[answer.request_id], answer, company, own=own)


def _in_flight(timing: Timing, timings: Sequence[Timing]) -> int:
    """Return how many were in flight for three quarters of its time, itself included: a workload has fewer at its end than it says."""
    moments = [timing.sent_s + (timing.done_s - timing.sent_s) * (index + 0.5) / _MOMENTS for index in range(_MOMENTS)]
    return sorted(sum(other.sent_s <= moment <= other.done_s for other in timings) for moment in moments)[_MOMENTS // 4]


def _drafted(part: Captured, request: Request, answer: Answer, company: int, *, own: bool) -> DraftedAnswer:
    choice, counters = answer.choice, part.speculative.counters
    accepted = None if choice.windows is None else sum(choice.windows[1:]) - len(choice.windows[1:])
    drafted = None if counters is None else counters.drafts > 0
    if choice.windows is None and answer.counters is not None:
        accepted, drafted = answer.counters.accepted_tokens, answer.counters.draft_tokens > 0
    if choice.drafted is not None:
        drafted = any(choice.drafted)
    elif accepted:
        drafted = True
    return DraftedAnswer(
        name=f"{part.workload.name}/{request.id}",
        kinds=kinds(part, request, answer, company),
        prompt=request.prompt_key,
        prompts=frozenset({request.prompt_key, f"{part.workload.name}/{request.id.partition('#')[0]}"}),
        own=own,
        grammar=request.grammar is not None,
        foreseeable=request.body.keys() <= _FORESEEABLE and _number(request.body.get("temperature", 1.0)) <= 1.0,
        tokens=answer.tokens or 0,
        drafted=drafted,
        accepted=accepted,
        per_step=tuple(filter(None, choice.drafted or ())),
        steps=steps(answer),
        total=None if choice.drafted is None and answer.counters is None else total(answer),
        request=request.digest,
        company=company,
    )


def kinds(part: Captured, request: Request, answer: Answer, company: int) -> frozenset[str]:
    """Return every kind that a request is of, from a closed set of plural nouns; ``company`` requests were in flight, itself included."""
    body, prompt = request.body, answer.usage.prompt_tokens if answer.usage else len(answer.prompt_token_ids)
    named = {
        "requests with log-probabilities": body.get("logprobs") not in {None, False},
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
        "chat requests": request.route is Route.CHAT,
        "completions": request.route is Route.COMPLETIONS,
        "streamed answers": part.workload.stream,
        "answers in one piece": not part.workload.stream,
    }
    longer = {f"prompts of more than {tokens} tokens": prompt > tokens for tokens in _LENGTHS}
    busier = {f"requests with more than {most} in flight": company > most for most in _IN_FLIGHT}
    return frozenset(name for name, is_one in {**named, **longer, **busier}.items() if is_one)


def _number(value: JSON) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
