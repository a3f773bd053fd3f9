"""The layout of boots, the servers that a plan starts: what each answers and scores, in which order.

Arms are the baseline, its second boot (the control) and the variants, which speculate; a pair is one variant beside the baseline. To score
is to ask a server for its log-probabilities of tokens that an arm answered. Servers run in turn, one at a time, or side by side. A plan may
also boot arms of an old engine, the one in use before an upgrade, for speed. The planner numbers all boots at last; until then their
``index`` is 0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.model.pair import BASELINE, CONTROL, OLD_BASELINE, SCORER, DraftKind, DraftSampling, Pair, arm_of, old_arm
from pytest_specdec.model.plan import Boot, Placement, Role, ScoringTask
from pytest_specdec.model.workload import Depth, Workload
from pytest_specdec.prompts.calibration import DEFAULTS
from pytest_specdec.stats.request_params import penalties

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from pytest_specdec.model.plan import Plan
    from pytest_specdec.model.workload import Request

_FEW = 5
"""Top tokens if the draft's distribution is one-hot: as good as twenty, and several times cheaper."""
_ONE = 1
"""Top tokens of a drafter that drafts its best token: nothing else is used."""
_CALIBRATED = frozenset({Role.BASELINE, Role.CONTROL, Role.VARIANT})
"""Roles of the boots for the calibration."""
_NEIGHBOURS = 2
"""Variant boots between two baseline boots: with three, one would have no baseline boot next to it."""


def _arm_top_tokens(arm: str, workload: Workload, pairs: Sequence[Pair], *, is_plain: bool) -> int:
    """Return the number of top tokens to score ``arm`` with.

    Top tokens are the most probable ones whose log-probabilities are listed per position. ``is_plain`` is True if tokens of the workload
    are drawn with just the reported probabilities, so that no tail of them is needed to work out others.
    """
    # The baseline and the control are judged beside every variant, a variant in its own pair alone.
    judged_pairs = pairs if arm in {BASELINE, CONTROL} else [pair for pair in pairs if pair.name == arm]
    drafts_one_token = all(pair.variant.draft.sampling is DraftSampling.GREEDY for pair in judged_pairs)
    return min(_FEW, workload.top_tokens) if drafts_one_token and is_plain else workload.top_tokens


def draft_top_tokens(workload: Workload, pairs: Sequence[Pair]) -> int:
    """Return the number of top tokens needed of a draft model.

    ``pairs`` share this draft model. If all of these draft greedily, one token suffices (``_ONE``), since only the draft model's best token
    is used; else ``workload.top_tokens`` are needed, the most in any case.
    """
    is_greedy = all(pair.variant.draft.sampling is DraftSampling.GREEDY for pair in pairs)
    return min(_ONE, workload.top_tokens) if is_greedy else workload.top_tokens


def _is_plain(request: Request) -> bool:
    """Return True if tokens are drawn with just the reported probabilities.

    Each listed probability is then exact by itself. Other requests change them by temperature, truncation or penalties: what they are drawn
    with has to be worked out from many listed tokens.
    """
    body = request.body
    if not penalties(body).neutral:
        return False
    is_truncated = body.get("top_k") not in {None, 0, -1} or body.get("top_p") not in {None, 1} or body.get("min_p") not in {None, 0}
    is_unscaled = body.get("temperature") in {None, 1}
    return request.greedy or (is_unscaled and not is_truncated)


def fewest_boots(pairs: Sequence[Pair], workloads: Sequence[Workload], placement: Placement, *, has_scorer: bool) -> tuple[Boot, ...]:
    """Return the fewest boots to answer and score ``workloads``.

    These are one boot of each variant, the baseline, the scorer and each draft model, and further ones for workloads that need a small
    cache. The smoke depth lays out no others; the placement gives their order.
    """
    return tuple(
        add_small_cache_boots(move_scores_to_scorer(layout(pairs, workloads, Depth.SMOKE, placement), has_scorer=has_scorer), workloads)
    )


