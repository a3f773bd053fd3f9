"""The planner: from a config and the selected tests to a plan, which every xdist worker computes alike.

A plan has workloads (lists of requests), boots (server starts with their work) and judgements: one of each pair (a variant beside the
baseline), workload and family, a kind of check. The depth sets how many requests are sent. Workloads are withheld if the servers do not
meet their needs.
"""

from __future__ import annotations

import difflib
import os
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from pytest_specdec.capture import boot_layout, enlargement, estimate, extension, placement
from pytest_specdec.capture.placement import attached_arms, is_attached, is_served
from pytest_specdec.capture.rates import scale_to_size
from pytest_specdec.capture.withheld import withheld_workloads
from pytest_specdec.capture.workloads import drop_unread_scores, enlarge, limit_concurrency
from pytest_specdec.config import engines, gates, golden
from pytest_specdec.engines import arguments
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.errors import PlanError
from pytest_specdec.model.families import FamilyRow, with_outside
from pytest_specdec.model.pair import Pair, Variant
from pytest_specdec.model.plan import Boot, Judgement, OldEngine, Placement, Plan, PlannedProcess, Rates
from pytest_specdec.model.transcript import ScoringRoute
from pytest_specdec.model.workload import Depth, Family, Workload
from pytest_specdec.prompts.calibration import default_draws, plain_draws

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from pytest_specdec.capture.placement import MachinePlacement
    from pytest_specdec.config.config import Config
    from pytest_specdec.engines.protocol import Engine
    from pytest_specdec.model.golden import GoldenFloor


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedWorkload:
    """A workload judged by a selected test, and the judging family."""

    workload: Workload
    family: Family


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """The options of a plan in addition to config, tests and depth."""

    outside: tuple[FamilyRow, ...] = ()
    """The families of other packages."""
    rates: Rates | None = None
    """Rates for the estimate; None for those by the model's size."""
    enlarged: Mapping[str, int] | None = None
    """Numbers of requests of workloads that send more than the depth's; None for as many as long boots allow within the deadline."""
    deadline_s: float | None = None
    """Seconds that the capture may take; None for no limit."""
    speed_boots: int = 1
    """Boots of each variant over which speed is measured."""
    old_answers: Collection[str] = ()
    """Workloads that the engine before an upgrade answered: the baseline scores these answers, unless there is a scorer."""
    cells: int = 0
    """Cells of the matrix of the config, over all of which the false-alarm budget is split; 0 without a matrix."""


_NO_OPTIONS = PlanOptions()


def make(
    config: Config,
    wanted: Sequence[SelectedWorkload],
    depth: Depth,
    only: Sequence[str] | None = None,
    deselected: Sequence[SelectedWorkload] = (),
    *,
    options: PlanOptions = _NO_OPTIONS,
) -> Plan:
    """Return the plan of the workloads ``wanted`` under ``config``.

    ``only`` names the variants to capture, all of them by default. ``deselected`` has the workloads of tests that were left out: they keep
    their share of the false-alarm budget.

    Baseline, control, variants and draft models take a boot each. Raises PlanError if tests do not go together or a variant does not
    speculate, ConfigError or EngineError for wrong settings.
    """
    engine = engine_of(config.engine.kind)
    pairs, golden_floors = _pairs_with_floors(config, engine, only)  # the floors are a golden file's least acceptance lengths
    attached = attached_arms(config)
    withheld = withheld_workloads(config, engine, [(one.workload, one.family) for one in wanted if _is_sent(one.workload, depth)])
    sent_workloads = _select_sent_workloads(wanted, config, depth, withheld=withheld, attached=bool(attached))
    workloads_by_name = {workload.name: workload for workload in _unique_workloads(sent_workloads, withheld)}
    judged_workloads = sorted((workload.at(depth) for workload in workloads_by_name.values()), key=_plan_sort_key)
    alphas = _alpha_by_family(config, [*deselected, *wanted], depth, options)  # false-alarm probability of one judgement
    plan = replace(
        _plan_without_boots(config, placement.resolve(config, engine), options.rates or scale_to_size(config)),
        depth=depth,
        pairs=pairs,
        judgements=_judgements(pairs, sent_workloads, alphas),
        withheld=withheld,
        families=options.outside,  # those of other packages
        golden=golden_floors,
    )
    _check_speed_boots(options.speed_boots, judged_workloads, attached)
    _check_room_for_old(config, plan, options.speed_boots)
    _check_speed_settings(config, attached)
    calibration = calibrations(judged_workloads, depth)
    lay_out = partial(
        _lay_out,
        plan,
        config=config,
        calibration=calibration,
        speed_boots=options.speed_boots,
        old_answers=_old_answers(config, options.old_answers, (*judged_workloads, *calibration)),
    )
    usual_plan = lay_out(judged_workloads)
    return _enlarge_plan(lay_out, usual_plan, workloads_by_name, options)


