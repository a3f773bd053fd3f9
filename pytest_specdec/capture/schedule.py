"""The schedule: from a config and the selected tests to a plan; pure, so that every xdist worker computes the same."""

from __future__ import annotations

import difflib
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_specdec.capture import estimate
from pytest_specdec.capture.engines import engine_of
from pytest_specdec.errors import PlanError
from pytest_specdec.model.pair import BASELINE, CONTROL, DraftKind, Pair, Variant
from pytest_specdec.model.plan import SHARES, Boot, Cell, Plan, Role, alpha_of
from pytest_specdec.model.workload import Depth

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_specdec.capture.engines.protocol import Engine
    from pytest_specdec.config.config import Config
    from pytest_specdec.model.workload import Family, Workload

__all__ = ["Wanted", "make"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A workload that a selected test judges, and the family that judges it."""

    workload: Workload
    family: Family


def make(config: Config, wanted: Sequence[Wanted], depth: Depth, only: Sequence[str] | None = None) -> Plan:
    """Return the plan of ``wanted`` under ``config``; ``only`` names the variants to capture, all of them by default.

    N variants and D draft models take N + 2 + D boots, at smoke depth N + 1 + D. Raises PlanError when the selected tests do not go
    together, ConfigError or EngineError when a variant does not speculate or the engine is unknown.
    """
    engine = engine_of(config.engine.kind)
    pairs = _selected(_pairs(config, engine), only)
    # In an order of their own, so that the order of the tests (pytest-randomly shuffles it) changes nothing that is sent.
    kept = sorted((one for one in wanted if _is_sent(one.workload, depth)), key=lambda one: (one.workload.name, one.family))
    workloads = tuple(sorted((workload.at(depth) for workload in _united(kept)), key=_order))
    _fit_shares(kept)
    boots = tuple(replace(boot, index=index) for index, boot in enumerate(_boots(pairs, workloads, depth)))
    return Plan(
        config=config.name,
        engine=config.engine.kind,
        model=config.engine.model,
        depth=depth,
        pairs=pairs,
        workloads=workloads,
        cells=_cells(pairs, kept, variants=len(config.variants)),
        boots=boots,
        estimate_s=estimate.seconds(estimate.steps(boots, workloads, engine.pace)),
    )


def _pairs(config: Config, engine: Engine) -> tuple[Pair, ...]:
    return tuple(
        Pair(config=config.name, engine=config.engine.kind, model=config.engine.model, variant=_variant(config, engine, name, index))
        for index, name in enumerate(variant.name for variant in config.variants)
    )


def _variant(config: Config, engine: Engine, name: str, index: int) -> Variant:
    draft = engine.draft({**config.engine.args, **config.variants[index].args})
    if draft is None:
        what = f"variant {name} does not speculate"
        raise PlanError(what, where=f"variants.{name}.args", found="no speculative setting", expected=f"one that {engine.kind} knows")
    return Variant(name=name, draft=draft)


def _selected(pairs: tuple[Pair, ...], only: Sequence[str] | None) -> tuple[Pair, ...]:
    names = [pair.name for pair in pairs]
    for name in only or ():
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            what = f"no variant {name!r}" + (f"; did you mean {near[0]}?" if near else "")
            raise PlanError(what, found=name, expected=f"one of {', '.join(names)}")
    return tuple(pair for pair in pairs if only is None or pair.name in only)


def _united(wanted: Sequence[Wanted]) -> tuple[Workload, ...]:
    found: dict[str, Workload] = {}
    for one in wanted:
        known = found.setdefault(one.workload.name, one.workload)
        if known != one.workload:
            what = f"two tests mean different workloads by the name {known.name}"
            raise PlanError(
                what,
                found=f"{known!r} and {one.workload!r}",
                expected="one workload per name",
                remedy="give one of them another name",
            )
    if not found:
        what = "nothing to capture"
        raise PlanError(what, found="no workload at this depth", remedy="select a test with a workload, or a deeper depth")
    return tuple(found.values())


def _is_sent(workload: Workload, depth: Depth) -> bool:
    """Say whether ``depth`` sends anything of it; at smoke depth the survey comes too late for workloads that depend on it."""
    return workload.take.get(depth) != 0 and not (depth is Depth.SMOKE and workload.survey)


def _order(workload: Workload) -> tuple[bool, bool, str]:
    """Sort so that timed workloads meet a fresh server, and what may kill it comes last."""
    return (workload.may_kill, not workload.timed, workload.name)


def _fit_shares(wanted: Sequence[Wanted]) -> None:
    """Refuse more workloads of a family than its share of the false-alarm budget was split over."""
    counts = Counter(family for family, _ in {(one.family, one.workload.name) for one in wanted})
    for family, count in counts.items():
        share = SHARES.get(family)
        if share is not None and count > share.workloads:
            what = f"too many workloads of family {family}"
            raise PlanError(
                what,
                found=f"{count} selected",
                expected=f"at most {share.workloads}: the family's false-alarm budget is split over so many",
                remedy="put requests together in one workload, or select fewer tests",
            )


def _cells(pairs: Sequence[Pair], wanted: Sequence[Wanted], *, variants: int) -> tuple[Cell, ...]:
    asked = dict.fromkeys((one.workload.name, one.family) for one in wanted)
    return tuple(
        Cell(pair=pair.name, workload=workload, family=family, alpha=alpha_of(family, variants))
        for pair in pairs
        for workload, family in asked
    )


def _boots(pairs: Sequence[Pair], workloads: Sequence[Workload], depth: Depth) -> Iterator[Boot]:
    answers = tuple(workload.name for workload in workloads)
    variants = [Boot(index=0, role=Role.VARIANT, arm=pair.name, answers=answers, survey=True) for pair in pairs]
    arms = (*(pair.name for pair in pairs), CONTROL, BASELINE)
    scores = tuple((arm, workload.name) for workload in workloads if workload.scored for arm in arms)
    if depth is Depth.SMOKE:
        yield from variants
        yield Boot(index=0, role=Role.CONTROL, arm=CONTROL, answers=answers, also_baseline=True, survey=True, scores=scores)
    else:
        yield Boot(index=0, role=Role.BASELINE, arm=BASELINE, answers=answers, survey=True)
        yield from variants
        yield Boot(index=0, role=Role.CONTROL, arm=CONTROL, answers=answers, scores=scores)
    yield from _draft_boots(pairs, workloads)


def _draft_boots(pairs: Sequence[Pair], workloads: Sequence[Workload]) -> Iterator[Boot]:
    asked = [workload.name for workload in workloads if workload.draft_scored]
    drafts = [(pair.name, pair.variant.draft) for pair in pairs]
    models = dict.fromkeys(draft.model for _, draft in drafts if draft.kind is DraftKind.MODEL and draft.model)
    for model in models if asked else ():
        arms = (*(name for name, draft in drafts if draft.model == model), CONTROL)
        yield Boot(index=0, role=Role.DRAFT, arm=model, scores=tuple((arm, name) for name in asked for arm in arms))
