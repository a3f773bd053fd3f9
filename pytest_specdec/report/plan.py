"""The plan in a few lines, printed before anything boots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.model.plan import Placement, Role
from pytest_specdec.model.transcript import ScoringRoute
from pytest_specdec.model.workload import Family
from pytest_specdec.report.escape import printable
from pytest_specdec.report.progress import clock

if TYPE_CHECKING:
    from pytest_specdec.model.plan import Boot, Plan


def lines(plan: Plan, *, origin: str, replayed: bool) -> tuple[str, ...]:
    """Return the plan in a few lines.

    They show the judgements, their cost, and how the false-alarm budget is shared. ``origin`` is the run directory as
    a person would type it.
    """
    costs = (_cost(plan), *_further_passes(plan), *_asking_again(plan), *_enlargement_lines(plan), *_scoring(plan), *_attached_lines(plan))
    cost = () if replayed else tuple(f"  {line}" for line in costs)
    way = f"replay of {origin}" if replayed else f"capture into {origin}"
    first = f"specdec: {plan.config} · {plan.engine} {plan.model} · {plan.depth.value} · {way}"
    own = (f"  {line}" for line in own_prompts(plan))
    return tuple(printable(line) for line in (first, f"  {_work(plan)}", *own, *cost, f"  {_shares(plan)}"))


def _work(plan: Plan) -> str:
    names = ", ".join(pair.name for pair in plan.pairs)
    workloads = {judgement.workload for judgement in plan.judgements}
    return f"{_n(len(plan.pairs), 'pair')} ({names}) x {_n(len(workloads), 'workload')} = {_n(len(plan.judgements), 'judgement')}"


def own_prompts(plan: Plan) -> tuple[str, ...]:
    """Return a line counting the requests from the config's prompts.

    Empty without any.
    """
    own, total = sum(plan.own_requests.values()), sum(len(workload.requests) for workload in plan.workloads)
    return (f"{own:,} of {_n(total, 'request')} are your own prompts, in {_n(len(plan.own_requests), 'workload')}",) if own else ()


def _cost(plan: Plan) -> str:
    started = [boot for boot in plan.boots if not boot.attached]
    visited = [boot for boot in plan.boots if boot.attached]
    boots = [f"{_n(len(started), 'boot')} ({', '.join(map(_arm, started))})"] if started else []
    visits = [f"{_n(len(visited), 'visit')} of attached servers ({', '.join(map(_arm, visited))})"] if visited else []
    about = f"about {clock(plan.estimate_s)}" + (f" ({plan.rates.source})" if plan.rates.source else "")
    return f"{' and '.join([*boots, *visits])}{_placement(plan)}, {_requests(plan)}, at most {plan.tokens:,} tokens an arm, {about}"


_COSTLY = {Family.SAMPLING, Family.SPEED}
"""Families that need many tokens; all others together are to be cheap."""


def _requests(plan: Plan) -> str:
    """Return a text counting the requests sent to an arm.

    It also counts them without those that sampling and speed alone are judged by.
    """
    families: dict[str, set[Family]] = {}
    for judgement in plan.judgements:
        families.setdefault(judgement.workload, set()).add(judgement.family)
    counts = {w.name: len(w.requests) * w.passes for w in plan.workloads if w.name in families}
    needing = {name for name, row in plan.rows.items() if not row.whole_run} - _COSTLY
    others = sum(count for name, count in counts.items() if families[name] & needing)
    total = sum(counts.values())
    return _n(total, "request") + (f" ({others:,} of them not for sampling or speed)" if others < total else "")


def _further_passes(plan: Plan) -> tuple[str, ...]:
    """Return a line on the passes added by a noisy machine.

    The estimate is of the passes that are taken in any case.
    """
    more = plan.further_tokens
    return (f"timed passes are repeated where they vary too much: at most {more:,} tokens an arm besides",) if more else ()


def _asking_again(plan: Plan) -> tuple[str, ...]:
    """Return a line on the time for open wrong-token counts.

    Most runs leave none.
    """
    return (f"asking again what a count of wrong tokens leaves open may add up to {clock(plan.again_s)}",) if plan.again_s else ()


def _enlargement_lines(plan: Plan) -> tuple[str, ...]:
    """Return a line on the requests added for long boots.

    The depth alone has fewer.
    """
    if not plan.enlarged:
        return ()
    sent = sum(len(plan.workload(name).requests) for name in plan.enlarged)
    usual = sum(plan.enlarged.values())
    return (f"a boot takes about {clock(plan.rates.boot_s)}, so each arm is sent {_n(sent, 'sampled request')} instead of {usual:,}",)


def _attached_lines(plan: Plan) -> tuple[str, ...]:
    """Return lines on the changes made by attached servers.

    There is one boot, and some workloads are not sent.
    """
    within = ("within one boot: the control is the baseline's server, asked again",) if plan.within_one_boot else ()
    by_reason: dict[str, list[str]] = {}
    for name, reason in plan.withheld.items():
        by_reason.setdefault(reason, []).append(name)
    return (*within, *(f"NOT SENT: {', '.join(names)}: {reason}" for reason, names in by_reason.items()))


def _scoring(plan: Plan) -> tuple[str, ...]:
    """Return a line on the cost of a request per token.

    It is shown before anybody waits for the scores.
    """
    if plan.route is not ScoringRoute.CONTINUATIONS or not plan.scored_tokens:
        return ()
    return (f"SCORES BY ONE-TOKEN CONTINUATIONS: a request per token, at most {_n(plan.scored_tokens, 'request')} besides the answers",)


def _placement(plan: Plan) -> str:
    if plan.placement is Placement.SIDE_BY_SIDE:
        return f" side by side, {plan.servers} servers at once" + (f" ({plan.placement_reason})" if plan.placement_reason else "")
    return f" in turn ({plan.placement_reason})" if plan.placement_reason else ""


def _arm(boot: Boot) -> str:
    if boot.also_baseline:
        return "baseline and control" + (" for speed" if boot.timed else "")
    name = f"draft model {boot.arm} alone" if boot.role is Role.DRAFT else boot.arm
    if boot.number > 1:
        return f"{name} again"
    return f"{name} for speed" if boot.timed else f"{name} with a small cache" if boot.small_cache else name


def _shares(plan: Plan) -> str:
    shares = {judgement.family.value: judgement.alpha for judgement in plan.judgements if judgement.alpha}
    if not shares:
        return "false-alarm share of each test: none, all judges are exact"
    together = ", ".join(f"{chance:.2g} of {budget.value}" for budget, chance in plan.red_by_chance.items())
    return (
        f"false-alarm share of each test: {', '.join(f'{name} {alpha:.2g}' for name, alpha in shares.items())}; red by chance: {together}"
    )


def _n(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"