def _alpha_by_family(config: Config, collected: Sequence[SelectedWorkload], depth: Depth, options: PlanOptions) -> Mapping[Family, float]:
    """Return the alpha, the false-alarm probability, of one judgement, by family.

    It is the family's part of the run's budget, split over its workloads in ``collected`` and over variants and baselines.
    """
    rows = with_outside(options.outside)  # by family, those of other packages too: its part of the budget
    # Each cell of a matrix has one variant and one baseline.
    variants, baselines = (options.cells, options.cells) if options.cells else (len(config.variants), 1)
    counts = _workloads_per_family(collected, depth)
    return {family: rows[family].alpha(variants, depth, count, baselines=baselines) for family, count in counts.items()}


def _enlarge_plan(
    lay_out: Callable[[Sequence[Workload]], Plan], usual_plan: Plan, workloads_by_name: Mapping[str, Workload], options: PlanOptions
) -> Plan:
    """Return the usual plan with more requests if boots take long.

    The boots stay the same. ``lay_out`` returns the plan for given workloads. ``workloads_by_name`` has the judged workloads with their
    whole lists of requests.
    """
    deadline_s = options.deadline_s
    # By workload: the larger number of requests; an earlier plan may give it. Empty if boots are quick.
    request_counts = enlargement.counts(usual_plan, workloads_by_name, deadline_s) if options.enlarged is None else options.enlarged
    enlarged_workloads = enlarge(usual_plan.workloads, workloads_by_name, request_counts)
    full_plan = lay_out([workload for workload in enlarged_workloads if workload.name in workloads_by_name])
    return replace(
        full_plan,
        enlarged={name: len(usual_plan.workload(name).requests) for name in request_counts},  # the usual numbers, for the report
        again_s=extension.again_s(full_plan) if deadline_s is None else 0.0,  # under a deadline nothing is sent again
    )


def add_old_engine(plan: Plan, config: Config, old_plan: Plan) -> Plan:
    """Return ``plan``, with the old engine's run described in it.

    ``old_plan`` is the plan of that run, which comes before this one. Returns ``plan`` unchanged unless the config has ``engines``, an old
    and a new one.
    """
    if config.old is None:
        return plan
    old = OldEngine(
        build=engines.describe(config.old, config.engine),
        new_build=engines.describe(config.engine, config.old),
        model=config.old.model,
        boots=len(old_plan.boots),
        estimate_s=old_plan.estimate_s,
    )
    return replace(plan, old=old)


def plan_servers(config: Config, rates: Rates, depth: Depth = Depth.STANDARD, *, draft_scored: bool = False) -> Plan:
    """Return a plan of the config's servers, with one empty workload.

    It is for callers that need the boots before any test is selected. The workload stands for any whose tokens are scored; with
    ``draft_scored`` draft models score it too, and have boots.
    """
    workload = Workload(name="any", version=1, requests=(), draft_scored=draft_scored)
    return make(config, (SelectedWorkload(workload=workload, family=Family.GREEDY),), depth, options=PlanOptions(rates=rates))


