"""Alternation: timed requests sent to several servers in turn, and more passes if the speeds measured vary too much.

An arm is one server under comparison: a boot of the baseline, or of a variant, which speculates. A pass sends the whole workload once. A
part of it is one request, or one group of concurrent requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_specdec.errors import EngineError
from pytest_specdec.model.plan import MOST_PASSES
from pytest_specdec.stats.paces import paces
from pytest_specdec.stats.speedup import is_steady

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pytest_specdec.capture.workload_runner import WorkloadRunner
    from pytest_specdec.model.transcript import Transcript


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedArm:
    """One arm of a timed workload."""

    runner: WorkloadRunner
    speculative: bool
    """Whether it is a variant; the others are boots of the baseline."""
    old: bool = False
    """Whether it is of the old engine, the one in use before an upgrade: it is sent as many passes, and its spread asks for no more."""


@dataclass(slots=True, kw_only=True)
class Alternation:
    """One timed workload, its requests sent to several servers in turn.

    An arm whose engine fails is sent nothing more; the others go on.

    More passes are sent while those of a variant vary by more than :func:`is_steady` allows. That looks at the spread of the passes
    alone, never at how fast a server is, so that the moment at which measuring stops favours no verdict. A workload with ``waves``, sent
    by several numbers of clients in turn, gets no more passes: no gate of a config is about them.
    """

    arms: Sequence[TimedArm]
    boot_sd: float
    """Stated standard deviation of the log of a server's speed from boot to boot."""
    may_extend: bool
    """Whether more passes than planned may be taken."""
    earlier_passes: int = 0
    """Passes that servers up before these were sent, 0 without such: these arms are compared with those, and are sent as many."""
    errors: dict[TimedArm, EngineError] = field(init=False, default_factory=dict)
    """By arm, the error of an engine that failed; the arm is sent nothing more."""

    def run(self) -> int:
        """Return the number of passes after sending them to every arm.

        At least the planned passes are sent, and no fewer than ``earlier_passes``. With ``may_extend``, two more at a time follow while a
        variant's passes vary too much, up to MOST_PASSES times the planned number.
        """
        for arm in self.arms:
            self._attempt(arm, arm.runner.begin)
        first_runner = self.arms[0].runner  # all send the same workload
        planned = first_runner.passes
        # A workload with ``waves``, sent by several numbers of clients in turn, gets no more: no gate of a config is about it.
        most = MOST_PASSES * planned if self.may_extend and not first_runner.workload.waves else planned
        passes = max(planned, self.earlier_passes)
        self._set_total(passes)
        self._send_passes(range(passes))
        while passes < most and not self._is_steady():
            passes_sent, passes = passes, more_passes(passes, planned)  # two more, but at most MOST_PASSES times the planned
            self._set_total(passes)
            self._send_passes(range(passes_sent, passes))
        for arm in self.arms:
            self._attempt(arm, arm.runner.end)
        return passes

    def _attempt(self, arm: TimedArm, step: Callable[..., None], *arguments: int) -> None:
        """Run one step of an arm, recording its engine's error.

        Nothing is run for an arm whose engine failed before.
        """
        if arm in self.errors:
            return
        try:
            step(*arguments)
        except EngineError as error:
            self.errors[arm] = error

    def _set_total(self, passes: int) -> None:
        """Tell the runners, which count the requests of all passes, their total."""
        for arm in self.arms:
            if passes > arm.runner.passes:
                arm.runner.extend(passes)

    def _send_passes(self, passes: Iterable[int]) -> None:
        """Send the passes part by part, alternating the arms' order.

        A part is one request or one group of concurrent requests, answered by every arm before the next part. The arms' order is reversed
        from part to part, and every other pass begins with the reverse order. A shared machine is slower for some seconds, then faster:
        if each arm sent a whole pass at once, each would be timed at another speed of the machine.
        """
        for pass_index in passes:
            for part_index in range(len(self.arms[0].runner.parts)):
                for arm in self.arms if (pass_index + part_index) % 2 == 0 else reversed(self.arms):
                    self._attempt(arm, arm.runner.answer, pass_index, part_index)

    def _is_steady(self) -> bool:
        """Return True if every variant's passes vary little enough.

        What varies is the variant's speed over the baseline's. Its spread is compared with ``boot_sd``, the standard deviation from boot to
        boot. Returns True too if more passes would show nothing. Arms of the old engine are left out.
        """
        arms = [arm for arm in self.arms if not arm.old]
        if not all(arm.runner.is_available and arm not in self.errors for arm in arms):
            return True  # an arm failed, or has no server or time left
        baselines = tuple(arm.runner.result().transcript for arm in arms if not arm.speculative)
        if not baselines:
            return True  # no speed to compare with
        for variant in (arm for arm in arms if arm.speculative):
            log_ratios = _log_speed_ratios(variant.runner.result().transcript, baselines)
            if len(log_ratios) > 1 and not is_steady(log_ratios, self.boot_sd):  # one pass has no spread
                return False
        return True


def _log_speed_ratios(variant: Transcript, baselines: Sequence[Transcript]) -> Sequence[float]:
    """Return the log of the variant's speed over the baselines', by pass.

    Speed is the tokens per second of responses. Empty if no request was timed in every arm.
    """
    timings = paces(baselines, variant)
    return () if timings is None else timings.response.log_ratios


def more_passes(passes: int, planned: int) -> int:
    """Return the next total of passes, two more than ``passes``.

    Two, so that each order of the arms gets one more. The total never exceeds MOST_PASSES times the ``planned`` passes: after 4 planned
    passes it is 6, then 8, and no more.
    """
    return min(passes + 2, MOST_PASSES * planned)
