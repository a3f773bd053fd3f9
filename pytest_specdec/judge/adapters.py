"""Adapters: requests with a LoRA adapter and without get what the baseline gives under the same one, whatever runs beside or before them.

The baseline, the same model without speculation, scores the tokens of each request under the request's own adapter. The judged arm is the
speculative server. A fault is named by what the requests with wrong tokens have in common: an adapter or none, and what ran beside or
before them.
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
    """Return a verdict for refused adapter requests; None without one.

    REFUSED if a boot of the baseline refuses one: there is nothing to compare with. Else FAIL if the judged arm refuses one, but answers
    some request without an adapter. If it answers none of these either, the later check for refusals of all kinds decides. This check
    comes first, since that one takes a 404 for an unknown model, here an adapter, for lost access.
    """
    adapted = {request.id for request in captured.workload.requests if request.adapter}
    by_baseline = [a for arm in captured.baseline_boots for a in arm.answers if a.refused and a.request_id in adapted]
    if by_baseline:
        headline = f"the baseline refuses requests with an adapter: {by_baseline[0].status}: {quote(by_baseline[0].error or '', 100)}"
        return say(captured, Outcome.REFUSED, headline, evidence=describe_refusals(by_baseline), cell=f"{by_baseline[0].status}")
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
    """Return the greedy judge's verdict, or a fault of draws or drafts.

    The greedy judge decides on the answers at temperature 0, and its verdict is given as this family's. Draws, the sampled answers, and
    the acceptance of drafts are checked only if it is PASS or INCONCLUSIVE.
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
    sampled_ids = [request.id for request in captured.workload.requests if request.adapter and not request.greedy]
    verdict = sampling.judge(select_requests(captured, sampled_ids)) if sampled_ids else None
    if verdict is None or verdict.outcome is not Outcome.FAIL:
        return None
    return restate(captured, verdict, headline=f"{DRAWN_WRONG}: {verdict.headline}", names=DRAWN_WRONG)


def circumstances(workload: Workload) -> dict[str, Circumstances]:
    """Return the circumstances of each request, by its id.

    Requests of one wave are in flight together, and those of earlier waves have been answered. A request is mixed if its wave has
    requests under other weights, and crossed if its own or an earlier wave has its prompt under other weights.
    """
    adapters_by_prompt: dict[str, set[str]] = {}
    by_id: dict[str, Circumstances] = {}
    for wave in workload.in_waves:
        adapters = {request.adapter for request in wave}
        # All prompts of a wave are entered before any is looked up, since its requests are in flight together.
        for request in wave:
            adapters_by_prompt.setdefault(request.prompt_key, set()).add(request.adapter)
        for request in wave:
            other_adapters = adapters_by_prompt[request.prompt_key] - {request.adapter}
            by_id[request.id] = Circumstances(adapter=request.adapter, is_mixed=len(adapters) > 1, is_crossed=bool(other_adapters))
    return by_id


def _name_by_circumstances(captured: Captured, verdict: Verdict) -> Mapping[str, object]:
    """Return this family's replacements for fields of the greedy judge's FAIL.

    They get a line with the number of wrong answers by circumstances, a request's adapter and the weights beside and before it. An answer
    is wrong if a token lies below the baseline's best one by more than the tolerance. If greedy fails by such tokens and
    :func:`_name_fault` has a name for their circumstances, that name and a headline are returned too.
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
    """Return the fault's name by circumstances; empty if none fits.

    ``wrong`` are the circumstances of wrong answers, ``scored`` those of all scored ones, once each. A crossed request is one whose prompt
    was asked under other weights too. A mixed one runs beside requests under other weights.
    """
    if not wrong:
        return ""
    # Only a crossed request can meet the cache of other weights. An uncrossed adapter request, if right, shows that adapters work.
    has_uncrossed_adapter = any(kind.adapter and not kind.is_crossed for kind in scored)
    if all(kind.is_crossed for kind in wrong) and has_uncrossed_adapter:
        return CACHE
    are_all_mixed = all(kind.is_mixed for kind in wrong)
    if all(kind.adapter for kind in wrong):
        return WRONG_MIXED if are_all_mixed else WRONG
    # Some wrong answers are without an adapter. If each ran beside other weights, these have reached it.
    return LEAK if are_all_mixed else ""


def _check_acceptance(captured: Captured) -> Verdict | None:
    """Return FAIL if next to no draft is accepted with an adapter.

    That is one verify step in a hundred at most, and surely less than without an adapter. None otherwise, and for the control, which does
    not draft.
    """
    if captured.is_control:
        return None
    adapters = {request.id: request.adapter for request in captured.workload.requests}
    answers = [answer for answer in captured.speculative.answers if answer.ok]
    without = count_steps(captured, [answer for answer in answers if not adapters[answer.request_id]])
    adapted = count_steps(captured, [answer for answer in answers if adapters[answer.request_id]])
    # A drafter need not have the adapter. It still has drafts accepted wherever the adapter leaves the model's best token as it was.
    if adapted.share > _NEVER:
        return None
    # Few steps may accept nothing by chance, and a poor drafter nothing anywhere: steps without an adapter are the measure.
    p_value = proportions.greater_than_other(without.accepting, without.steps, adapted.accepting, adapted.steps)
    if p_value > captured.alpha:
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

    Adapted are those to requests with an adapter. Mixed are all, with an adapter or without, that ran beside requests under other weights.
    """
    by_id = circumstances(captured.workload)
    kinds = [by_id[answer.request_id] for answer in captured.speculative.answers]
    adapted = [kind for kind in kinds if kind.adapter]
    mixed, adapters = sum(kind.is_mixed for kind in kinds), {kind.adapter for kind in adapted}
    return f"{verdict.headline}; {len(adapted)} of {len(kinds)} answers with one of {len(adapters)} adapters, {mixed} in mixed batches"
