"""The selector: which prompts of a pool tell most about a sampler, from a survey of the baseline alone.

A token drawn from a peaked law says nothing about how it was drawn. Prompts are ranked by informative tokens (``Law.information``, the sum
of Var_p(log p) in nats squared) per emitted token of one short answer of the baseline.

The betting test stays valid, since its null is conditional on what was asked: the choice is a function of the baseline's answers to
questions with seeds of their own, never of an answer that is judged, nor of the speculative server. A seed that came again would break
that: where equal seeds draw equal tokens, prompts would be chosen by the very tokens to be judged.
"""

from __future__ import annotations

from collections import Counter
from math import ceil
from typing import TYPE_CHECKING

from pytest_specdec.model.selection import Selection, first, quota

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.model.selection import Candidate
    from pytest_specdec.model.workload import Workload

__all__ = ["ranked", "selected"]

_MOST = 1.5
"""Times its even share of the prompts, that a category may have: what hits drafters that copy shows where copies are asked for."""


def selected(pool: Workload, candidates: Sequence[Candidate], why: str = "") -> Selection:
    """Return the selection for ``pool``: :func:`ranked` candidates, or its first prompts where too few have scored tokens.

    ``why`` is the reason that the survey gives for what it lacks.
    """
    count, scored = quota(pool), [candidate for candidate in candidates if candidate.tokens]
    if len(scored) < count:
        return first(pool, f"{len(scored)} of {len(pool.prompts)} have scored answers" + (f": {why}" if why else ""), candidates)
    return Selection(workload=pool.name, chosen=ranked(scored, count), candidates=tuple(candidates))


def ranked(candidates: Sequence[Candidate], count: int) -> tuple[str, ...]:
    """Return the ids of the ``count`` most informative candidates per token, the best first, ties in their order.

    Of every category the best one comes first, as far as ``count`` goes; then no category gets more than one and a half times its even
    share, ``ceil(1.5 * count / categories)``, unless the others have too few.
    """
    order = sorted(candidates, key=lambda one: -one.per_token)
    best = {one.category: one for one in reversed(order)}
    heads = [one for one in order if best[one.category] is one][:count]
    most = ceil(_MOST * count / len(best)) if best else 0
    taken, had = list(heads), Counter(one.category for one in heads)
    rest = [one for one in order if one not in heads]
    for one in rest:
        if len(taken) < count and had[one.category] < most:
            taken.append(one)
            had[one.category] += 1
    taken += [one for one in rest if one not in taken][: count - len(taken)]
    return tuple(one.id for one in sorted(taken, key=order.index))
