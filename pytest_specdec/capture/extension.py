"""Extensions: a plan with more requests of its own workloads, which are judged together with the answers that exist.

Requests are added in rounds, numbered from 1, while verdicts are open. A round adds workloads, and boots (servers to start) for them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.capture import boot_layout, estimate
from pytest_specdec.capture.workloads import extend_requests, repeat
from pytest_specdec.model.families import COUNTED
from pytest_specdec.model.plan import ROUNDS, Role
from pytest_specdec.model.workload import Depth

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pytest_specdec.model.plan import Boot, Plan
    from pytest_specdec.model.workload import Workload


def again_s(plan: Plan) -> float:
    """Return the most seconds needed by all further rounds.

    In each of :data:`ROUNDS` rounds all workloads whose judge counts wrong tokens or the like may be sent again, to all variants. One round
    is planned here to estimate its time. Returns 0 at smoke depth, or without such workloads.
    """
    counted = {judgement.workload for judgement in plan.judgements if judgement.family in COUNTED}
    if plan.depth is Depth.SMOKE or not counted:
        return 0.0
    workloads = {name: plan.workload(name) for name in sorted(counted)}
    # With ``again`` the same requests are sent once more, and no new ones.
    next_round = extend(plan, workloads, [pair.name for pair in plan.pairs], rounds(plan) + 1, again=counted)
    return ROUNDS * next_round.estimate_s  # of that round alone


def rounds(plan: Plan) -> int:
    """Return how often the plan has been extended.

    The names of workloads added by round N end in ``.moreN``.
    """
    return max((int(name.rpartition(".more")[2]) for names in plan.extensions.values() for name in names), default=0)


def base(plan: Plan) -> Plan:
    """Return the plan without the rounds of requests added later.

    Left out are their workloads, and the boots that answer or score these. Its estimated seconds stay those of the extended plan.
    """
    added_names = {name for names in plan.extensions.values() for name in names}
    boots = tuple(boot for boot in plan.boots if not added_names & {*boot.answers, *(task.workload for task in boot.scores)})
    workloads = tuple(workload for workload in plan.workloads if workload.name not in added_names)
    return replace(plan, boots=boots, workloads=workloads, extensions={})


def extend(plan: Plan, deepest: Mapping[str, Workload], pairs: Sequence[str], round_: int, *, again: Collection[str] = ()) -> Plan:
    """Return ``plan`` with one more round of requests, number ``round_``.

    Each workload in ``deepest`` gets as many more requests as were sent already, for the variants ``pairs``. ``deepest`` has them by name,
    each with the whole list of requests that can be sent. Workloads named in ``again`` send the same requests again.

    Every round boots the variants, one baseline and the draft models once. The plan's ``extensions`` list the added workloads by the name
    of the one that they add to. The estimated seconds are those of the new round.
    """
    if rounds(plan) >= round_:
        return plan  # it has this round already
    added = []
    for name, whole in deepest.items():
        if name in again:
            # Each prompt begins with the round's number: a fault comes back, but not what kernels do at exactly the same prefix.
            added.append(repeat(plan.workload(name), round_))
        else:
            sent = [plan.workload(sent_name) for sent_name in (name, *plan.extensions.get(name, ()))]
            added.append(extend_requests(sent, whole, round_))
    boots = _boots_for(plan, added, pairs)
    extensions = {**plan.extensions}
    for name, workload in zip(deepest, added, strict=True):
        extensions[name] = (*extensions.get(name, ()), workload.name)
    return replace(
        plan,
        boots=(*plan.boots, *boots),
        workloads=(*plan.workloads, *added),
        extensions=extensions,
        estimate_s=estimate.total(estimate.steps(boots, added, plan.rates, route=plan.route), plan.servers),
    )


def _boots_for(plan: Plan, workloads: Sequence[Workload], pairs: Sequence[str]) -> tuple[Boot, ...]:
    """Return the boots needed by a round of further workloads.

    They are for the variants named in ``pairs``, with as few boots as possible. Their indexes follow those of the plan's boots. Arms
    without a boot in the plan get none, and attached servers, which are not started here, are visited again.
    """
    selected = tuple(pair for pair in plan.pairs if pair.name in pairs)
    planned_arms = {boot.arm for boot in plan.boots}
    attached_arms = {boot.arm for boot in plan.boots if boot.attached}
    has_scorer = any(boot.role is Role.SCORER for boot in plan.boots)
    fewest = boot_layout.fewest_boots(selected, workloads, plan.placement, has_scorer=has_scorer)
    boots = [replace(boot, attached=boot.arm in attached_arms) for boot in fewest if boot.arm in planned_arms]
    first_index = max(boot.index for boot in plan.boots) + 1
    return tuple(replace(boot, index=first_index + index) for index, boot in enumerate(boots))
