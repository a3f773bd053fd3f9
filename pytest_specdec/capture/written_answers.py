"""Written answers: what one boot has answered as it is stored, its warnings, and an end of its server that comes after."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_specdec.capture.failure import find_silent_end
from pytest_specdec.capture.server.attached import AttachedArm
from pytest_specdec.files import transcripts

if TYPE_CHECKING:
    from pytest_specdec.capture.completeness import Completeness
    from pytest_specdec.capture.server.server import ArmServer
    from pytest_specdec.capture.server_recipes import ServerRecipes
    from pytest_specdec.capture.workload_runner import WorkloadResult
    from pytest_specdec.model.transcript import Transcript


@dataclass(slots=True, kw_only=True)
class WrittenAnswers:
    """The transcripts that one boot has written to the run."""

    server: ArmServer
    recipes: ServerRecipes
    completeness: Completeness
    _latest: Transcript | None = None
    """The last one written; None before the first, and once the end after it is added."""

    def write(self, result: WorkloadResult) -> None:
        """Write the transcript of a result, and record what is missing.

        An incomplete transcript is written under a name of its own, so that no judge takes part of a workload for all of it; one with
        neither tokens nor server failures is not written. Other clients of the server, and its failure in a calibration, give warnings.
        """
        transcript, workload = result.transcript, result.transcript.workload
        if result.missing:
            transcript = replace(transcript, workload=f"{workload}.partial")
        self._warn_of_other_clients(transcript)
        if transcript.server_failures and self.recipes.plan.workload(workload).calibrates:
            ending = transcript.server_failures[0].ending.value
            self.completeness.warn(
                f"{transcript.arm}: the server failed in the calibration ({ending}), so its noise may be unknown; see its log in servers/"
            )
        if not result.missing or transcript.tokens or transcript.server_failures:
            transcripts.write(self.recipes.directory, transcript)
            self._latest = transcript
        self.completeness.record_transcript(transcript.arm, workload, result.missing)

    def record_silent_end(self) -> None:
        """Add the server's end since the latest transcript to that one.

        It has to be called before the server is asked anything else and before it is ended: nothing else would tell of an end that no
        request showed. Once the capture's time is used up the server may have been ended for that, and nothing is added.
        """
        transcript = self._latest
        if transcript is None or self.server.left_s() <= 0:
            return
        next_number = max((server_failure.failure for server_failure in transcript.server_failures), default=-1) + 1
        # An answer without a status only stands in for one that is missing.
        end = find_silent_end(self.server, next_number, [answer for answer in transcript.answers if answer.status is not None])
        if end is not None:
            self._latest = None  # the end is recorded: a later call must not add it again
            transcripts.write(self.recipes.directory, replace(transcript, server_failures=(*transcript.server_failures, end)))

    def _warn_of_other_clients(self, transcript: Transcript) -> None:
        """Record warnings of an attached server's other clients and replacements.

        Its counters show them: more tokens than were asked for here (``foreign``), or fewer than its answers had. A load balancer may then
        have sent requests to the baseline's server (``elsewhere``), or the counters are late (``uncounted``).
        """
        where = f"{transcript.arm}, {transcript.workload}"
        if transcript.foreign:
            self.completeness.warn(f"{where}: others used the server meanwhile: {transcript.foreign} more than were asked for here")
        if transcript.elsewhere or transcript.uncounted:
            self.completeness.warn(f"{where}: {transcript.elsewhere or transcript.uncounted}: a load balancer, or counters that are late")
        for text in self.server.warnings if isinstance(self.server, AttachedArm) else ():
            self.completeness.warn(text)