def _plan_without_boots(config: Config, machine_placement: MachinePlacement, rates: Rates) -> Plan:
    """Return a plan with the config's settings, and nothing to capture.

    The settings are those of engine, model, placement and scoring. Depth, pairs, workloads and boots are filled in later.
    """
    scoring_config = config.scorer_config() if config.scorer else config
    return Plan(
        config=config.name,
        engine=config.engine.kind,
        model=config.engine.model,
        depth=Depth.STANDARD,
        pairs=(),
        workloads=(),
        judgements=(),
        boots=(),
        estimate_s=0.0,
        placement=machine_placement.placement,
        servers=machine_placement.servers,
        processes=tuple(
            PlannedProcess(name=process.name, is_asked=process.is_asked, is_counted=process.is_counted) for process in config.stack
        ),
        placement_reason=machine_placement.reason,
        # An engine without a way to score gets the plan's default: nothing is scored then.
        route=engine_of(scoring_config.engine.kind).route(scoring_config) or ScoringRoute.PROMPT_LOGPROBS,
        rates=rates,
    )


def _old_answers(config: Config, answered: Collection[str], workloads: Sequence[Workload]) -> Collection[str]:
    """Return the workloads whose answers by an old baseline are scored.

    The old one is the baseline before an upgrade. It answered ``answered`` in an earlier run, unless the config has an old engine itself.
    """
    if config.scorer is not None:
        return ()  # its distribution is not the new baseline's
    if config.old is None:
        return answered
    # The old engine answers all workloads in a run of its own just before. In this run it answers the timed ones, for their speed.
    return tuple(workload.name for workload in workloads if not workload.timed)


def _lay_out(
    plan: Plan,
    judged: Sequence[Workload],
    *,
    config: Config,
    calibration: tuple[Workload, ...],
    speed_boots: int,
    old_answers: Collection[str],
) -> Plan:
    """Return ``plan`` with its workloads, boots and estimated seconds.

    The boots answer the ``judged`` workloads and the ``calibration``, which measures the noise of scores. ``speed_boots`` is the number of
    each variant's boots for speed, ``old_answers`` the workloads whose answers by an old baseline are scored.
    """
    attached, has_scorer = attached_arms(config), config.scorer is not None
    has_speed_settings, has_old = config.speed is not None, config.old is not None
    workloads = tuple(sorted((*judged, *calibration), key=_plan_sort_key))
    served_boots = (boot for boot in boot_layout.layout(plan.pairs, judged, plan.depth, plan.placement) if is_served(boot, attached))
    layout = boot_layout.add_calibration(served_boots, calibration, workloads)
    layout = boot_layout.move_scores_to_scorer(layout, has_scorer=has_scorer)  # the calibration's too
    layout = boot_layout.add_small_cache_boots(layout, workloads)
    layout = boot_layout.add_old_answers(layout, old_answers)
    if has_speed_settings:  # timed workloads get boots of their own, with these settings
        layout = boot_layout.move_timed_last(tuple(layout), workloads)
    servers = plan.servers // (2 if has_old else 1)  # side by side each boot has one of the old engine beside it
    further = boot_layout.further_boots(plan.pairs, judged, speed_boots, placement=plan.placement, servers=servers)
    ordered_boots: Iterable[Boot] = (*layout, *further)
    if has_old:
        ordered_boots = boot_layout.interleave_old(ordered_boots, workloads, placement=plan.placement)
    if has_old and not (has_scorer or has_speed_settings):
        # The old baseline scores the new one's tokens. With settings for speed its noise is unknown: its own run was without these.
        ordered_boots = boot_layout.add_new_answers(ordered_boots, workloads)
    boots = tuple(replace(boot, index=index, attached=is_attached(boot, attached)) for index, boot in enumerate(ordered_boots))
    steps = estimate.steps(boots, workloads, plan.rates, route=plan.route)
    estimate_s = estimate.total(steps, plan.servers) + estimate.judging_s(len(plan.judgements))
    return replace(plan, workloads=workloads, boots=boots, estimate_s=estimate_s)