def layout(pairs: Sequence[Pair], workloads: Sequence[Workload], depth: Depth, placement: Placement) -> Iterator[Boot]:
    """Return the boots of a placement in their order of starting.

    If servers run in turn, the last baseline boot scores, since everything is answered by then. If they run side by side, the first one
    scores while the others answer.
    """
    return (_boots_in_turn if placement is Placement.IN_TURN else _boots_side_by_side)(pairs, workloads, depth)


def add_calibration(planned: Iterable[Boot], calibration: Sequence[Workload], workloads: Sequence[Workload]) -> Iterator[Boot]:
    """Yield the boots with the calibration's answers and scores added.

    The calibration's workloads measure the noise of log-probabilities of a correct server. The baseline, the control and each variant
    answer them, which shows the noise of decoding one token at a time and that of verify steps. ``workloads`` are all workloads of the plan
    in their order, those of ``calibration`` included.

    Every boot that scores, but for a draft model's, scores the calibration too. If the baseline is booted twice and scores, it scores its
    own answers and those of its other boot: the difference is the part of the noise that stays the same within one boot.
    """
    boots = tuple(planned)
    # The answers of every arm, of the baseline and the control too.
    tasks = tuple(
        ScoringTask(arm=arm, workload=workload.name, top_tokens=workload.top_tokens)
        for workload in calibration
        for boot in boots
        if _is_to_answer(boot, workload.name)
        for arm in boot.arms
    )
    for boot in boots:
        answers, scores = boot.answers, boot.scores
        if boot.role in _CALIBRATED:  # these answer every workload: listed anew, the calibration stands at its place in the order
            answers = tuple(name for name in _workload_names(workloads) if _is_to_answer(boot, name))
        if scores and boot.role is not Role.DRAFT:
            scores = (*scores, *tasks)
        yield replace(boot, answers=answers, scores=scores)


def add_old_answers(planned: Iterable[Boot], old_answers: Collection[str]) -> Iterator[Boot]:
    """Yield the boots, the baseline scoring the old engine's answers too.

    ``old_answers`` names the workloads that the old engine's baseline answered. A boot that scores the baseline's answers to one of these
    scores the old ones too, with as many top tokens, and last: a run that ends early then has the scores for its own verdicts.
    """
    for boot in planned:
        tasks = [task for task in boot.scores if task.arm == BASELINE and task.workload in old_answers]
        yield replace(boot, scores=(*boot.scores, *(replace(task, arm=OLD_BASELINE) for task in tasks)))


def _is_to_answer(boot: Boot, workload: str) -> bool:
    """Return True if ``boot`` answers ``workload`` in a calibrated plan.

    The baseline, the control and each variant answer every workload; only a variant does not answer the calibration without sampling
    parameters, since the server's defaults are shown by the baseline.
    """
    return boot.role in _CALIBRATED and (boot.role is not Role.VARIANT or workload != DEFAULTS)


def move_timed_last(planned: Sequence[Boot], workloads: Sequence[Workload]) -> Iterator[Boot]:
    """Yield each boot without its timed workloads, then boots for these alone.

    Timed workloads measure speed. Their boots directly follow one another, so that the machine drifts little between these boots. A boot
    with nothing else to do is only yielded as a timed boot, and only then does the timed boot probe the server.
    """
    timed_names = {workload.name for workload in workloads if workload.timed}
    timed_boots = []
    for boot in planned:
        timed_answers = tuple(name for name in boot.answers if name in timed_names)
        rest = replace(boot, answers=tuple(name for name in boot.answers if name not in timed_names))
        has_other_work = bool(rest.answers or rest.scores or not timed_answers)
        if has_other_work:
            yield rest
        if timed_answers:
            timed_boots.append(replace(boot, answers=timed_answers, scores=(), probe=boot.probe and not has_other_work, timed=True))
    yield from timed_boots


