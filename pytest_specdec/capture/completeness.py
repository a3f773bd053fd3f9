"""Completeness: the results that a plan needs, those that are written, and why the rest is missing."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pytest_specdec.capture import estimate
from pytest_specdec.errors import BootError, CaptureError
from pytest_specdec.model.status import BootTime, MissingAnswers, State, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.capture.estimate import EstimatedStep
    from pytest_specdec.capture.remaining import ReusableResults
    from pytest_specdec.capture.server.server import ArmServer
    from pytest_specdec.errors import SpecdecError
    from pytest_specdec.model.plan import Boot, Plan, ScoringTask


class Completeness:
    """Records the complete and the missing results of one capture.

    A boot is one server's start with its work: answers of an arm to workloads, and scores of answers. Answers are recorded by arm and
    workload, scores by boot, arm and workload. A gap is the reason why a result is not whole.
    """

    def __init__(self, plan: Plan, *, earlier: Status | None = None, version: str = "") -> None:
        """Begin the record of ``plan``, or continue an earlier one.

        ``earlier`` is the status of an earlier capture of the plan, and ``version`` the version of the engine that it was made with.
        """
        self._plan = plan
        self._version = version
        self._old_version = ""  # of the old engine, compared within one capture; empty before its first server
        self._answered: set[tuple[str, str]] = set()
        self._scored: set[tuple[int, str, str]] = set()
        self._answer_gaps: dict[tuple[str, str], str] = {}
        self._score_gaps: dict[tuple[int, str, str], str] = {}
        self._boot_errors: dict[int, str] = {}
        self._lasting = False  # whether a boot had an error that comes again with the same command, as of a wrong setting
        initial = earlier or Status(state=State.RUNNING)
        self._earlier_served = {time.boot: time for time in initial.served}
        self._served: dict[int, BootTime] = {}
        """By boot: its times in this capture. ``_rates``, those for later estimates, stay the earlier ones if these show too little."""
        self._boots, self._restarts, self._wall_s, self._rates = initial.boots, initial.restarts, initial.wall_s, initial.rates
        self._warnings: dict[str, None] = dict.fromkeys(initial.warnings)
        self._lock = threading.Lock()

    def warn(self, text: str) -> None:
        """Record a warning; it does not end the capture."""
        with self._lock:
            self._warnings[text] = None

    def record_boot(self) -> None:
        """Record one boot of a server."""
        with self._lock:
            self._boots += 1

    def record_reusable(self, reusable: ReusableResults) -> None:
        """Record the complete results of an earlier capture as results of this one."""
        self._answered |= reusable.answers
        self._scored |= {
            (boot.index, task.arm, task.workload) for boot in self._plan.boots for task in boot.scores if reusable.has(boot, task)
        }

    def enter_version(self, version: str) -> bool:
        """Record an engine's version; return True if it is the first.

        A server that reports no version changes nothing. Raises CaptureError if earlier servers of the run had another version.
        """
        with self._lock:
            if version and self._version and version != self._version:
                what = "the engine has another version than the one that began this run"
                raise CaptureError(
                    what, found=version, expected=self._version, remedy="start a run in another directory: --specdec-run-dir"
                )
            is_first = bool(version) and not self._version
            self._version = self._version or version
            return is_first

    def enter_old_version(self, version: str) -> None:
        """Record the version of the old engine, the one in use.

        Raises BootError if an earlier server of that engine had another one: the boot's results then count as missing, and the capture
        goes on.
        """
        with self._lock:
            if version and self._old_version and version != self._old_version:
                what = "the old engine has another version than its earlier servers in this run"
                raise BootError(what, found=version, expected=self._old_version, remedy="install nothing while a run captures")
            self._old_version = self._old_version or version

    def record_end(self, boot: Boot, server: ArmServer) -> None:
        """Record a stopped server's restarts, times and busy fraction.

        The busy fraction is that of the time with a request in flight. A server that never became ready has no times.
        """
        with self._lock:
            self._restarts += server.restarts
            if server.wall_s > 0:
                self._served[boot.index] = BootTime(
                    boot=boot.index,
                    arm=boot.arm,
                    readiness_s=round(server.readiness_s, 3),
                    wall_s=round(server.wall_s, 3),
                    busy=round(server.busy_s / server.wall_s, 3),
                )

    def record_transcript(self, arm: str, workload: str, missing: str) -> None:
        """Record a written transcript, whole if ``missing`` is empty.

        Otherwise ``missing`` is the reason why it is not whole.
        """
        if missing:
            self._answer_gaps[arm, workload] = missing
        else:
            self._answered.add((arm, workload))

    def has_answers(self, arm: str, workload: str) -> bool:
        """Return True if a whole transcript is there."""
        return (arm, workload) in self._answered

    def is_settled(self, boot: Boot, arm: str, workload: str) -> bool:
        """Return True if ``boot`` will give no more answers to ``workload``.

        Either ``arm``, one of its arms, has answered it, maybe in part, or the boot has failed or was left out.
        """
        return self.has_answers(arm, workload) or (arm, workload) in self._answer_gaps or boot.index in self._boot_errors

    def record_scores(self, boot: Boot, task: ScoringTask, missing: str) -> None:
        """Record written scores, whole if ``missing`` is empty.

        Otherwise ``missing`` is the reason why some are not there.
        """
        if missing:
            self._score_gaps[boot.index, task.arm, task.workload] = missing
        else:
            self._scored.add((boot.index, task.arm, task.workload))

    def record_error(self, boot: Boot, error: SpecdecError) -> None:
        """Record the error of a boot with work left undone.

        The status then says whether the same command would end in it again (a lasting error); errors of the old engine's boots do not
        count there.
        """
        self.record_reason(boot, str(error))
        self._lasting = self._lasting or (error.lasting and not boot.role.is_old)

    def record_reason(self, boot: Boot, reason: str) -> None:
        """Record the reason for a boot's undone work."""
        self._boot_errors[boot.index] = reason

    def status(self, *, wall_s: float, done_s: Mapping[EstimatedStep, float], error: str = "", lasting: bool = False) -> Status:
        """Return the capture's status, with all its missing results.

        ``wall_s`` are this session's seconds; those of earlier sessions are added. ``done_s`` are the seconds that completed steps took:
        they give the ``rates`` of the next estimate, unless too few are done. ``error`` is the error that ended the whole capture, empty
        without one, and ``lasting`` is True if the same command would end in it again. Missing results of an old engine's boots are listed
        apart, and leave the capture complete.
        """
        missing, missing_old = self._missing_results(error, is_old=False), self._missing_results(error, is_old=True)
        return Status(
            state=State.INCOMPLETE if missing or error else State.COMPLETE,
            missing=missing,
            missing_old=missing_old,
            boots=self._boots,
            restarts=self._restarts,
            wall_s=round(self._wall_s + wall_s, 3),
            error=error,
            lasting=lasting or self._lasting,
            served=tuple(served for _, served in sorted({**self._earlier_served, **self._served}.items())),
            rates=estimate.measured_rates(self._plan, done_s, {boot: time.readiness_s for boot, time in self._served.items()}, wall_s)
            or self._rates,
            warnings=tuple(self._warnings),
        )

    def _missing_results(self, error: str, *, is_old: bool) -> tuple[MissingAnswers, ...]:
        """Return the missing results of some boots, with their reasons.

        They are the old engine's boots if ``is_old``, else all others. ``error`` ended the whole capture, empty without one. A boot's own
        error comes before it as a reason.
        """
        missing: list[MissingAnswers] = []
        for boot in self._plan.boots:
            if boot.role.is_old is is_old:
                reason = self._boot_errors.get(boot.index) or error or "the capture ended before this"
                for arm in boot.arms:
                    missing += self._missing_answers(arm, boot, reason)
                missing += self._missing_scores(boot, reason)
        return tuple(missing)

    def _missing_answers(self, arm: str, boot: Boot, reason: str) -> list[MissingAnswers]:
        """Return the missing answers of an arm, one entry per workload.

        The reason is the gap of the workload, or else ``reason``, that of the boot. If the boot gave no answers at all, not even in part,
        there is only one entry, with an empty workload. Empty if nothing is missing.
        """
        unanswered = [name for name in boot.answers if (arm, name) not in self._answered]
        gave_none = len(unanswered) == len(boot.answers) and not any((arm, name) in self._answer_gaps for name in unanswered)
        if gave_none:
            return [MissingAnswers(arm=arm, workload="", reason=reason)] if unanswered else []
        return [MissingAnswers(arm=arm, workload=name, reason=self._answer_gaps.get((arm, name), reason)) for name in unanswered]

    def _missing_scores(self, boot: Boot, reason: str) -> list[MissingAnswers]:
        """Return the missing scores of a boot for existing answers.

        Missing answers have no scores to miss, and are reported as missing answers alone. ``boot.under`` names the model whose scores these
        are.
        """
        return [
            MissingAnswers(
                arm=task.arm,
                workload=task.workload,
                reason=f"no scores under {boot.under}: {self._score_gaps.get((boot.index, task.arm, task.workload), reason)}",
            )
            for task in boot.scores
            if (boot.index, task.arm, task.workload) not in self._scored and (task.arm, task.workload) in self._answered
        ]
