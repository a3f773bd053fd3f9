"""One boot: its server's probes, answers and scores, each piece written as soon as it is whole."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_specdec.capture import environment, locks
from pytest_specdec.capture.burst_probe import BurstProbe
from pytest_specdec.capture.capabilities import CapabilityProbe
from pytest_specdec.capture.deadlines import Deadlines
from pytest_specdec.capture.room import last_whole_round, limit_setting_boot, sufficient_room
from pytest_specdec.capture.scoring import TranscriptScorer, scorer
from pytest_specdec.capture.server import context_limit
from pytest_specdec.capture.server.attached import AttachedArm
from pytest_specdec.capture.workload_runner import WorkloadRunner
from pytest_specdec.capture.workloads import fill_prompts
from pytest_specdec.config.config import Limits
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.errors import EngineError, RunError
from pytest_specdec.files import run_documents, transcripts
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.model.captured import Capabilities
from pytest_specdec.model.pair import BASELINE, OLD_BASELINE, SCORER
from pytest_specdec.model.plan import Role
from pytest_specdec.model.status import StepKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from typing import Self

    from pytest_specdec.capture.completeness import Completeness
    from pytest_specdec.capture.progress import Reporter
    from pytest_specdec.capture.scoring import Scorer
    from pytest_specdec.capture.server.server import ArmServer
    from pytest_specdec.capture.server_recipes import ServerRecipes
    from pytest_specdec.capture.workload_runner import WorkloadResult
    from pytest_specdec.model.plan import Boot, ScoringTask
    from pytest_specdec.model.transcript import Answer, Transcript
    from pytest_specdec.model.workload import Workload


_PAUSE_S = 0.05
"""Seconds between two checks for another server's answers."""
_FURTHER_PRESSED_ROUNDS = 2
"""About a second each; one in 45 judgements of vLLM on two busy cores had no preemption in its first round."""
_DEFAULT_S = Limits().request_s
"""The default of a workload's deadline and of the config's."""