def further_boots(
    pairs: Sequence[Pair], workloads: Sequence[Workload], boots_of_each: int, *, placement: Placement, servers: int
) -> Iterator[Boot]:
    """Yield the further baseline and variant boots for timed workloads.

    They come after the boots of a layout, and each variant then has ``boots_of_each`` boots in all. A block has one further boot of each
    variant. ``servers`` is the number of servers that run at once, side by side.

    If servers run in turn, a baseline boot (B) follows every two variant boots (S1, S2), so that each of these has one just before or
    just after it: two variants' layout B S1 S2 B is followed by S2 S1 B, then S1 S2 B. Side by side a baseline boot comes first, with as
    many variants as run at the same time, and their requests alternate.
    """
    timed = tuple(workload.name for workload in workloads if workload.timed)
    if not timed:
        return
    variants_per_baseline = _NEIGHBOURS if placement is Placement.IN_TURN else max(1, servers - 1)
    names = [pair.name for pair in pairs]
    baseline_number = 1  # the layout has each arm's first boot
    for number in range(2, boots_of_each + 1):
        # Backwards in every other block: steady drift of the machine adds as much to one variant as to another.
        block = names if number % 2 else names[::-1]
        for start in range(0, len(block), variants_per_baseline):
            baseline_number += 1
            variants = [_timed_boot(Role.VARIANT, name, timed, number) for name in block[start : start + variants_per_baseline]]
            baseline = _timed_boot(Role.BASELINE, BASELINE, timed, baseline_number)
            yield from (*variants, baseline) if placement is Placement.IN_TURN else (baseline, *variants)


def interleave_old(planned: Iterable[Boot], workloads: Sequence[Workload], *, placement: Placement) -> Iterator[Boot]:
    """Yield the boots, each timed one beside its old-engine counterpart.

    Boots of the baseline and of variants that answer timed workloads have a counterpart: the same arm of the engine in use (the old one),
    answering the timed workloads alone. If servers run in turn, the order is new, old, old, new …: steady drift of the machine adds as
    much to one engine as to the other. Side by side the old boot comes second, both are up together, and their requests alternate. The
    control has no counterpart: each engine's own run shows how much its boots vary. At smoke depth it is the baseline too, and has one.
    """
    boots = tuple(planned)
    timed = frozenset(workload.name for workload in workloads if workload.timed)
    roles = {Role.BASELINE, Role.VARIANT}
    with_counterpart = [boot for boot in boots if timed & {*boot.answers} and (boot.also_baseline or boot.role in roles)]
    last_baseline = max((place for place, boot in enumerate(with_counterpart) if boot.role is not Role.VARIANT), default=0)
    # The last old baseline scores the new one's answers, so that the new one has to come first there, and at every second boot before.
    old_comes_first = placement is Placement.IN_TURN and last_baseline % 2 == 1
    for boot in boots:
        if boot not in with_counterpart:
            yield boot
            continue
        old = _old_counterpart(boot, tuple(name for name in boot.answers if name in timed))
        yield from (old, boot) if old_comes_first else (boot, old)
        old_comes_first = placement is Placement.IN_TURN and not old_comes_first


def _old_counterpart(boot: Boot, timed: tuple[str, ...]) -> Boot:
    """Return the boot of the same arm of the old engine, answering ``timed``."""
    if boot.role is Role.VARIANT:
        return _timed_boot(Role.OLD_VARIANT, old_arm(boot.arm), timed, boot.number)
    return _timed_boot(Role.OLD_BASELINE, old_arm(BASELINE), timed, boot.number)


def add_new_answers(planned: Iterable[Boot], workloads: Sequence[Workload]) -> Iterator[Boot]:
    """Yield the boots, the old engine's last baseline scoring new draws.

    Draws are tokens that the new baseline sampled at a stated temperature. The old engine's scores show which of them it would never draw.
    It scores untimed workloads that are answered before that boot, and scored by the new engine too. Without an old baseline the boots stay
    as they are.
    """
    boots = tuple(planned)
    old_baselines = [place for place, boot in enumerate(boots) if boot.role is Role.OLD_BASELINE]
    if not old_baselines:
        yield from boots
        return
    last_old = old_baselines[-1]
    answered = {name for boot in boots[:last_old] if BASELINE in boot.arms for name in boot.answers}
    drawn = {workload.name for workload in workloads if not workload.timed and any(request.draws_as_asked for request in workload.requests)}
    tasks = (task for boot in boots for task in boot.scores if task.arm == BASELINE and task.workload in answered & drawn)
    scores = tuple(dict.fromkeys(tasks))
    for place, boot in enumerate(boots):
        yield replace(boot, scores=scores) if place == last_old else boot


