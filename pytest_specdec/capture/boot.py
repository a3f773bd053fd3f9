"""One boot, a server from start to end: its probes, answers and scores, each piece written as soon as it is whole.

An arm is a name that answers are stored under: the baseline, its second boot (the control), or a variant, which speculates. A score is the
probability that a server gives to tokens answered before, mostly by another arm. A run may compare an old engine with the one under test.
Events, such as a sleep, are done to a server between requests. ``record_silent_end`` records that a server has ended since its last answer,
``completeness`` what the run lacks and why.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING

from pytest_specdec.capture import environment, locks
from pytest_specdec.capture.burst_probe import BurstProbe
from pytest_specdec.capture.capabilities import probe_capabilities
from pytest_specdec.capture.deadlines import Deadlines
from pytest_specdec.capture.room import extended_room, limit_setting_boot, most_useful_round, sufficient_room
from pytest_specdec.capture.scoring import TranscriptScorer, scorer
from pytest_specdec.capture.server import context_limit
from pytest_specdec.capture.workload_runner import WorkloadRunner
from pytest_specdec.capture.workloads import fill_prompts
from pytest_specdec.capture.written_answers import WrittenAnswers
from pytest_specdec.config.config import Limits
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
"""About a second each. A client that is held up lets a fast server end a request before the last has come (vLLM, busy cores: 1 in 45)."""
_DEFAULT_S = Limits().request_s
"""The default of a workload's deadline and of the config's."""


@dataclass(slots=True, kw_only=True)
class BootSession:
    """One boot at work: its server, its requests and its reporter."""

    boot: Boot
    recipes: ServerRecipes
    reporter: Reporter
    completeness: Completeness
    server: ArmServer = field(init=False)
    _written: WrittenAnswers = field(init=False)

    def __post_init__(self) -> None:
        self.server = self.recipes.server(self.boot, self.heartbeat, lambda: self.reporter.left_s)
        self._written = WrittenAnswers(server=self.server, recipes=self.recipes, completeness=self.completeness)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stop(graceful=kind is None or issubclass(kind, EngineError))

    def start(self) -> None:
        """Boot the server and check its engine version.

        Raises BootError if it does not come up, DeadlineError if the capture's time is used up, and the errors of :meth:`_check_build` for
        another version. No process of the server is left after an error.
        """
        self.reporter.step(self.boot, StepKind.BOOTING, self.boot.arm)
        with self.shared():  # loading a model would disturb a capture that measures speed on this machine
            self.server.start()
        try:
            self._check_build()
        except BaseException:
            self.server.stop(0.0)
            raise
        if not self.boot.attached:
            self.completeness.record_boot()

    def stop(self, *, graceful: bool = True) -> None:
        """End the server and record its restarts and times.

        Unless ``graceful``, the server is killed at once instead of being given time to stop. Before a graceful stop, an end that came by
        itself after the last answer is recorded. The restarts and times are recorded even if stopping fails.
        """
        try:
            if graceful:
                self._written.record_silent_end()
            self.reporter.step(self.boot, StepKind.STOPPING, self.boot.arm)
        finally:
            try:
                self.server.stop(self.server.recipe.stop_s if graceful else 0.0)
            finally:
                self.completeness.record_end(self.boot, self.server)

    def kill(self) -> None:
        """Kill the server from another thread; the one at work with it notices its end."""
        self.server.kill()

    def probe(self) -> None:
        """Probe the server's capabilities and write them to the run.

        Probes are short requests that show what the server honours and refuses. Does nothing if the plan has no probe for this boot, if the
        server has ended, or if its first arm's results are there.
        """
        name = self.boot.arms[0]
        self._written.record_silent_end()
        if not self.boot.probe or not self.server.running or self.recipes.directory.capabilities_of(name).is_file():
            return
        self.server.renew()  # if it has had events, such as a sleep
        self.reporter.step(self.boot, StepKind.PROBING, name)
        config = self.recipes.config_of(self.boot)
        with self.shared():  # no other capture measures speed meanwhile
            capabilities = probe_capabilities(self.server, config)
            if self._may_lack_counters:  # bursts of tokens in its streams then show whether it drafts
                capabilities = replace(capabilities, streams=BurstProbe(self.server).run())
        if self.server.lost:
            return  # access was denied meanwhile, so that the results are no property of the engine: a resume probes again
        run_documents.write_capabilities(self.recipes.directory, name, capabilities)
        if name == self._scoring_arm and capabilities.route is not self.recipes.plan.route:
            self.reporter.step(self.boot, f"probed: scores come by {capabilities.route.value}, not by the planned route", name)

    @property
    def _may_lack_counters(self) -> bool:
        """True if the server's draft counters may be missing or hidden.

        The engine may have none, or the server belongs to somebody else. Bursts in its streams are then measured as evidence of drafting.
        Always False for a draft model and a scorer, whose drafting is not judged.
        """
        return self.boot.role not in {Role.DRAFT, Role.SCORER} and (self.boot.attached or self.server.recipe.dialect.counters_path is None)

    def workloads(self, *, timed: bool | None = None) -> list[tuple[str, Workload]]:
        """Return pairs of arm name and workload for this boot.

        A boot that is both baseline and control answers every workload twice. ``timed`` selects the timed workloads if True, the others if
        False, and all if None.
        """
        workloads = [self.recipes.plan.workload(name) for name in self.boot.answers]
        return [(arm, workload) for arm in self.boot.arms for workload in workloads if timed in {None, workload.timed}]

    def answer(
        self,
        workloads: Sequence[tuple[str, Workload]],
        callback_of: Callable[[str, str], Callable[[Answer], None] | None] = lambda *_: None,
    ) -> None:
        """Answer ``workloads``, pairs of arm and workload, and write the answers.

        ``callback_of(arm, workload name)`` returns a function to call with every answer, or None. A variant is probed after its answers: a
        probe that kills it then costs none.
        """
        if self.boot.role is not Role.VARIANT:
            self.probe()
        for arm, workload in workloads:
            # The baseline's boot if its answers settle all token limits, else None.
            limit_setter = limit_setting_boot(self.recipes.plan, workload.name)
            if limit_setter is not None and arm == BASELINE:
                # To no callback: it may answer again with larger limits.
                result = self._answer_with_sufficient_room(workload)
            else:
                if limit_setter is not None:
                    self._wait_for_baseline(limit_setter, workload)
                make_runner = partial(self.runner, arm, workload, callback_of(arm, workload.name))
                result = self._answer_round(make_runner())
                if self.boot.small_cache and workload.concurrency > 1:
                    result = self._repeat_until_preempted(result, make_runner)
            self.write_answers(result)
            if self.boot.scores:
                self.server.renew()  # after events or a soak alone: others' answers wait to be scored here
        if self.boot.role is Role.VARIANT:
            self.probe()

    def _answer_with_sufficient_room(self, workload: Workload) -> WorkloadResult:
        """Return the baseline's answers under token limits long enough.

        A round sends all requests under ``room`` times the planned limits, 1 at first. While most structured documents are cut off, another
        round with a larger ``room`` follows. All arms then answer under the limits of the round that is returned.
        """

        def next_room(answers: Transcript) -> int:  # the same if it suffices, or if no larger one fits into the context
            return sufficient_room(self._fill_prompts(workload), answers, context_limit.of(self.server), self.recipes.plan.depth)

        return most_useful_round(
            lambda room: self._answer_round(self.runner(BASELINE, workload, room=room)),
            next_room,
            lambda: self.reporter.left_s,
            say=self.reporter.say,
            warn=self.completeness.warn,
        )

    def _repeat_until_preempted(self, result: WorkloadResult, make_runner: Callable[[], WorkloadRunner]) -> WorkloadResult:
        """Return ``result``, or a further round's if nothing was preempted.

        A workload for a small cache is to test preemption. Up to two more rounds, all its requests again, are sent until one is preempted.
        None is sent if answers are missing, the server failed or does not count preemptions (None), or too little time is left for two.
        A round with missing answers does not replace the result.
        """
        for _ in range(_FURTHER_PRESSED_ROUNDS):
            answers = result.transcript
            if result.missing or answers.server_failures or answers.preemptions != 0 or self.reporter.left_s < 2 * answers.wall_s:
                break
            self.reporter.say(f"{answers.workload} of {answers.arm} again: its requests did not overlap enough to fill the small cache")
            again = self._answer_round(make_runner())
            result = result if again.missing else again
        return result

    def _answer_round(self, runner: WorkloadRunner) -> WorkloadResult:
        """Return one runner's result; a timed workload has the machine to itself."""
        with self.exclusive() if runner.workload.timed else self.shared():
            runner.begin()
            for pass_index in range(runner.passes):
                runner.answer(pass_index)
            runner.end()
        return runner.result()

    def _wait_for_baseline(self, limit_setter: Boot, workload: Workload) -> None:
        """Wait until the baseline has answered ``workload``, or never will.

        It may answer several times, with larger token limits, and all arms then answer under those that it settles on. ``limit_setter`` is
        its boot. Only servers side by side ever wait here. Raises DeadlineError if the capture's time is used up.
        """
        if not self.completeness.is_settled(limit_setter, BASELINE, workload.name):
            self.reporter.step(self.boot, "waiting for the baseline", self.boot.arm, workload.name)
        while not self.completeness.is_settled(limit_setter, BASELINE, workload.name):
            self.heartbeat()
            time.sleep(_PAUSE_S)

    def runner(
        self, arm: str, workload: Workload, on_answer: Callable[[Answer], None] | None = None, room: int | None = None
    ) -> WorkloadRunner:
        """Return the runner that sends ``workload`` as ``arm``; report it as progress.

        ``room`` multiplies the planned token limits; if None, it is that of the baseline's answers. ``on_answer`` gets every answer of
        status 200. Raises DeadlineError if no time is left, and BootError if a fresh server does not come up.
        """
        self._written.record_silent_end()  # before a fresh server hides it
        self.reporter.check()
        self.server.renew()  # if it has had events
        self.reporter.step(self.boot, StepKind.ANSWERING, arm, workload.name, of=len(workload.requests) * workload.passes)
        # Deadlines and token limits follow the baseline's answers, but not for another engine.
        baseline = None if arm == BASELINE or self.boot.role.is_old else self._baseline_answers(workload)
        if room is None:  # before the baseline has answered: that of the workload to which this one adds requests, else 1
            room = extended_room(self.recipes.directory, self.recipes.plan, workload.name) if baseline is None else baseline.room
        shares_machine = self.recipes.plan.servers > 1 and not workload.timed  # timed ones have the machine to themselves
        # Without the baseline's answers a variant's deadlines follow its own pace.
        deadlines = Deadlines(self._request_s(workload), baseline, paced=self.boot.role is Role.VARIANT, shares_machine=shares_machine)
        return WorkloadRunner(
            self.server,
            self._fill_prompts(workload),
            name=arm,
            digest=workload.digest,
            room=room,
            boot=self.boot.index,
            deadlines=deadlines,
            reporter=self.reporter,
            on_answer=on_answer,
            on_begin=self._written.record_silent_end,  # again: timed requests begin later, once all arms have a runner
        )

    def _fill_prompts(self, workload: Workload) -> Workload:
        return fill_prompts(workload, self.recipes.directory, self.recipes.plan, self.server)

    def write_answers(self, result: WorkloadResult) -> None:
        """Check the server, then write its answers to the run.

        Answers of another server would be wrong to write. Raises BootError if another process answers on its port or an attached server
        serves another model; the errors of :meth:`_check_build` too.
        """
        self.server.check_identity()
        self._check_build()
        self._written.write(result)

    def scoring(self, workload: Workload) -> TranscriptScorer:
        """Return the scorer for answers to ``workload`` on this server.

        It may be made, to queue answers for, before the probe has found the route of scoring: callbacks read it once scoring begins.
        """
        # By request: the fields that choose an adapter. A draft model has none.
        weights = {} if self.boot.role is Role.DRAFT else {request.id: request.weights for request in workload.requests}
        requests = cache(lambda: run_documents.read_workload(self.recipes.directory, self.recipes.plan, workload.name).by_id)

        def prompt_token_ids(request_id: str) -> tuple[int, ...]:
            # The old engine is not asked for them: its chat template may be another one.
            return () if self.boot.role.is_old else self.server.client.prompt_token_ids(requests()[request_id])

        return TranscriptScorer(
            server=self.server,
            under=self.boot.under,  # the model that gives these probabilities
            scorer=lambda: self._route_scorer(workload),
            prompt_token_ids=prompt_token_ids,
            reporter=self.reporter,
            weights=lambda request_id: weights.get(request_id, {}),
            scored_to=workload.scored_to,  # tokens of the longest sequence to score
        )

    @property
    def probed(self) -> bool:
        """True if the capabilities needed for scoring are written."""
        return all(self.recipes.directory.capabilities_of(arm).is_file() for arm in {BASELINE, self._scoring_arm})

    @property
    def _scoring_arm(self) -> str:
        return SCORER if self.recipes.config.scorer else BASELINE

    def score(self, task: ScoringTask, scoring: TranscriptScorer) -> str:
        """Return the reason for missing scores after scoring one task.

        A task is one arm's answers to one workload; their scores are written. The reason is empty if none is missing.
        """
        self._written.record_silent_end()
        self.reporter.check()
        transcript = transcripts.read(self.recipes.directory, task.arm, task.workload)
        if transcript is None:  # the answers themselves count as missing, not their scores
            return "not all of its requests were answered"
        if reason := self._unscorable_reason():
            # The probe showed that no later capture would get scores either: none count as missing ("").
            self.completeness.record_scores(self.boot, task, "")
            return reason
        self.reporter.step(self.boot, StepKind.SCORING, task.arm, task.workload, of=len(transcript.answers))
        with self.shared():
            scored = scoring.score(self._drop_missing_ids(transcript), task.top_tokens)
        self.server.check_identity()
        transcripts.write_scores(self.recipes.directory, self.boot.under, task.arm, task.workload, scored.scores)
        missing = self._retryable_gap(task, scored.missing)  # "" if no later capture would get those scores
        self.completeness.record_scores(self.boot, task, missing)
        return missing

    def _retryable_gap(self, task: ScoringTask, missing: str) -> str:
        """Return ``missing``, or "" if no retry would give those scores.

        ``missing`` is the reason for missing scores, empty if none are. An old engine may refuse the new one's tokens for good, and the new
        one the old one's, as after a change of vocabulary. The run is whole without such scores, and a warning has the reason.
        """
        # An old engine's boot scores the new baseline's answers alone.
        crosses_engines = task.arm == OLD_BASELINE or self.boot.role.is_old
        if not missing or not crosses_engines:
            return missing
        if self.reporter.left_s <= 0:
            return missing  # the time was used up: a retry with more of it may give them
        by_old = f" by {self.boot.arm}" if self.boot.role.is_old else ""
        self.completeness.warn(f"{task.arm}{by_old}, {task.workload}: {missing}")
        return ""

    def _drop_missing_ids(self, transcript: Transcript) -> Transcript:
        """Return the transcript without the answers that are known to lack ids.

        Some engines give token ids in greedy answers alone. Nothing can be scored without ids, and sampled answers would count as missing
        scores. On any other engine a missing id is a fault, and the transcript is returned unchanged.
        """
        capabilities = run_documents.read_capabilities(self.recipes.directory).get(BASELINE, Capabilities())
        if not capabilities.lacks_ids:  # the baseline's probe stands for all arms
            return transcript
        # Answers that are not ok get no scores either.
        return replace(transcript, answers=tuple(answer for answer in transcript.answers if answer.ok and answer.choice.token_ids))

    def _unscorable_reason(self) -> str:
        """Return the reason why this server cannot score given tokens.

        Returns an empty string if it can.
        """
        if self.boot.role is not Role.DRAFT:
            return run_documents.unscorable_reason(self._probed_directory)
        # A route that the engine lacks has no request for any tokens, so that one is tried out with token 0.
        dialect, ids = self.server.recipe.dialect, (0,)
        if dialect.scoring(ids, ids, 1) is None and dialect.continuations((ids,), 1) is None:
            return "the draft model's engine serves no log-probabilities of given tokens"
        # A draft model is not probed: it scores by the baseline's route, and so lacks what the baseline lacks.
        return run_documents.read_capabilities(self._probed_directory).get(BASELINE, Capabilities()).unscorable

    def _check_build(self) -> None:
        """Check the engine's version against the run's, and record it.

        The first server's version and the names of attached models go into the environment document; a scorer, maybe of another engine, has
        its version left out. Raises CaptureError if an earlier server had another version, since the answers would not be those of one
        engine. The old engine's version is compared with its own earlier servers' alone, and a difference is a BootError.
        """
        if self.boot.role.is_old:
            self.completeness.enter_old_version(self.server.version)
            return
        directory, recorded = self.recipes.directory, run_documents.read_environment(self.recipes.directory)
        updated = recorded
        if self.boot.role is not Role.SCORER and self.completeness.enter_version(self.server.version):
            updated = environment.environment(self.recipes.config, self.server.version)
        served = dict.fromkeys(self.boot.arms, self.server.model) if self.boot.attached else {}
        updated = replace(updated, served={**recorded.served, **served})
        if updated != recorded:
            run_documents.write_environment(directory, updated)

    def shared(self, *, skip_queue: bool = False) -> AbstractContextManager[None]:
        """Return the machine's lock, shared with captures measuring no speed; ``skip_queue`` is as for :func:`locks.shared`."""
        return locks.shared(self._lock_s, self.heartbeat, self.reporter.say, skip_queue=skip_queue)

    def exclusive(self) -> AbstractContextManager[None]:
        """Return the machine's lock, held alone to measure speed."""
        return locks.exclusive(self._lock_s, self.heartbeat, self.reporter.say)

    @property
    def _lock_s(self) -> float:
        """Seconds to wait for a lock."""
        return min(self.reporter.left_s, locks.MAX_WAIT_S)

    def heartbeat(self) -> None:
        """Report progress during a wait; raise DeadlineError if the capture's time is used up."""
        self.reporter.check()
        self.reporter.update(0, 0)

    def _route_scorer(self, workload: Workload) -> Scorer:
        """Return the scorer for the probed route, for a draft model the baseline's."""
        by_arm = run_documents.read_capabilities(self._probed_directory)
        capabilities = by_arm.get(BASELINE if self.boot.role is Role.DRAFT else self._scoring_arm, Capabilities())
        return scorer(capabilities.route, self.server, self._request_s(workload), lambda: self.reporter.left_s <= 0)

    @property
    def _probed_directory(self) -> RunDirectory:
        """The run with the scoring probes; the old engine has its own."""
        directory = self.recipes.directory
        return RunDirectory(directory.old) if self.boot.role.is_old else directory

    def _baseline_answers(self, workload: Workload) -> Transcript | None:
        """Return the baseline's answers to the same requests as ``workload``.

        Returns None if they are not written yet, cannot be read, or answer other requests, which their digest shows.
        """
        try:
            transcript = transcripts.read(self.recipes.directory, BASELINE, workload.name)
        except RunError:
            return None
        return transcript if transcript is not None and transcript.digest == workload.digest else None

    def _request_s(self, workload: Workload) -> float:
        """Return the seconds for one request: the workload's own, or the config's if that is the default."""
        return self.recipes.config.limits.request_s if workload.deadline_s == _DEFAULT_S else workload.deadline_s