def _pairs_with_floors(config: Config, engine: Engine, only: Sequence[str] | None) -> tuple[tuple[Pair, ...], tuple[GoldenFloor, ...]]:
    """Return the pairs of the variants in ``only``, with golden floors.

    A golden floor is the least acceptance length that a golden file asks of a pair. Raises ConfigError for a gate that a selected pair
    cannot reach, and for a golden file that asks nothing of any of the config's pairs.
    """
    every_pair = _pairs(config, engine)
    pairs, floors = _select_pairs(every_pair, only), golden.floors(config, every_pair)
    gates.check(config, pairs)
    golden.check(config, floors)
    names = {pair.name for pair in pairs}
    return pairs, tuple(floor for floor in floors if floor.pair in names)


def _pairs(config: Config, engine: Engine) -> tuple[Pair, ...]:
    """Return the pairs of all variants in the config."""
    return tuple(
        Pair(config=config.name, engine=config.engine.kind, model=config.engine.model, variant=_variant(config, engine, name, index))
        for index, name in enumerate(variant.name for variant in config.variants)
    )


def _variant(config: Config, engine: Engine, name: str, index: int) -> Variant:
    """Return the variant with its drafting, read from engine arguments.

    Variant number ``index`` of the config is called ``name``. What the arguments do not show of its drafting is stated in the config.
    Raises PlanError if it does not speculate.
    """
    draft = engine.draft(arguments.fill(config, config.variants[index], os.environ))
    if draft is None:
        what = f"variant {name} does not speculate"
        raise PlanError(what, where=f"variants.{name}.args", found="no speculative setting", expected=f"one that {engine.kind} knows")
    stated = config.variants[index]
    return Variant(name=name, draft=replace(draft, depends_on_load=stated.drafting_depends_on_load, context=stated.draft_context))


def _select_pairs(pairs: tuple[Pair, ...], only: Sequence[str] | None) -> tuple[Pair, ...]:
    """Return the pairs of the variants in ``only``, all if None.

    Raises PlanError for an unknown name.
    """
    names = [pair.name for pair in pairs]
    for name in only or ():
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            what = f"no variant {name!r}" + (f"; did you mean {near[0]}?" if near else "")
            raise PlanError(what, found=name, expected=f"one of {', '.join(names)}")
    return tuple(pair for pair in pairs if only is None or pair.name in only)


def _unique_workloads(selected: Sequence[SelectedWorkload], withheld: Mapping[str, str]) -> tuple[Workload, ...]:
    """Return the workloads of all selected tests, each once.

    Scores that no selected test reads are dropped, by the families of its tests. Raises PlanError if different workloads share a name, or
    if there are none: the error then has the reasons in ``withheld``, by workload.
    """
    workloads: dict[str, Workload] = {}
    for entry in selected:
        first_workload = workloads.setdefault(entry.workload.name, entry.workload)
        if first_workload != entry.workload:
            what = f"two tests define different workloads named {first_workload.name}"
            raise PlanError(
                what,
                found=f"{first_workload!r} and {entry.workload!r}",
                expected="one workload per name",
                remedy="give one of them another name",
            )
    if not workloads:
        what = "nothing to capture"
        reasons = "; ".join(f"{name} {reason}" for name, reason in sorted(withheld.items()))
        remedy = "meet one of these needs, or select another test" if reasons else "select a test with a workload, or a deeper depth"
        raise PlanError(what, found=reasons or "no workload at this depth", remedy=remedy)
    return tuple(
        drop_unread_scores(workload, {entry.family for entry in selected if entry.workload == workload}) for workload in workloads.values()
    )


def _select_sent_workloads(
    wanted: Sequence[SelectedWorkload], config: Config, depth: Depth, *, withheld: Collection[str], attached: bool
) -> list[SelectedWorkload]:
    """Return the workloads sent to every arm, sorted by name.

    Those that this depth does not send and ``withheld`` ones are left out. The concurrency of each is lowered to what every arm allows.
    """
    sent_entries = [entry for entry in wanted if _is_sent(entry.workload, depth) and entry.workload.name not in withheld]
    limit = partial(limit_concurrency, config=config, attached=attached)
    return [replace(entry, workload=limit(entry.workload)) for entry in sorted(sent_entries, key=_name_sort_key)]


def _is_sent(workload: Workload, depth: Depth) -> bool:
    """Return True if ``depth`` sends any of the workload's requests."""
    return workload.take.get(depth) != 0