def _timed_boot(role: Role, arm: str, timed: tuple[str, ...], number: int) -> Boot:
    return Boot(index=0, role=role, arm=arm, answers=timed, timed=True, number=number)


def add_small_cache_boots(planned: Iterable[Boot], workloads: Sequence[Workload]) -> Iterator[Boot]:
    """Yield the boots, with small-cache boots for workloads needing one.

    A small-cache boot has a key-value cache too small for the concurrent requests, so that some are preempted. It follows the usual boot of
    the baseline or variant, or takes its place if the usual one has nothing else to do. Scores are taken with the usual cache. The control
    keeps it too: beside the preempted baseline it shows what preemption alone changes. At smoke depth one boot, with the control's role, is
    both: it keeps the usual cache, which saves a boot.
    """
    small_cache_names = {workload.name for workload in workloads if workload.small_cache}
    for boot in planned:
        small_cache_answers = tuple(name for name in boot.answers if name in small_cache_names)
        if not small_cache_answers or boot.role not in {Role.BASELINE, Role.VARIANT}:
            yield boot
            continue
        small_cache_boot = replace(boot, answers=small_cache_answers, scores=(), small_cache=True)
        rest = tuple(name for name in boot.answers if name not in small_cache_names)
        if rest or boot.scores:
            yield replace(boot, answers=rest)
            small_cache_boot = replace(small_cache_boot, probe=False)  # the usual boot is probed
        yield small_cache_boot


def move_scores_to_scorer(planned: Iterable[Boot], *, has_scorer: bool) -> Iterator[Boot]:
    """Yield the boots, each scoring baseline boot followed by the scorer's.

    The scorer, a server of the same weights that a config may name, takes over the scores. A draft model still scores by itself, since its
    own distribution is wanted. The boots are unchanged unless ``has_scorer``.
    """
    for boot in planned:
        if not boot.scores or boot.role is Role.DRAFT or not has_scorer:
            yield boot
            continue
        yield replace(boot, scores=())
        # Probed, since the probe finds the route of scoring.
        yield Boot(index=0, role=Role.SCORER, arm=SCORER, probe=True, scores=boot.scores)


def why_needless(boot: Boot, plan: Plan, dead: AbstractSet[str]) -> str:
    """Return the reason why no verdict needs ``boot`` any more.

    ``dead`` are the arms that did not come up: variants, and arms of the old engine by their names ``old.…``. A boot is needless if all
    variants whose verdicts use its answers or scores are dead, or if it is a further boot of a dead arm of the old engine. Returns an empty
    string if the boot is needed.
    """
    if boot.role.is_old and boot.arm in dead:
        return f"not booted again: {boot.arm} did not come up"
    users = _users_of(boot, plan)
    if not users or not users <= dead:
        return ""
    names = ", ".join(sorted(users))
    return f"not booted: {names} did not come up, and nothing else needs the {boot.role}"


def _users_of(boot: Boot, plan: Plan) -> set[str]:
    """Return the variants that need a boot; empty if it is always needed."""
    if boot.role is Role.DRAFT:
        return {task.arm for task in boot.scores} - {CONTROL}
    if boot.role is Role.OLD_VARIANT:
        return {arm_of(boot.arm)}
    if boot.role is Role.VARIANT:
        return {arm_of(boot.arm)} if boot.number > 1 else set()
    is_first_baseline = boot.role in {Role.BASELINE, Role.OLD_BASELINE} and boot.number == 1
    return set() if is_first_baseline else {pair.name for pair in plan.pairs}


