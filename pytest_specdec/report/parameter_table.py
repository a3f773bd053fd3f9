"""The matrix of parameters: what each server does with each sampling parameter, over all verdicts that say so.

An arm is one server of the run: the baseline, or a variant, the same model with speculation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.report.escape import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.report.run import Run

_HONOURED, _NOT_ASKED = "honoured", "not asked"
_WORST_FIRST = ("harmful", "ignored", "refused", _HONOURED, "not decided", "did not bind", _NOT_ASKED)
"""Of a parameter that several workloads ask for, the first that one of them shows."""


def effects(run: Run) -> dict[str, dict[str, str]]:
    """Return the worst effect of each sampling parameter, by arm and parameter.

    An effect is a word on what the arm does with it, such as ``honoured``, ``refused`` or ``ignored``. Of several verdicts on one parameter
    the worst counts. Empty if no verdict reports any.
    """
    by_arm: dict[str, dict[str, str]] = {}
    for judgement in run.judgements:
        for arm, parameters in (judgement.verdict.parameters if judgement.verdict else {}).items():
            arm_effects = by_arm.setdefault(arm, {})
            for name, effect in parameters.items():
                arm_effects[name] = min(arm_effects.get(name, effect), effect, key=_rank_from_worst)
    return {arm: by_arm[arm] for arm in sorted(by_arm)}


def _rank_from_worst(effect: str) -> int:
    """Return the place of an effect in :data:`_WORST_FIRST`; an unknown text comes last."""
    return _WORST_FIRST.index(effect) if effect in _WORST_FIRST else len(_WORST_FIRST)


def rows(run: Run) -> tuple[tuple[str, ...], ...]:
    """Return a table of effects, a row per parameter, header first.

    Each arm has a column. Parameters that no request sets are left out. Empty if none is left.
    """
    by_arm = effects(run)
    names = dict.fromkeys(name for arm_effects in by_arm.values() for name, effect in arm_effects.items() if effect != _NOT_ASKED)
    if not names:
        return ()
    header = ("parameter", *by_arm)
    body = [(name, *(arm_effects.get(name, "-") for arm_effects in by_arm.values())) for name in names]
    return tuple(tuple(printable(text) for text in row) for row in (header, *body))


def not_honoured_line(by_arm: Mapping[str, Mapping[str, str]]) -> str:
    """Return a line naming the parameters not honoured, with their arms.

    ``by_arm`` is the result of :func:`effects`. Not honoured is a parameter that is refused, ignored or answered with a failure. Empty if
    all are honoured.
    """
    arms_by_effect: dict[tuple[str, str], list[str]] = {}
    for arm, parameters in by_arm.items():
        for name, effect in parameters.items():
            if _rank_from_worst(effect) < _WORST_FIRST.index(_HONOURED):
                arms_by_effect.setdefault((name, effect), []).append(arm)
    return printable("; ".join(f"{name} {effect} by {', '.join(arms)}" for (name, effect), arms in arms_by_effect.items()))
