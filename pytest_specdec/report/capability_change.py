"""What the servers of a new run offer otherwise than those of an earlier one, in words.

An arm is the baseline or a variant, each on a server of its own. The effect of a feature, such as a sampling parameter, is what an arm does
with it: honour, refuse, ignore it, or fail on it. A probe learns it from a few requests, a verdict from all answers to a workload.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.judge.parameter_effects import ParameterEffect
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.report import parameter_table
from pytest_specdec.report.escape import printable
from pytest_specdec.report.run import PytestOutcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_specdec.report.run import JudgementResult, Run

__all__ = ["CapabilityChange", "compare_capabilities", "describe_healed"]

_VERBS = {
    ParameterEffect.HONOURED: "honours",
    ParameterEffect.REFUSED: "refuses",
    ParameterEffect.IGNORED: "ignores",
    ParameterEffect.HARMFUL: "fails-on",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CapabilityChange:
    """One feature or parameter that servers treat otherwise than before."""

    feature: str
    old: ParameterEffect
    new: ParameterEffect
    arms: tuple[str, ...]
    is_loss: bool
    """Whether it was honoured and surely is no more."""
    is_probed: bool
    """Whether a probe alone calls it ignored: that may be chance, as its answers differ by noise."""

    @property
    def name(self) -> str:
        """The name under which a config accepts it: ``refuses-min_p``."""
        return f"{_VERBS[self.new]}-{self.feature}"

    def __str__(self) -> str:
        """Return the line that people read: ``now refuses min_p, which was honoured: baseline, draft-k3``."""
        verb = _VERBS[self.new].replace("-", " ")
        says = "by a single probe, which noise can mislead, now" if self.is_probed else "now"
        return printable(f"{says} {verb} {self.feature}, which was {self.old.value}: {', '.join(self.arms)}")


def compare_capabilities(old: Run, new: Run) -> tuple[CapabilityChange, ...]:
    """Return the features and parameters with another effect in the new run.

    Equal changes of several arms are one :class:`CapabilityChange`, losses first. An effect counts only if both runs know it of the same
    arm: a parameter that no request set, or of which nothing was decided, is no change. A feature that no verdict, but only a probe, calls
    ignored is no loss: noise can mislead a probe.
    """
    old_effects, new_effects, judged_effects = _effects(old), _effects(new), parameter_table.effects(new)
    arms_by_change: dict[tuple[str, ParameterEffect, ParameterEffect], list[str]] = {}
    for arm in old_effects:
        for feature, old_effect in old_effects[arm].items():
            new_effect = new_effects.get(arm, {}).get(feature)
            if new_effect is not None and new_effect is not old_effect:
                arms_by_change.setdefault((feature, old_effect, new_effect), []).append(arm)
    changes = []
    for (feature, old_effect, new_effect), arms in arms_by_change.items():
        # No verdict of the new run says so: the probe alone does.
        is_probed = new_effect is ParameterEffect.IGNORED and all(judged_effects.get(arm, {}).get(feature) != new_effect for arm in arms)
        is_loss = old_effect is ParameterEffect.HONOURED and not is_probed
        changes.append(
            CapabilityChange(feature=feature, old=old_effect, new=new_effect, arms=tuple(arms), is_loss=is_loss, is_probed=is_probed)
        )
    return tuple(sorted(changes, key=lambda change: (not change.is_loss, change.feature)))


def _effects(run: Run) -> Mapping[str, Mapping[str, ParameterEffect]]:
    """Return the known effect of each feature, by arm and feature.

    Probed effects come first, and judged ones replace them. Features of unknown effect, which :data:`_VERBS` does not have, are left out.
    """
    by_arm: dict[str, dict[str, ParameterEffect]] = {}
    probed = {
        arm: {feature: support.value for feature, support in capabilities.support.items()}
        for arm, capabilities in sorted(run.capabilities.items())
    }
    for effects_by_arm in (probed, parameter_table.effects(run)):
        for arm, effect_texts in effects_by_arm.items():
            effects = {feature: ParameterEffect(text) for feature, text in effect_texts.items() if text in _VERBS}
            by_arm.setdefault(arm, {}).update(effects)
    return by_arm


def describe_healed(old: Run, new: Run) -> Iterator[str]:
    """Yield a line for each waived failure of ``old`` that passes in ``new``.

    It names the old waiver. If the new config still has one, the line asks to remove it.
    """
    waived = {_judgement_key(judgement): judgement for judgement in old.judgements if judgement.result is PytestOutcome.WAIVED}
    for judgement in new.judgements:
        waived_before = waived.get(_judgement_key(judgement))
        if waived_before is not None and judgement.verdict is not None and judgement.verdict.outcome is Outcome.PASS:
            remove = "; remove its waiver" if judgement.waiver else ""
            about = f"{judgement.family.value} of {judgement.workload} on {judgement.pair}"
            yield printable(f"healed: {about}, waived before by {waived_before.waiver}{remove}")


def _judgement_key(judgement: JudgementResult) -> tuple[str, str, str, str]:
    """Return the key that the same judgement of two runs shares."""
    return (judgement.nodeid, judgement.pair, judgement.workload, judgement.family.value)
