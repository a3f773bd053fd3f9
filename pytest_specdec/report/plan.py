"""The plan in a few lines, printed before anything boots.

A pair is a variant, a server with speculation, and the baseline, the same model without it. A judgement is one test of a pair on the
answers to a workload, a set of requests. A boot is one start of a server. An arm is what a boot serves as: the baseline, its control (a
second boot, to measure noise), or a variant. Scoring reads answers' token probabilities from the baseline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.model.plan import ROUNDS, Placement, Role
from pytest_specdec.model.transcript import ScoringRoute
from pytest_specdec.model.workload import Family, Need
from pytest_specdec.prompts.context import long_prompt, prompt_length, scored_prompt_tokens
from pytest_specdec.report.escape import printable
from pytest_specdec.report.progress import clock, plural

if TYPE_CHECKING:
    from pytest_specdec.model.plan import Boot, Plan
    from pytest_specdec.model.workload import Workload


def lines(plan: Plan, *, origin: str, replayed: bool) -> tuple[str, ...]:
    """Return the plan in the lines printed before anything boots.

    They show the judgements, the config's own prompts, golden floors (least accepted lengths from a file), the cost of the capture, and
    each test's share of the false-alarm budget. ``origin`` is the run directory, as a person would type it. If ``replayed``, stored answers
    are judged again, and no cost is shown.
    """
    costs = (
        _describe_cost(plan),
        *_process_lines(plan),
        *_old_engine_lines(plan),
        *_further_pass_lines(plan),
        *_repeat_lines(plan),
        *_enlargement_lines(plan),
        *_scoring_lines(plan),
        *_long_prompt_lines(plan),
        *_attached_lines(plan),
    )
    cost = () if replayed else tuple(f"  {line}" for line in costs)
    source = f"replay of {origin}" if replayed else f"capture into {origin}"
    title = f"specdec: {plan.config} · {plan.engine} {plan.model} · {plan.depth.value} · {source}"
    own_lines = (f"  {line}" for line in (*own_prompts(plan), *map(str, plan.golden)))
    return tuple(printable(line) for line in (title, f"  {_describe_work(plan)}", *own_lines, *cost, f"  {_describe_shares(plan)}"))


def _describe_work(plan: Plan) -> str:
    """Return the numbers of pairs, workloads and judgements."""
    names = ", ".join(pair.name for pair in plan.pairs)
    workloads = {judgement.workload for judgement in plan.judgements}
    return (
        f"{plural(len(plan.pairs), 'pair')} ({names}) x {plural(len(workloads), 'workload')} = {plural(len(plan.judgements), 'judgement')}"
    )


def own_prompts(plan: Plan) -> tuple[str, ...]:
    """Return a line counting the requests from the config's own prompts; () without any."""
    own_count, total = sum(plan.own_requests.values()), sum(len(workload.requests) for workload in plan.workloads)
    return (
        (f"{own_count:,} of {plural(total, 'request')} are your own prompts, in {plural(len(plan.own_requests), 'workload')}",)
        if own_count
        else ()
    )


def _describe_cost(plan: Plan) -> str:
    """Return boots, requests, tokens and time of the capture.

    Servers that the run starts are counted in boots; attached ones run already, and are counted in visits. A fresh start (renewal) is
    another server within a boot, after traffic that may leave its mark. How the servers share the machine follows.
    """
    started = [boot for boot in plan.boots if not boot.attached]
    visited = [boot for boot in plan.boots if boot.attached]
    boots = [f"{plural(len(started), 'boot')} ({', '.join(map(_describe_arm, started))})"] if started else []
    renewals = sum(len(boot.renewals(plan.workloads)) for boot in plan.boots)
    fresh = [f"{plural(renewals, 'fresh start')} after events or minutes of traffic"] if renewals else []
    visits = [f"{plural(len(visited), 'visit')} of attached servers ({', '.join(map(_describe_arm, visited))})"] if visited else []
    return (
        f"{' and '.join([*boots, *fresh, *visits])}{_describe_placement(plan)}, {_describe_requests(plan)}, "
        f"at most {plan.tokens:,} tokens an arm, {_describe_duration(plan)}"
    )


def _describe_duration(plan: Plan) -> str:
    """Return the estimated time and its source, or a note if it is unknown."""
    if not plan.rates.known:
        return "minutes unknown before the first boot"
    return f"about {clock(plan.estimate_s)}" + (f" ({plan.rates.source})" if plan.rates.source else "")