def calibrations(judged: Sequence[Workload], depth: Depth) -> tuple[Workload, ...]:
    """Return the calibration workloads, empty if nothing is to be scored.

    Every verdict that rests on scores needs the noise of the run, measured by the calibration.
    """
    return (plain_draws(depth), default_draws(depth)) if any(workload.scored for workload in judged) else ()


def _check_speed_settings(config: Config, attached: frozenset[str]) -> None:
    """Raise PlanError if settings for ``speed`` meet an attached server.

    Timed workloads get servers of their own with these settings, and an attached server keeps those that it was started with.
    """
    if config.speed is None or not attached:
        return
    what, arms = "an attached server has the settings that it was started with", ", ".join(sorted(attached))
    raise PlanError(what, where="speed", found=f"url of {arms}", expected="servers that are started here", remedy="remove `speed`")


def _check_speed_boots(speed_boots: int, workloads: Sequence[Workload], attached: frozenset[str]) -> None:
    """Raise PlanError if speed cannot be measured over several boots.

    Attached servers cannot be booted again, and without a timed workload further boots would have nothing to answer.
    """
    if speed_boots == 1:
        return
    where = "--specdec-boots"
    if attached:
        what, arms = "an attached server is not booted, so it cannot be booted again", ", ".join(sorted(attached))
        raise PlanError(what, where=where, found=f"url of {arms}", expected="servers that are started here", remedy=f"remove {where}")
    if not any(workload.timed for workload in workloads):
        what = "no selected test measures speed, for which alone there are further boots"
        raise PlanError(what, where=where, found="no timed workload", expected="one, as in suites/speed", remedy=f"remove {where}")


_MIN_SERVERS_OF_BOTH = 4
"""Servers up at once to time two engines side by side: a baseline and a variant of each."""


def _check_room_for_old(config: Config, plan: Plan, speed_boots: int) -> None:
    """Raise PlanError if further boots of two engines do not fit side by side."""
    if config.old is None or plan.placement is Placement.IN_TURN or plan.servers >= _MIN_SERVERS_OF_BOTH:
        return
    if speed_boots == 1:
        return  # without further boots, which come in waves of a baseline and a variant of each engine
    what, room = "a baseline and a variant of two engines do not fit side by side", f"at most {plan.servers} servers at once"
    expected = f"at least {_MIN_SERVERS_OF_BOTH}, or one server at a time"
    raise PlanError(what, where="--specdec-boots", found=room, expected=expected, remedy="write `placement: in-turn`")


def _name_sort_key(entry: SelectedWorkload) -> tuple[str, Family]:
    """Return the sort key of a workload: name, then family.

    Sorted by it, tests in another order, such as a shuffled one, give the same plan.
    """
    return (entry.workload.name, entry.family)


def _plan_sort_key(workload: Workload) -> tuple[bool, bool, bool, str]:
    """Return the key for sorting workloads by order of sending; False comes first.

    Timed workloads come first, on a fresh server. Workloads that may kill the server come late, and those with events last, since a server
    has to be started anew after them.
    """
    return (bool(workload.events), workload.may_kill, not workload.timed, workload.name)


def _workloads_per_family(wanted: Sequence[SelectedWorkload], depth: Depth) -> Counter[Family]:
    """Return how many workloads ``depth`` sends of each family.

    A workload that several tests of a family want counts once.
    """
    return Counter(family for family, _ in {(entry.family, entry.workload.name) for entry in wanted if _is_sent(entry.workload, depth)})


def _judgements(pairs: Sequence[Pair], selected: Sequence[SelectedWorkload], shares: Mapping[Family, float]) -> tuple[Judgement, ...]:
    """Return the judgements of all pairs, each with its alpha.

    ``shares`` gives the alpha, the allowed false-alarm probability, of one judgement by family. A pair, workload and family is judged
    once, however many tests select it.
    """
    workload_families = dict.fromkeys((entry.workload.name, entry.family) for entry in selected)
    return tuple(
        Judgement(pair=pair.name, workload=workload, family=family, alpha=shares[family])
        for pair in pairs
        for workload, family in workload_families
    )