@dataclass(slots=True, kw_only=True)
class BootSession:
    """One boot at work: its server, the requests that it gets, and its own reporter."""

    boot: Boot
    recipes: ServerRecipes
    reporter: Reporter
    completeness: Completeness
    arm: ArmServer = field(init=False)

    def __post_init__(self) -> None:
        self.arm = self.recipes.arm(self.boot, self.heartbeat, lambda: self.reporter.left_s)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stop(graceful=kind is None or issubclass(kind, EngineError))

    def start(self) -> None:
        """Boot the server.

        Raises BootError if it does not come up, CaptureError if it is of another build. In both cases no process of
        it is left.
        """
        self.reporter.step(self.boot, StepKind.BOOTING, self.boot.arm)
        with self.shared():
            self.arm.start()
        try:
            self._check_build()
        except BaseException:
            self.arm.stop(0.0)
            raise
        if not self.boot.attached:
            self.completeness.record_boot()

    def stop(self, *, graceful: bool = True) -> None:
        """End the server and record its restarts and times.

        It is killed at once unless ``graceful``. Its end is recorded even if stopping fails.
        """
        try:
            self.reporter.step(self.boot, StepKind.STOPPING, self.boot.arm)
        finally:
            try:
                self.arm.stop(self.arm.recipe.stop_s if graceful else 0.0)
            finally:
                self.completeness.record_end(self.boot, self.arm)

    def kill(self) -> None:
        """Kill the server's processes, if it has any.

        Called from another thread than the one that works with the server.
        """
        self.arm.kill()

    def probe(self) -> None:
        """Probe the server's capabilities and write them.

        Does nothing unless the plan asks for them and they are not known yet.
        """
        name = self.boot.arms[0]
        if self.boot.probe and self.arm.running and not self.recipes.directory.capabilities_of(name).is_file():
            self.reporter.step(self.boot, StepKind.PROBING, name)
            config = self.recipes.config_of(self.boot)
            engine = engine_of(config.engine.kind)
            with self.shared():
                capabilities = replace(
                    CapabilityProbe(self.arm, engine.vocabulary(config), config.reasoning, config.limits.request_s).run(),
                    single_precision=engine.single_precision(config),
                    server=f"{engine.kind} {config.engine.model}",
                    scored_with=engine.scored_with,
                    penalty_window=self.arm.recipe.dialect.penalty_window,
                    context_tokens=self._context_tokens(),
                )
                if self._may_lack_counters:
                    capabilities = replace(capabilities, streams=BurstProbe(self.arm).run())
            if self.arm.lost:
                return  # the results are no property of the engine: a resume probes again
            run_documents.write_capabilities(self.recipes.directory, name, capabilities)
            if name == self._scoring_arm and capabilities.route is not self.recipes.plan.route:
                self.reporter.step(self.boot, f"probed: scores come by {capabilities.route.value}, not by the planned route", name)

    def _context_tokens(self) -> int:
        return context_limit.read(self.arm.recipe.setup, self.arm.model) if self.arm.running else 0

    @property
    def _may_lack_counters(self) -> bool:
        """True if the server's counters may be missing or hidden.

        The engine may have none, or the server belongs to somebody else. It is False for a draft model and the
        scorer, whose drafting is not judged.
        """
        return self.boot.role not in {Role.DRAFT, Role.SCORER} and (self.boot.attached or self.arm.recipe.dialect.counters_path is None)

    def workloads(self, *, timed: bool | None = None) -> list[tuple[str, Workload]]:
        """Return the arms of this boot, each with a workload.

        A boot that is both baseline and control answers every workload twice, once as each arm. ``timed`` selects
        only timed workloads (True) or only untimed ones (False), None selects all.
        """
        workloads = [self.recipes.plan.workload(name) for name in self.boot.answers]
        return [(arm, workload) for arm in self.boot.arms for workload in workloads if timed in {None, workload.timed}]

    def answer(
        self,
        workloads: Sequence[tuple[str, Workload]],
        callback_of: Callable[[str, str], Callable[[Answer], None] | None] = lambda *_: None,
    ) -> None:
        """Answer ``workloads`` as their arms and write the answers.

        ``callback_of`` returns what is called with every answer of an arm to a workload, or None. A baseline that decides the token
        limits may answer again with larger ones, so the callback gets none of its answers; the other arms wait for
        it. The baseline is probed first and a variant last: a probe that kills a variant then costs no answers.
        """
        if self.boot.role is not Role.VARIANT:
            self.probe()
        for arm, workload in workloads:
            deciding = limit_setting_boot(self.recipes.plan, workload.name)
            if deciding is not None and arm == BASELINE:
                result = self._answer_last_whole_round(workload)
            else:
                if deciding is not None:
                    self._wait_for_baseline(deciding, workload)
                result = self._answer_until_preempted(arm, workload, callback_of(arm, workload.name))
            self.keep(result)
        if self.boot.role is Role.VARIANT:
            self.probe()

    def _answer_last_whole_round(self, workload: Workload) -> WorkloadResult:
        """Have the baseline answer until its token limits suffice.

        The limits are raised while they cut off most of its documents; all arms then answer under the same limits.
        """
        return last_whole_round(
            lambda room: self._answer_round(self.runner(BASELINE, workload, None, room)),
            lambda answers: sufficient_room(self._fill_prompts(workload), answers, self._context_tokens(), self.recipes.plan.depth),
            lambda: self.reporter.left_s,
            say=self.reporter.say,
            warn=self.completeness.warn,
        )

    def _answer_until_preempted(self, arm: str, workload: Workload, on_answer: Callable[[Answer], None] | None) -> WorkloadResult:
        """Answer, and on a small cache again, at most twice, while nothing was preempted.

        A client that is held up between two requests lets a fast server end the first before the last has come: nothing was tested.
        """
        result = self._answer_round(self.runner(arm, workload, on_answer))
        for _ in range(_FURTHER_PRESSED_ROUNDS if self.boot.small_cache else 0):
            is_tested = result.missing or result.transcript.server_failures or result.transcript.preemptions != 0
            if is_tested or self.reporter.left_s < 2 * result.transcript.wall_s:
                break
            self.reporter.say(f"{workload.name} of {arm} again: its requests did not overlap enough to fill the small cache")
            result = self._answer_round(self.runner(arm, workload, on_answer))
        return result

    def _answer_round(self, runner: WorkloadRunner) -> WorkloadResult:
        """Send all passes of a runner and return the result.

        A timed workload has the machine alone meanwhile.
        """
        with self.exclusive() if runner.workload.timed else self.shared():
            runner.begin()
            for pass_index in range(runner.passes):
                runner.answer(pass_index)
            runner.end()
        return runner.result()

    def _wait_for_baseline(self, deciding: Boot, workload: Workload) -> None:
        """Wait until the baseline's answers settle all arms' token limits.

        Only servers that run side by side wait here. Raises DeadlineError if the capture's time is used up meanwhile.
        """
        if not self.completeness.is_settled(deciding, BASELINE, workload.name):
            self.reporter.step(self.boot, "waiting for the baseline", self.boot.arm, workload.name)
        while not self.completeness.is_settled(deciding, BASELINE, workload.name):
            self.heartbeat()
            time.sleep(_PAUSE_S)

    def runner(
        self, arm: str, workload: Workload, on_answer: Callable[[Answer], None] | None = None, room: int | None = None
    ) -> WorkloadRunner:
        """Announce the work of ``arm`` on ``workload``; return its runner.

        ``room`` is the multiple of the planned token limits; by default the baseline's, or 1 without its answers.
        Raises DeadlineError if the capture's time is used up.
        """
        self.reporter.check()
        self.reporter.step(self.boot, StepKind.ANSWERING, arm, workload.name, of=len(workload.requests) * workload.passes)
        baseline = None if arm == BASELINE or self.boot.role.is_old else self._baseline_answers(workload)
        deadlines = Deadlines(self._request_s(workload), baseline, paced=self.boot.role is Role.VARIANT)
        return WorkloadRunner(
            self.arm,
            self._fill_prompts(workload),
            name=arm,
            digest=workload.digest,
            room=room or (1 if baseline is None else baseline.room),
            boot=self.boot.index,
            deadlines=deadlines,
            reporter=self.reporter,
            on_answer=on_answer,
        )

    def _fill_prompts(self, workload: Workload) -> Workload:
        return fill_prompts(workload, self.recipes.directory, self.recipes.plan, self._context_tokens)

    def keep(self, result: WorkloadResult) -> None:
        """Check the server, then write its answers.

        Raises BootError if another server may have answered, CaptureError if it is of another build. An incomplete
        transcript is written under a name of its own.
        """
        self.arm.check_port()
        self._check_build()
        transcript, workload = result.transcript, result.transcript.workload
        if result.missing:
            # Stored under another name than a whole transcript, so that no judge takes part of a workload for all of it.
            transcript = replace(transcript, workload=f"{workload}.partial")
        self._warn_of_other_clients(transcript)
        if transcript.server_failures and self.recipes.plan.workload(workload).calibrates:
            ending = transcript.server_failures[0].ending.value
            self.completeness.warn(
                f"{transcript.arm}: the server failed in the calibration ({ending}), so its noise may be unknown; see its log in servers/"
            )
        if not result.missing or transcript.tokens or transcript.server_failures:
            transcripts.write(self.recipes.directory, transcript)
        self.completeness.record_transcript(transcript.arm, workload, result.missing)

    def _warn_of_other_clients(self, transcript: Transcript) -> None:
        """Warn of other clients' requests on an attached server.

        Answers by another server and a restart by somebody else are reported too.
        """
        where = f"{transcript.arm}, {transcript.workload}"
        if transcript.foreign:
            self.completeness.warn(f"{where}: others used the server meanwhile: {transcript.foreign} more than were asked for here")
        if transcript.elsewhere or transcript.uncounted:
            self.completeness.warn(f"{where}: {transcript.elsewhere or transcript.uncounted}: a load balancer, or counters that are late")
        if isinstance(self.arm, AttachedArm):
            for text in self.arm.warnings:
                self.completeness.warn(text)

    def scoring(self, workload: Workload) -> TranscriptScorer:
        """Return the scorer for answers to ``workload`` on this server.

        The route is read when the first score is wanted, from the capability probe of the scorer, or of the baseline
        without a scorer: that probe may not have run yet. A draft model is scored by the baseline's route. The engine
        in use is not asked for a prompt's ids: its chat template may be another one.
        """
        requests = {} if self.boot.role.is_old else self._fill_prompts(workload).by_id
        return TranscriptScorer(
            arm=self.arm,
            under=self.boot.under,
            scorer=lambda: self._scorer(workload),
            prompt_token_ids=lambda request_id: self.arm.client.prompt_token_ids(requests[request_id]) if requests else (),
            reporter=self.reporter,
        )

    @property
    def probed(self) -> bool:
        """True if the capability probes needed for scoring are written."""
        return all(self.recipes.directory.capabilities_of(arm).is_file() for arm in {BASELINE, self._scoring_arm})

    @property
    def _scoring_arm(self) -> str:
        return SCORER if self.recipes.config.scorer else BASELINE

    def score(self, task: ScoringTask, scoring: TranscriptScorer) -> str:
        """Score one arm's answers to one workload; write the scores.

        Returns the reason why scores are missing, or an empty string. A server that cannot score given tokens returns
        its reason too, but nothing counts as missing then, since a later capture would get no scores either.
        """
        self.reporter.check()
        transcript = transcripts.read(self.recipes.directory, task.arm, task.workload)
        if transcript is None:
            return "not all of its requests were answered"
        if reason := self._unscorable_reason():
            # The capability probe found this. Nothing is missing then; the judges of tokens report it.
            self.completeness.record_scores(self.boot, task, "")
            return reason
        self.reporter.step(self.boot, StepKind.SCORING, task.arm, task.workload, of=len(transcript.answers))
        with self.shared():
            scored = scoring.score(self._drop_missing_ids(transcript), task.top_tokens)
        self.arm.check_port()
        transcripts.write_scores(self.recipes.directory, scoring.under, task.arm, task.workload, scored.scores)
        missing = self._drop_lasting_gaps(task, scored.missing)
        self.completeness.record_scores(self.boot, task, missing)
        return missing

    def _drop_lasting_gaps(self, task: ScoringTask, missing: str) -> str:
        """Return the reason for missing scores that another capture may get.

        An engine may refuse tokens of the engine before or after it, as where the vocabulary is another one. That is a
        fact of the upgrade, and the run is whole without those scores; it gets a warning.
        """
        if (task.arm != OLD_BASELINE and not self.boot.role.is_old) or not missing or self.reporter.left_s <= 0:
            return missing
        by_old = f" by {self.boot.arm}" if self.boot.role.is_old else ""
        self.completeness.warn(f"{task.arm}{by_old}, {task.workload}: {missing}")
        return ""

    def _drop_missing_ids(self, transcript: Transcript) -> Transcript:
        """Return a transcript without its answers lacking token ids.

        Returns the whole transcript unless the engine gives token ids for some answers only. Without them nothing can
        be scored, and these answers would count as missing scores.
        """
        capabilities = run_documents.read_capabilities(self.recipes.directory).get(BASELINE, Capabilities())
        if not capabilities.lacks_ids:
            return transcript
        return replace(transcript, answers=tuple(answer for answer in transcript.answers if answer.ok and answer.choice.token_ids))

    def _unscorable_reason(self) -> str:
        """Return the reason why this server cannot score given tokens.

        Returns an empty string if it can. A draft model's distribution is obtained in the same way as the baseline's.
        """
        if self.boot.role is not Role.DRAFT:
            return run_documents.unscorable(self._probed_directory)
        dialect = self.arm.recipe.dialect
        if dialect.scoring((0,), (0,), 1) is None and dialect.continuations(((0,),), 1) is None:
            return "the draft model's engine serves no log-probabilities of given tokens"
        return run_documents.read_capabilities(self.recipes.directory).get(BASELINE, Capabilities()).unscorable

    def _check_build(self) -> None:
        """Check that the engine's version is the run's, and record it.

        The first server's version and the names of attached models go into the environment. Raises CaptureError if an
        earlier server had another version: the answers would not be those of one engine.
        """
        if self.boot.role.is_old:
            self.completeness.enter_old_version(self.arm.version)
            return
        directory, recorded = self.recipes.directory, run_documents.read_environment(self.recipes.directory)
        updated = recorded
        if self.boot.role is not Role.SCORER and self.completeness.enter_version(self.arm.version):
            updated = environment.environment(self.recipes.config, self.arm.version)
        served = {arm: self.arm.model for arm in self.boot.arms if self.boot.attached}
        updated = replace(updated, served={**recorded.served, **served})
        if updated != recorded:
            run_documents.write_environment(directory, updated)

    def shared(self) -> AbstractContextManager[None]:
        """Hold the machine together with captures measuring no speed.

        Any number of captures may share it.
        """
        return locks.shared(self._lock_s, self.heartbeat)

    def exclusive(self) -> AbstractContextManager[None]:
        """Hold the machine alone, to measure speed."""
        return locks.exclusive(self._lock_s, self.heartbeat)

    @property
    def _lock_s(self) -> float:
        """Seconds to wait for a lock."""
        return min(self.reporter.left_s, locks.MAX_WAIT_S)

    def heartbeat(self) -> None:
        """Report progress during a step without a count.

        Raises DeadlineError if the capture's time is used up.
        """
        self.reporter.check()
        self.reporter.update(0, 0)

    def _scorer(self, workload: Workload) -> Scorer:
        """Return the scorer by the probed route."""
        by_arm = run_documents.read_capabilities(self._probed_directory)
        capabilities = by_arm.get(BASELINE if self.boot.role is Role.DRAFT else self._scoring_arm, Capabilities())
        return scorer(capabilities.route, self.arm, self._request_s(workload), lambda: self.reporter.left_s <= 0)

    @property
    def _probed_directory(self) -> RunDirectory:
        """The run whose probes tell how this server scores: for the old engine its own run, else this one."""
        directory = self.recipes.directory
        return RunDirectory(directory.old) if self.boot.role.is_old else directory

    def _baseline_answers(self, workload: Workload) -> Transcript | None:
        """Return the baseline's answers to the very same requests.

        Returns None if they are not there yet or cannot be read.
        """
        try:
            transcript = transcripts.read(self.recipes.directory, BASELINE, workload.name)
        except RunError:
            return None
        return transcript if transcript is not None and transcript.digest == workload.digest else None

    def _request_s(self, workload: Workload) -> float:
        """Return the deadline of a request in seconds.

        It is the workload's own deadline, or the config's if the workload has the default.
        """
        return self.recipes.config.limits.request_s if workload.deadline_s == _DEFAULT_S else workload.deadline_s