def _process_lines(plan: Plan) -> tuple[str, ...]:
    """Return a line on each server's processes; () if the plan names none.

    Each name is followed by the role of its process, if it has one: requests are sent to it (asked), or counters read from it (counted).
    """
    if not plan.processes:
        return ()
    roles = [
        (process.name, ", ".join([*(["asked"] if process.is_asked else []), *(["counted"] if process.is_counted else [])]))
        for process in plan.processes
    ]
    names = ", ".join(f"{name} ({role})" if role else name for name, role in roles)
    count = f"{len(roles)} processes" if len(roles) > 1 else "1 process"
    return (f"each server of an arm is {count}: {names}",)


def _old_engine_lines(plan: Plan) -> tuple[str, ...]:
    """Return lines on the old engine and on the new one.

    The old engine is the one in use, whose run comes first; in the new one's run it may be booted again, for its speed or to score. A
    warning is added if it serves another model, since answers may change by that. () for a run of one engine.
    """
    old = plan.old
    if old is None:
        return ()
    minutes = f", about {clock(old.estimate_s)}, {clock(old.estimate_s + plan.estimate_s)} for both" if plan.rates.known else ""
    old_boots = sum(boot.role.is_old for boot in plan.boots)
    purposes = (
        f"; {plural(old_boots, 'boot')} above {'are' if old_boots != 1 else 'is'} of the old engine, for its speed" if old_boots else ""
    )
    purposes += " and to score the new one's sampled tokens" if any(boot.role.is_old and boot.scores for boot in plan.boots) else ""
    models = (f"THE MODELS DIFFER: old {old.model}, new {plan.model}; answers may change by that",) if old.model != plan.model else ()
    return (
        f"old engine, captured and judged first: {old.build}; {plural(old.boots, 'boot')}{minutes}",
        f"new engine: {old.new_build}{purposes}",
        *models,
    )


_COSTLY = {Family.SAMPLING, Family.SPEED}
"""Families that need many tokens; all others together are to be cheap."""


def _describe_requests(plan: Plan) -> str:
    """Return the number of requests sent to each arm, in words.

    A family is a group of tests, such as greedy. Sampling and speed need the most requests. The number of requests that another family
    needs is added in brackets. Families that judge all answers of a variant, whatever they were sent for (``whole_run``), need none.
    """
    judged_by: dict[str, set[Family]] = {}  # by workload
    for judgement in plan.judgements:
        judged_by.setdefault(judgement.workload, set()).add(judgement.family)
    counts = {w.name: len(w.requests) * w.passes for w in plan.workloads if w.name in judged_by}
    families_with_requests = {name for name, row in plan.rows.items() if not row.whole_run}
    cheap_families = families_with_requests - _COSTLY
    cheap_count = sum(count for name, count in counts.items() if judged_by[name] & cheap_families)
    total = sum(counts.values())
    return plural(total, "request") + (f" ({cheap_count:,} of them not for sampling or speed)" if cheap_count < total else "")


def _further_pass_lines(plan: Plan) -> tuple[str, ...]:
    """Return a line on the additional timed passes of a noisy machine.

    They are sent only if the planned passes vary too much, and are no part of the estimate. () if none can be added.
    """
    further_tokens = plan.further_tokens
    return (
        (f"timed passes are repeated where they vary too much: at most {further_tokens:,} tokens an arm besides",) if further_tokens else ()
    )


def _repeat_lines(plan: Plan) -> tuple[str, ...]:
    """Return a line on the time for repeated requests.

    Requests are repeated where a count of wrong tokens leaves open whether the server is at fault. Few runs need that, so that it is no
    part of the estimate. A number of rounds stands in for an unknown time. () if the plan has no time for it.
    """
    most = f"up to {clock(plan.again_s)}" if plan.rates.known else f"up to {ROUNDS} rounds"
    return (f"asking again what a count of wrong tokens leaves open may add {most}",) if plan.again_s else ()


def _enlargement_lines(plan: Plan) -> tuple[str, ...]:
    """Return a line on the sampled requests added for long boots.

    The planner sends more requests to servers that take long to boot. ``plan.enlarged`` has the usual number of requests by workload, for
    those with more. () if there are none.
    """
    if not plan.enlarged:
        return ()
    sent = sum(len(plan.workload(name).requests) for name in plan.enlarged)
    usual = sum(plan.enlarged.values())
    return (f"a boot takes about {clock(plan.rates.boot_s)}, so each arm is sent {plural(sent, 'sampled request')} instead of {usual:,}",)


