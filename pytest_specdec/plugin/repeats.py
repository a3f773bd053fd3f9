"""Repeats: what a count of wrong tokens leaves open is asked again in the same run, before its tests are judged.

A fault of the engine comes back. A jump, a rare and harmless change of the numbers as when experts of a mixture flip, does not. A judgement
is a verdict on a pair, the baseline and one speculative variant, for one workload.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.capture import extension
from pytest_specdec.errors import RunError
from pytest_specdec.files import captured as stored
from pytest_specdec.files import run_documents
from pytest_specdec.judge import registry
from pytest_specdec.model.families import COUNTED
from pytest_specdec.model.plan import ROUNDS
from pytest_specdec.model.status import State
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Depth
from pytest_specdec.stats.noise import kernel_noise

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_specdec.model.plan import Judgement
    from pytest_specdec.model.status import Status
    from pytest_specdec.plugin.run_state import RunState


def ask_again(run: RunState, status: Status, capture: Callable[[], Status]) -> Status:
    """Send the requests behind suspicious counts again; return the last status.

    A count of wrong tokens is suspicious if it is high for noise and too low for an alarm. While there is such a count, its workload is
    added to the run's plan once more, with the same requests, as a numbered round. ``capture`` carries that out, ``ROUNDS`` times at most.
    ``status`` is that of the capture so far.

    Nothing is sent again at smoke depth, under a deadline, or if the run is incomplete. Nor is it if the servers' kernels
    are exact, since one wrong token is proof then.
    """
    if run.plan.depth is Depth.SMOKE or run.settings.deadline_s is not None:
        return status
    # ``decode`` is the baseline's calibration, its noise as measured in the run: the same for every pair.
    if kernel_noise(run.calibrations(run.plan.pairs[0].name).decode).exact:
        return status
    for _ in range(ROUNDS):
        judgements = _open_judgements(run) if status.state is State.COMPLETE else []
        if not judgements:
            break
        names = {judgement.workload for judgement in judgements}
        workloads = {name: run.plan.workload(name) for name in sorted(names)}
        pairs = [judgement.pair for judgement in judgements]
        run.plan = extension.extend(run.plan, workloads, pairs, extension.rounds(run.plan) + 1, again=names)
        run_documents.write_plan(run.directory, run.plan)
        status = capture()
    return status


def _open_judgements(run: RunState) -> list[Judgement]:
    """Return the judgements whose count of wrong tokens is suspicious."""
    return [judgement for judgement in run.plan.judgements if judgement.family in COUNTED and _is_open(run, judgement)]


def _is_open(run: RunState, judgement: Judgement) -> bool:
    """Return True if the judge finds the answers so far suspicious.

    Less evidence is needed for that here than in the test: to ask again in vain costs only time. False if the answers cannot be read; their
    test reports that.
    """
    try:
        answers = stored.read(run.directory, run.plan, judgement, run.gates, run.calibrations(judgement.pair))
    except RunError:
        return False
    judge = registry.judge_of(run.families[judgement.family])
    verdict = judge(replace(answers, repeatable=True))  # repeatable: the judge then calls a count suspicious at less evidence
    return verdict.outcome is Outcome.SUSPICIOUS
