"""The ledger: what a plan wants, what has been written, and why the rest is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.model.pair import BASELINE, CONTROL
from pytest_specdec.model.plan import Role
from pytest_specdec.model.status import Missing, State, Status

if TYPE_CHECKING:
    from pytest_specdec.model.plan import Boot, Plan

__all__ = ["Ledger"]


class Ledger:
    """Keeps the account of one capture."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._answered: set[tuple[str, str]] = set()
        self._scored: set[tuple[int, str, str]] = set()
        self._answer_gaps: dict[tuple[str, str], str] = {}
        self._score_gaps: dict[tuple[int, str, str], str] = {}
        self._boot_errors: dict[int, str] = {}
        self.boots = 0
        self.restarts = 0

    def answered(self, arm: str, workload: str, missing: str) -> None:
        """Enter a transcript, with the reason if it is not whole."""
        if missing:
            self._answer_gaps[arm, workload] = missing
        else:
            self._answered.add((arm, workload))

    def scored(self, boot: Boot, arm: str, workload: str, missing: str) -> None:
        """Enter scores, with the reason if some are not there."""
        if missing:
            self._score_gaps[boot.index, arm, workload] = missing
        else:
            self._scored.add((boot.index, arm, workload))

    def failed(self, boot: Boot, error: str) -> None:
        """Enter that a boot came to an end before its work was done."""
        self._boot_errors[boot.index] = error

    def status(self, *, wall_s: float, error: str = "") -> Status:
        """Close the account; ``error`` is what ended the whole capture, where something did."""
        missing = tuple(entry for boot in self._plan.boots for entry in self._missing(boot, error))
        return Status(
            state=State.INCOMPLETE if missing or error else State.COMPLETE,
            missing=missing,
            boots=self.boots,
            restarts=self.restarts,
            wall_s=round(wall_s, 3),
            error=error,
        )

    def _missing(self, boot: Boot, error: str) -> list[Missing]:
        reason = self._boot_errors.get(boot.index) or error or "the capture ended before this"
        missing: list[Missing] = []
        for arm in (BASELINE, CONTROL) if boot.also_baseline else (boot.arm,):
            missing += self._missing_answers(arm, boot, reason)
        return missing + self._missing_scores(boot, reason)

    def _missing_answers(self, arm: str, boot: Boot, reason: str) -> list[Missing]:
        gaps = [name for name in boot.answers if (arm, name) not in self._answered]
        if len(gaps) == len(boot.answers) and not any((arm, name) in self._answer_gaps for name in gaps):
            return [Missing(arm=arm, workload="", reason=reason)] if gaps else []
        return [Missing(arm=arm, workload=name, reason=self._answer_gaps.get((arm, name), reason)) for name in gaps]

    def _missing_scores(self, boot: Boot, reason: str) -> list[Missing]:
        """Leave out scores of tokens that are missing themselves."""
        under = boot.arm if boot.role is Role.DRAFT else BASELINE
        gaps = [pair for pair in boot.scores if (boot.index, *pair) not in self._scored and pair in self._answered]
        return [
            Missing(arm=arm, workload=name, reason=f"no scores under {under}: {self._score_gaps.get((boot.index, arm, name), reason)}")
            for arm, name in gaps
        ]