def _long_prompt_lines(plan: Plan) -> tuple[str, ...]:
    """Return a line on costs per workload of long prompts; () without any."""
    return tuple(_describe_long_prompts(workload) for workload in plan.workloads if workload.needs is Need.LONG_CONTEXT)


def _describe_long_prompts(workload: Workload) -> str:
    """Return what an arm reads of a workload's long prompts, and what of it is scored.

    The prompts fill parts of the servers' context limit, such as a half. Their length and cost are unknown if no argument of the config
    states that limit. The workload's ``scored_to`` is the most tokens of a prompt with its answer that is scored: a server replies with the
    scores of the prompt too, which are too many after a longer one.
    """
    tokens = [prompt_length(request) for request in workload.requests]
    if not any(map(long_prompt, workload.requests)):
        return f"{workload.name}: prompts of parts of the context limit, which no argument states: their cost is not in the estimate"
    most_scored = workload.scored_to or 0  # every workload of long prompts states it
    beyond = sum(
        request_tokens + (request.token_limit or 0) > most_scored for request, request_tokens in zip(workload.requests, tokens, strict=True)
    )
    unscored = (
        f"; {plural(beyond, 'answer')} after more than {most_scored:,} not scored: the scores of a whole prompt come with it"
        if beyond
        else ""
    )
    return (
        f"{workload.name}: prompts of up to {max(tokens):,} tokens, {sum(tokens):,} to read by each arm "
        f"and {scored_prompt_tokens(workload):,} again to score each{unscored}"
    )


def _attached_lines(plan: Plan) -> tuple[str, ...]:
    """Return lines on the limits of a run with attached servers.

    An attached server runs already and is never started. So the control, else the baseline's second boot, is the same boot asked again.
    Workloads that are not sent follow, by reason. () without such a limit.
    """
    boot_lines = ("within one boot: the control is the baseline's server, asked again",) if plan.within_one_boot else ()
    by_reason: dict[str, list[str]] = {}
    for name, reason in plan.withheld.items():
        by_reason.setdefault(reason, []).append(name)
    return (*boot_lines, *(f"NOT SENT: {', '.join(names)}: {reason}" for reason, names in by_reason.items()))


def _scoring_lines(plan: Plan) -> tuple[str, ...]:
    """Return a line on the number of requests for one-token scoring.

    A server without prompt log-probabilities needs one scoring request per token. () for any other server.
    """
    if plan.route is not ScoringRoute.CONTINUATIONS or not plan.scored_tokens:
        return ()
    return (f"SCORES BY ONE-TOKEN CONTINUATIONS: a request per token, at most {plural(plan.scored_tokens, 'request')} besides the answers",)


def _describe_placement(plan: Plan) -> str:
    """Return the placement of the servers, with its reason if the plan has one.

    Servers run side by side or in turn. In turn is the usual way, and mentioned only if the plan has a reason for it.
    """
    if plan.placement is Placement.SIDE_BY_SIDE:
        return f" side by side, {plan.servers} servers at once" + (f" ({plan.placement_reason})" if plan.placement_reason else "")
    return f" in turn ({plan.placement_reason})" if plan.placement_reason else ""


def _describe_arm(boot: Boot) -> str:
    """Return the name of a boot's arm with the boot's purpose.

    A boot for speed, or with a small cache, has its purpose added; any boot after an arm's first is just called that arm again. A server
    that is both the baseline and its control has both names.
    """
    if boot.also_baseline:
        return "baseline and control" + (" for speed" if boot.timed else "")
    name = f"draft model {boot.arm} alone" if boot.role is Role.DRAFT else boot.arm
    if boot.number > 1:
        return f"{name} again"
    if boot.timed:
        return f"{name} for speed"
    return f"{name} with a small cache" if boot.small_cache else name


def _describe_shares(plan: Plan) -> str:
    """Return a line on each family's false-alarm share for one test.

    The share (alpha) is the probability with which the test may fail a correct server by chance. The line ends with the upper bound for
    the whole run, by budget: correctness and speed. Without a share no test can fail by chance.
    """
    shares = {judgement.family.value: judgement.alpha for judgement in plan.judgements if judgement.alpha}
    if not shares:
        return "false-alarm share of each test: none, all judges are exact"
    red_by_chance = ", ".join(f"{chance:.2g} of {budget.value}" for budget, chance in plan.red_by_chance.items())
    return (
        f"false-alarm share of each test: {', '.join(f'{name} {alpha:.2g}' for name, alpha in shares.items())}; "
        f"red by chance: {red_by_chance}"
    )
