"""The answer of a run: whether the pair is safe to switch on, for correctness and for speed, and what is wrong in a sentence a variant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Family
from pytest_specdec.report.escape import printable
from pytest_specdec.report.run import PytestOutcome
from pytest_specdec.report.table import CellText, Tone

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pytest_specdec.report.run import JudgementResult, Run

__all__ = ["correctness", "not_tested", "speed", "wrong"]


def correctness(run: Run) -> CellText:
    """Return whether anything wrong was found in the answers."""
    mine = [j for j in run.judgements if j.family is not Family.SPEED]
    if not mine:
        return CellText(text="CORRECTNESS: not tested", tone=Tone.UNSURE)
    red = [j for j in mine if _red(j)]
    if red:
        return CellText(text=f"CORRECTNESS: WRONG ({_pairs(red)})", tone=Tone.BAD)
    if not any(j.judged for j in mine):
        return CellText(text="CORRECTNESS: nothing could be judged", tone=Tone.BAD)
    failed = [j for j in mine if j.result in {PytestOutcome.FAILED, PytestOutcome.ERROR}]
    if failed:
        return CellText(text=f"CORRECTNESS: {len(failed)} of {len(mine)} judgements could not be made", tone=Tone.BAD)
    suspicious = [j for j in mine if j.verdict and j.verdict.outcome is Outcome.SUSPICIOUS]
    if suspicious:
        return CellText(text=f"CORRECTNESS: SUSPICIOUS ({_pairs(suspicious)})", tone=Tone.UNSURE)
    open_ = sum(not j.judged for j in mine)
    undecided = f" ({open_} of {len(mine)} judgements undecided)" if open_ else ""
    return CellText(text=f"CORRECTNESS: nothing wrong found{undecided}", tone=Tone.UNSURE if open_ else Tone.GOOD)


def speed(run: Run) -> CellText:
    """Return whether the speedup was decided on, and how."""
    mine = [j for j in run.judgements if j.family is Family.SPEED]
    if not mine:
        return CellText(text="SPEED: not tested", tone=Tone.UNSURE)
    red = [j for j in mine if _red(j)]
    if red:
        return CellText(text=f"SPEED: BELOW ITS GATE ({_pairs(red)})", tone=Tone.BAD)
    if any(j.result is PytestOutcome.ERROR for j in mine):
        return CellText(text="SPEED: not measured", tone=Tone.BAD)
    undecided = [j for j in mine if not _decided(j)]
    if undecided:
        return CellText(text=f"SPEED: NOT GATED ({_pairs(undecided)})", tone=Tone.UNSURE)
    if not any(j.verdict and "speedup" in j.verdict.figures for j in mine):
        return CellText(text="SPEED: not tested", tone=Tone.UNSURE)
    return CellText(text="SPEED: above its gate", tone=Tone.GOOD)


def _red(judgement: JudgementResult) -> bool:
    """Whether it failed because something is wrong, and not because nothing could be decided where that was required."""
    return judgement.result is PytestOutcome.FAILED and (judgement.verdict is None or judgement.verdict.red)


def _decided(judgement: JudgementResult) -> bool:
    return judgement.verdict is not None and judgement.verdict.outcome is Outcome.PASS


def _pairs(judgements: Iterable[JudgementResult]) -> str:
    return printable(", ".join(dict.fromkeys(j.pair for j in judgements)))


def wrong(run: Run) -> Iterator[CellText]:
    """Yield a line for each fault that was found in a variant, with the families that name it."""
    for pair in run.pairs:
        families: dict[str, list[str]] = {}
        for one in run.judgements:
            if one.pair == pair and _red(one):
                families.setdefault(_fault(one), []).append(one.family.value)
        for fault, names in families.items():
            yield CellText(text=printable(f"WRONG: {pair}: {fault} ({', '.join(dict.fromkeys(names))})"), tone=Tone.BAD)


def _fault(judgement: JudgementResult) -> str:
    verdict = judgement.verdict
    if verdict is None:
        return f"{judgement.workload}: the test failed without a verdict"
    return verdict.names or verdict.headline


def not_tested(run: Run) -> str:
    """Return which families of faults no test of the run looked for; empty when all were."""
    left = [name for name in run.plan.rows if name not in run.families]
    return f"Not tested: {', '.join(left)}" if left else ""
