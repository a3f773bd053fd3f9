"""Progress: where a capture stands, what it has left to do, and whether its time is used up.

A boot is one start of a server with all its work. Its steps are booting, probing, answering or scoring one workload, and stopping. An
:class:`EstimatedStep` has the seconds that a step was expected to take before the capture began. Concurrent boots have a reporter each, and
one clock.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_specdec.capture import estimate
from pytest_specdec.errors import DeadlineError
from pytest_specdec.model.status import Progress, StepKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_specdec.capture.estimate import EstimatedStep
    from pytest_specdec.model.plan import Boot

_EVERY_S = 0.5
"""Seconds between two reports of a step that counts requests."""
_HEARTBEAT_S = 5.0
"""Seconds between two reports of a step without a count, such as a boot."""
_MOST_DONE = 0.95
"""Largest fraction of such a step that counts as done while it runs, however long it takes."""
_STEADYING = 0.05
"""Part of all answers that is taken to have gone at the estimated pace: the first ones alone would tell of hours."""


@dataclass(slots=True)
class _AnswersLeft:
    """What concurrent boots have left to answer, and how fast they answer.

    Timed answers are counted apart from others: no other server answers meanwhile, and the config's ``speed:`` settings may slow theirs.
    """

    left_s: dict[int, float] = field(default_factory=dict)
    """By boot: estimated seconds."""
    planned_s: float = 0.0
    """Estimated seconds of all answers, given or left."""
    taken_s: float = 0.0
    """Seconds that the answers took so far."""

    @property
    def remaining_s(self) -> float:
        """Seconds left: the estimate, scaled by the pace so far.

        The pace is the seconds taken, divided by the seconds estimated for what is done. A part of the whole estimate is added to both, as
        if it had gone at the estimated pace, since the first answers alone would give a wild pace.
        """
        left_s, margin_s = sum(self.left_s.values()), _STEADYING * self.planned_s
        return left_s * (self.taken_s + margin_s) / (self.planned_s - left_s + margin_s) if margin_s else left_s

    def drop(self, boot: int) -> None:
        """Leave out what a boot has left, since it gives no more answers."""
        self.planned_s -= self.left_s.pop(boot, 0.0)


@dataclass(slots=True)
class _CaptureClock:
    """What all reporters of one capture have in common."""

    now_s: Callable[[], float]
    began_s: float
    deadline_s: float | None
    ended: str = ""
    """Why the capture was ended before its deadline; empty if it was not."""
    answers_left: dict[bool, _AnswersLeft] = field(default_factory=dict)
    """Where servers run side by side: timed answers (True), and other answers and probes (False)."""
    counted_s: float | None = None
    """When time was last counted as that of answers, in seconds since the capture began; None before the first answer."""
    done_s: dict[EstimatedStep, float] = field(default_factory=dict)
    """Seconds that completed steps took, of those that count requests."""


class Reporter:
    """Reports how far a capture is, and enforces its deadline.

    :meth:`check` raises DeadlineError once the capture's time is used up.
    """

    def __init__(
        self,
        steps: Sequence[EstimatedStep],
        boots: int,
        deadline_s: float | None,
        on_progress: Callable[[Progress], None],
        *,
        now_s: Callable[[], float] = time.monotonic,
        clock: _CaptureClock | None = None,
    ) -> None:
        """Take the estimated steps of ``boots`` boots, and the deadline.

        ``deadline_s`` are the seconds that the capture may take, None for no limit. ``on_progress`` gets every report. ``now_s`` returns
        the time in seconds. Reporters of concurrent boots share one ``clock``, which has the capture's beginning, deadline and end.
        """
        self._steps = steps
        self._boots = boots
        self._on_progress = on_progress
        self._clock = clock or _CaptureClock(now_s, now_s(), deadline_s)
        self._current: Progress | None = None
        """The step under way; None before the first."""
        self._reported_s = 0.0
        """When progress was last reported, in seconds since the capture began."""
        self._step_index = 0
        """Index of the last estimated step that was reported: it stands for a step without an estimate after it."""
        self._step_left_s = [step.seconds for step in steps]
        """Of concurrent boots, for each step of this one: the estimated seconds left."""
        self._begun: int | None = None
        """Of concurrent boots: the step of this one that is over once another is reported; None before its first."""

    def boot_reporter(self, boot: Boot) -> Reporter:
        """Return a reporter for one of several concurrent boots.

        It has the steps of that boot alone, and shares the clock, and its deadline, with the others.
        """
        if not self._clock.answers_left:  # the first concurrent boot: the clock adds up from here on what all boots have left
            self._clock.answers_left = {timed: _plan_answers(self._steps, timed=timed) for timed in (True, False)}
        steps = [step for step in self._steps if step.boot == boot.index]
        return Reporter(steps, self._boots, deadline_s=None, on_progress=self._on_progress, clock=self._clock)

    def drop(self, boot: Boot) -> None:
        """Leave the remaining answers of a failed or needless boot out of the time left."""
        for answers in self._clock.answers_left.values():
            answers.drop(boot.index)

    def end(self, why: str) -> None:
        """Mark the capture's time as used up for all its reporters.

        ``why`` is the reason; the first one given stays.
        """
        self._clock.ended = self._clock.ended or why

    @property
    def elapsed_s(self) -> float:
        """Seconds since the capture began."""
        return self._clock.now_s() - self._clock.began_s

    @property
    def done_s(self) -> Mapping[EstimatedStep, float]:
        """Seconds taken by each completed step of the estimate that counts requests: answering or scoring."""
        return dict(self._clock.done_s)

    @property
    def left_s(self) -> float:
        """Seconds until the deadline; infinite without one, 0 once ended."""
        if self._clock.ended:
            return 0.0
        return float("inf") if self._clock.deadline_s is None else self._clock.deadline_s - self.elapsed_s

    def check(self) -> None:
        """Raise DeadlineError if the capture's time is used up, or ended.

        Its text is the reason given to :meth:`end`, if there is one.
        """
        if self._clock.ended:
            raise DeadlineError(self._clock.ended)
        if self.left_s <= 0:
            what = "the time given to the capture is used up"
            raise DeadlineError(
                what,
                found=f"{self.elapsed_s:.0f} s elapsed",
                expected=f"at most {self._clock.deadline_s or 0:g} s",
                remedy="raise --specdec-deadline, or select fewer tests or variants",
            )

    def step(self, boot: Boot, doing: str, arm: str, workload: str = "", *, of: int = 0) -> None:
        """Begin a step of ``boot`` and report its beginning.

        ``doing`` names it. ``of`` is the number of requests that it counts, 0 for a step without a count.
        """
        self._current = Progress(at_s=self.elapsed_s, boot=boot.index, boots=self._boots, arm=arm, doing=doing, workload=workload, of=of)
        self.update(0, 0, now=True)

    def extend(self, of: int) -> None:
        """Set the number of requests counted by the current step."""
        if self._current is not None:
            self._current = replace(self._current, of=of)

    def say(self, what: str) -> None:
        """Report a message about the current boot at once."""
        if self._current is not None:
            self._on_progress(replace(self._current, at_s=round(self.elapsed_s, 3), doing=what, workload="", of=0))

    def update(self, done: int, tokens: int, *, now: bool = False) -> None:
        """Report the step's progress, at most twice a second.

        ``done`` requests have brought ``tokens`` tokens. A step without a count is reported every few seconds; the beginning of a step
        (``now``) always is, and so is the end of one with a count. The time of a completed step that counts requests is recorded, to
        correct the rates of later estimates.
        """
        current = self._current
        if current is None:
            return
        is_complete = 0 < done == current.of  # never so for a step without a count
        interval_s = _EVERY_S if current.of else _HEARTBEAT_S
        if not (now or is_complete or self.elapsed_s - self._reported_s >= interval_s):
            return
        self._reported_s = self.elapsed_s
        index = self._planned_step(current)
        if index is not None and is_complete:
            self._clock.done_s[self._steps[index]] = self._reported_s - current.at_s
        fraction = done / current.of if current.of else self._fraction_by_clock(current)
        self._on_progress(
            Progress(
                at_s=round(self._reported_s, 3),
                boot=current.boot,
                boots=current.boots,
                arm=current.arm,
                doing=current.doing,
                workload=current.workload,
                done=done,
                of=current.of,
                tokens=tokens,
                remaining_s=self._remaining_s(current, fraction),
            )
        )

    def _fraction_by_clock(self, current: Progress) -> float:
        """Return the done fraction of a step without a count, 0..1.

        It is the time taken so far, divided by the estimate, but never all of it while the step runs.
        """
        index = self._planned_step(current)
        if index is None:
            return 1.0  # the estimated step before it stands for it, and is over
        taken_s = self._reported_s - current.at_s
        return min(taken_s / self._steps[index].seconds, _MOST_DONE)

    def _remaining_s(self, current: Progress, fraction: float) -> float | None:
        """Return the seconds left of the capture, None without steps.

        ``fraction`` of the current step is done. The estimate of what is left is scaled by the pace so far. The result is at most the time
        until the deadline.
        """
        if not self._steps:
            return None
        planned_index = self._planned_step(current)
        if planned_index is not None:  # else the last step with an estimate stands for it
            self._step_index = planned_index
        index = self._step_index
        if self._clock.answers_left:  # boots are concurrent
            self._update_clock(index, fraction)
            return round(min(self._remaining_beside_others_s(), self.left_s), 1)
        earlier_s, step_s = estimate.seconds(self._steps[:index]), self._steps[index].seconds
        left_s = estimate.seconds(self._steps[index:]) - fraction * step_s
        # The steps before this one took ``at_s`` seconds, and were estimated at ``earlier_s``.
        pace = current.at_s / earlier_s if earlier_s > 0 else 1.0
        return round(min(left_s * pace, self.left_s), 1)

    def _update_clock(self, index: int, fraction: float) -> None:
        """Enter in the shared clock what this boot has left, ``fraction`` of its step ``index`` being done."""
        clock, current = self._clock, self._steps[index]
        if self._begun is not None:  # over, whatever their order; if it is this step itself, the next line says what is left
            self._step_left_s[self._begun] = 0.0
        self._begun, self._step_left_s[index] = index, (1.0 - fraction) * current.seconds
        if current.kind is StepKind.STOPPING:  # earlier steps that it has left out never come
            self._step_left_s[:index] = [0.0] * index
        if current.added_s:  # the boot answers or probes: the time since any boot's last such report was taken by answers
            clock.answers_left[current.timed].taken_s += 0.0 if clock.counted_s is None else self._reported_s - clock.counted_s
            clock.counted_s = self._reported_s
        for timed, answers in clock.answers_left.items():
            steps_left = zip(self._steps, self._step_left_s, strict=True)
            answers.left_s[current.boot] = sum(left_s for step, left_s in steps_left if step.added_s and step.timed is timed)

    def _remaining_beside_others_s(self) -> float:
        """Return the seconds left of all concurrent boots together.

        Answers and probes of all boots share one machine, so that what is left of these adds up. Booting and scoring overlap them. The
        result is at least what this boot alone has left, scores included.
        """
        answering_s = sum(answers.remaining_s for answers in self._clock.answers_left.values())
        return max(answering_s, sum(self._step_left_s))

    def _planned_step(self, current: Progress) -> int | None:
        """Return the index of the step in the estimate.

        Returns None for a step that was not estimated, such as waiting for the baseline.
        """
        return next((i for i, step in enumerate(self._steps) if _is_same_step(step, current)), None)


def _plan_answers(steps: Sequence[EstimatedStep], *, timed: bool) -> _AnswersLeft:
    """Return all answers and probes as left, with their estimated seconds by boot.

    They are those with ``timed`` answers, or all others.
    """
    left_s: dict[int, float] = {}
    for step in steps:
        if step.timed is timed:
            left_s[step.boot] = left_s.get(step.boot, 0.0) + step.added_s  # 0 for booting, scoring and stopping
    return _AnswersLeft(left_s, sum(left_s.values()))


def _is_same_step(step: EstimatedStep, current: Progress) -> bool:
    return (step.boot, step.kind, step.arm, step.workload) == (current.boot, current.doing, current.arm, current.workload)
