"""Adapters: requests with a LoRA adapter and without get what the baseline gives under the same one, whatever runs beside or before them.

The baseline scores the tokens of a request under the adapter that it asks for. A fault is named by what the requests with wrong tokens
have in common: an adapter or none, and what ran beside or before them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.judge import greedy, sampling
from pytest_specdec.judge.accepting_steps import count_steps
from pytest_specdec.judge.greedy_gap import scored_answers
from pytest_specdec.judge.liveness import server_failure
from pytest_specdec.judge.prerequisites import describe_refusals, refusal
from pytest_specdec.judge.state import select_requests
from pytest_specdec.judge.tolerance import tolerance
from pytest_specdec.judge.verdicts import quote, restate, say
from pytest_specdec.model.verdict import Example, Outcome, Symptom
from pytest_specdec.stats import proportions

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.verdict import Verdict
    from pytest_specdec.model.workload import Workload

__all__ = ["judge"]

WRONG = "answers of adapter requests are wrong"
WRONG_MIXED = f"{WRONG}, in batches with other adapters alone"
LEAK = "an adapter's weights reach a request without it"
CACHE = "answers of one adapter come from the cache of another"
DRAWN_WRONG = "sampled answers of adapter requests are wrong"
UNSERVED = "requests with an adapter are refused"
UNACCEPTED = "drafts are never accepted with an adapter"

_NEVER = 0.01
"""Share of verify steps with an accepted draft token up to which drafts count as never accepted: a drafter without the adapter has some
accepted wherever the adapter leaves the model's best token as it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """A request's adapter, and the other weights beside and before it."""

    adapter: str
    """Empty for the model without one."""
    is_mixed: bool
    """Whether requests under other weights were in flight with it."""
    is_crossed: bool
    """Whether its prompt had been asked, or was being asked, under other weights."""

    def __str__(self) -> str:
        weights = "with an adapter" if self.adapter else "without"
        return f"{weights}{', mixed' if self.is_mixed else ''}{', prompt asked under other weights' if self.is_crossed else ''}"


def judge(captured: Captured) -> Verdict:
    """Return the verdict on answers to requests with adapters and without.

    A server failure comes first, then refused adapters, other refusals and the answers. Tokens at temperature 0 are judged by scores, as
    everywhere (judge/greedy.py), and sampled ones with an adapter by the bets of judge/sampling; each answer is scored under its own
    adapter. FAIL too if adapters are refused that the baseline serves. Acceptance with an adapter may be lower than without, since a
    drafter need not have it; next to none fails by an exact test at the captured share of alpha.
    """
    return server_failure(captured) or _check_refused(captured) or refusal(captured) or _judge_tokens(captured)


def _check_refused(captured: Captured) -> Verdict | None:
    """Return FAIL if adapters are refused, REFUSED if by the baseline.

    REFUSED if a boot of the baseline refuses a request with an adapter: there is nothing to compare with. Else FAIL if the judged arm
    refuses one, and None if it refuses none. This comes before the check for refusals of all kinds, to which a 404 for an unknown model
    looks like lost access. None too if the arm answers no request without an adapter either: that check decides then.
    """
    adapted = {request.id for request in captured.workload.requests if request.adapter}
    of_baseline = [a for arm in captured.baseline_boots for a in arm.answers if a.refused and a.request_id in adapted]
    if of_baseline:
        headline = f"the baseline refuses requests with an adapter: {of_baseline[0].status}: {quote(of_baseline[0].error or '', 100)}"
        return say(captured, Outcome.REFUSED, headline, evidence=describe_refusals(of_baseline), cell=f"{of_baseline[0].status}")
    refused = [answer for answer in captured.speculative.answers if answer.refused and answer.request_id in adapted]
    answers_others = any(answer.ok for answer in captured.speculative.answers if answer.request_id not in adapted)
    if not refused or not answers_others:
        return None
    first = refused[0]
    return say(
        captured,
        Outcome.FAIL,
        f"{UNSERVED}: {len(refused)} of {len(adapted)}, which the baseline answers; first: request {first.request_id}, "
        f"{first.status}: {quote(first.error or '', 100)}",
        evidence=describe_refusals(refused),
        cell=f"{len(refused)} refused",
        names=UNSERVED,
        example=Example(symptom=Symptom.UNANSWERED, request_id=first.request_id, pass_index=first.pass_index),
        figures={"refused_requests": float(len(refused))},
    )


def _judge_tokens(captured: Captured) -> Verdict:
    """Return greedy's verdict under this family's names, or a fault of draws or drafts.

    Draws and drafts are judged only if greedy's verdict is PASS or INCONCLUSIVE.
    """
    part = select_requests(captured, [request.id for request in captured.workload.requests if request.greedy])
    verdict = greedy.judge(part)
    if verdict.outcome is Outcome.FAIL:
        return restate(captured, verdict, **_name_by_circumstances(part, verdict))
    if verdict.outcome in {Outcome.PASS, Outcome.INCONCLUSIVE}:
        return (
            _check_draws(captured) or _check_acceptance(captured) or restate(captured, verdict, headline=_describe_pass(captured, verdict))
        )
    return restate(captured, verdict)


def _check_draws(captured: Captured) -> Verdict | None:
    """Return FAIL if sampled tokens with an adapter are surely not the baseline's.

    None otherwise: few are drawn, so that less than an alarm says nothing.
    """
    drawn = [request.id for request in captured.workload.requests if request.adapter and not request.greedy]
    verdict = sampling.judge(select_requests(captured, drawn)) if drawn else None
    if verdict is None or verdict.outcome is not Outcome.FAIL:
        return None
    return restate(captured, verdict, headline=f"{DRAWN_WRONG}: {verdict.headline}", names=DRAWN_WRONG)


def circumstances(workload: Workload) -> dict[str, Circumstances]:
    """Return the circumstances of each request, by its id.

    Requests of one wave are in flight together, and those of earlier waves have been answered.
    """
    adapters_by_prompt: dict[str, set[str]] = {}
    by_id: dict[str, Circumstances] = {}
    for wave in workload.in_waves:
        adapters = {request.adapter for request in wave}
        for request in wave:
            adapters_by_prompt.setdefault(request.prompt_key, set()).add(request.adapter)
        for request in wave:
            others = adapters_by_prompt[request.prompt_key] - {request.adapter}
            by_id[request.id] = Circumstances(adapter=request.adapter, is_mixed=len(adapters) > 1, is_crossed=bool(others))
    return by_id


def _name_by_circumstances(captured: Captured, verdict: Verdict) -> Mapping[str, object]:
    """Return the fields to change in greedy's failure.

    They are a line with the number of wrong answers by circumstances, put after the first three short lines. If greedy fails by wrong
    tokens and :func:`_name_fault` has a name for these circumstances, they are that name and a headline too.
    """
    peers = [answer for arm in captured.baseline_boots for answer in scored_answers(arm, captured.scores.get(arm.arm, ()))]
    allowed, scored = tolerance(captured, peers), scored_answers(captured.speculative, captured.scores.get(captured.arm, ()))
    by_id = circumstances(captured.workload)
    counts = Counter(by_id[one.answer.request_id] for one in scored)
    wrong = Counter(by_id[one.answer.request_id] for one in scored if any(gap > allowed.gap for gap in one.gaps))
    line = f"wrong        {', '.join(f'{wrong[kind]} of {count} {kind}' for kind, count in counts.items() if wrong[kind])}"
    fields: dict[str, object] = {"short": (*verdict.short[:3], line), "evidence": (*verdict.evidence, line)}
    name = _name_fault(wrong, counts) if greedy.is_by_wrong_tokens(verdict) else ""
    if not name:
        return fields
    headline = f"{name}: {wrong.total()} of {counts.total()} answers hold a wrong token; {verdict.headline}"
    return {**fields, "headline": headline, "names": name}


def _name_fault(wrong: Collection[Circumstances], scored: Collection[Circumstances]) -> str:
    """Return the fault's name by the circumstances of wrong answers, else nothing.

    ``wrong`` are the circumstances of wrong answers, ``scored`` those of all scored ones, once each. CACHE if the prompts of all wrong
    answers were asked under other weights too, though some adapter requests have prompts that were not. Else WRONG if all wrong answers are
    of adapter requests, WRONG_MIXED if all of these ran beside requests under other weights. LEAK if some are of requests without an
    adapter, and all ran beside requests under other weights.
    """
    if not wrong:
        return ""
    has_uncrossed = any(kind.adapter and not kind.is_crossed for kind in scored)
    if has_uncrossed and all(kind.is_crossed for kind in wrong):
        return CACHE
    are_all_mixed = all(kind.is_mixed for kind in wrong)
    if all(kind.adapter for kind in wrong):
        return WRONG_MIXED if are_all_mixed else WRONG
    return LEAK if are_all_mixed else ""


def _check_acceptance(captured: Captured) -> Verdict | None:
    """Return FAIL if next to no draft is accepted with an adapter.

    With an adapter, at most a hundredth of the verify steps accept a draft token, a smaller share than without by Fisher's exact test at
    ``captured.alpha``. None otherwise, and for the control, which does not draft.
    """
    if captured.is_control:
        return None
    adapters = {request.id: request.adapter for request in captured.workload.requests}
    answers = [answer for answer in captured.speculative.answers if answer.ok]
    without = count_steps(captured, [answer for answer in answers if not adapters[answer.request_id]])
    adapted = count_steps(captured, [answer for answer in answers if adapters[answer.request_id]])
    p_value = proportions.greater_than_other(without.accepting, without.steps, adapted.accepting, adapted.steps)
    if adapted.share > _NEVER or p_value > captured.alpha:
        return None
    lines = [
        f"{name or 'no adapter'}: {count_steps(captured, [a for a in answers if adapters[a.request_id] == name])}"
        for name in dict.fromkeys(adapters.values())
    ]
    return say(
        captured,
        Outcome.FAIL,
        f"{UNACCEPTED}: {adapted} accepted a draft token, {without} without one",
        short=(*lines, f"by chance    p = {p_value:.2g}"),
        evidence=lines,
        cell=f"acceptance {without.share:.0%}, with an adapter {adapted.share:.0%}",
        names=UNACCEPTED,
        figures={"accepting_steps": without.share, "accepting_steps_with_adapter": adapted.share, "p_value": p_value},
    )


def _describe_pass(captured: Captured, verdict: Verdict) -> str:
    """Return greedy's headline, with the numbers of adapted and mixed answers.

    Adapted are those to requests with an adapter. Mixed are all that ran beside requests under other weights, without an adapter too.
    """
    by_id = circumstances(captured.workload)
    kinds = [by_id[answer.request_id] for answer in captured.speculative.answers]
    adapted = [kind for kind in kinds if kind.adapter]
    mixed, adapters = sum(kind.is_mixed for kind in kinds), {kind.adapter for kind in adapted}
    return f"{verdict.headline}; {len(adapted)} of {len(kinds)} answers with one of {len(adapters)} adapters, {mixed} in mixed batches"