def _boots_in_turn(pairs: Sequence[Pair], workloads: Sequence[Workload], depth: Depth) -> Iterator[Boot]:
    """Yield the boots to run in turn, with the last baseline boot scoring.

    By then every arm has answered, so that one boot can score all answers. The last baseline boot is the control; at smoke depth it is
    the only one, and answers as the baseline too.
    """
    scores = _scoring_tasks(pairs, workloads)
    if depth is not Depth.SMOKE:
        yield _baseline_boot(workloads)
    yield from _variant_boots(pairs, workloads)
    control = replace(_baseline_boot(workloads), role=Role.CONTROL, arm=CONTROL, scores=scores, probe=False)
    yield replace(control, also_baseline=True, probe=True) if depth is Depth.SMOKE else control
    yield from _draft_boots(pairs, workloads)


def _boots_side_by_side(pairs: Sequence[Pair], workloads: Sequence[Workload], depth: Depth) -> Iterator[Boot]:
    """Yield the boots to run side by side, the first baseline boot scoring.

    It stays up and scores while others answer, as do the draft models. At smoke depth it is the only baseline boot, and answers as the
    control too.
    """
    first = replace(_baseline_boot(workloads), scores=_scoring_tasks(pairs, workloads))
    if depth is Depth.SMOKE:
        first = replace(first, role=Role.CONTROL, arm=CONTROL, also_baseline=True)
    yield first
    yield from _draft_boots(pairs, workloads)
    yield from _variant_boots(pairs, workloads)
    if depth is not Depth.SMOKE:
        yield replace(_baseline_boot(workloads), role=Role.CONTROL, arm=CONTROL, probe=False)


def _baseline_boot(workloads: Sequence[Workload]) -> Boot:
    return Boot(index=0, role=Role.BASELINE, arm=BASELINE, answers=_workload_names(workloads), probe=True)


def _variant_boots(pairs: Sequence[Pair], workloads: Sequence[Workload]) -> Iterator[Boot]:
    for pair in pairs:
        yield Boot(index=0, role=Role.VARIANT, arm=pair.name, answers=_workload_names(workloads), probe=True)


def _workload_names(workloads: Sequence[Workload]) -> tuple[str, ...]:
    return tuple(workload.name for workload in workloads)


def _scoring_tasks(pairs: Sequence[Pair], workloads: Sequence[Workload]) -> tuple[ScoringTask, ...]:
    """Return the tasks to score every arm's answers to scored workloads."""
    arms = (*(pair.name for pair in pairs), CONTROL, BASELINE)
    # Fewer top tokens suffice if every token of a workload is drawn by the reported probabilities alone (plain).
    scored = [(workload, all(map(_is_plain, workload.requests))) for workload in workloads if workload.scored]
    return tuple(
        ScoringTask(arm=arm, workload=workload.name, top_tokens=_arm_top_tokens(arm, workload, pairs, is_plain=is_plain))
        for workload, is_plain in scored
        for arm in arms
    )


def _draft_boots(pairs: Sequence[Pair], workloads: Sequence[Workload]) -> Iterator[Boot]:
    """Yield one scoring boot for each draft model served alone.

    It scores the answers of the variants that draft with it, and of the control. None is yielded unless a workload asks for draft scores.
    """
    scored_workloads = [workload for workload in workloads if workload.draft_scored]
    pairs_with_drafts = [(pair, pair.variant.draft) for pair in pairs]
    models = dict.fromkeys(draft.model for _, draft in pairs_with_drafts if draft.kind is DraftKind.MODEL and draft.model)
    for model in models if scored_workloads else ():
        users = [pair for pair, draft in pairs_with_drafts if draft.model == model]
        scores = [
            ScoringTask(arm=arm, workload=workload.name, top_tokens=draft_top_tokens(workload, users))
            for workload in scored_workloads
            for arm in (*(pair.name for pair in users), CONTROL)
        ]
        yield Boot(index=0, role=Role.DRAFT, arm=model, scores=tuple(scores))
