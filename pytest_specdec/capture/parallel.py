"""Parallel placement: servers boot side by side as far as the machine holds them, and scoring follows the answers.

A boot is one server's start and its work: answering workloads, and scoring, which is giving log-probabilities of tokens that others
answered. A wave is the boots up together. A worker is one boot in a thread, a session its server with its requests. Timed workloads measure
speed.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from pytest_specdec.capture.alternation import Alternation, TimedArm
from pytest_specdec.capture.boot import BootSession
from pytest_specdec.capture.boot_layout import why_needless
from pytest_specdec.capture.room import limit_setting_boot
from pytest_specdec.capture.scoring_queue import ScoringQueue
from pytest_specdec.errors import EngineError
from pytest_specdec.model.baseline import stated_boot_sd
from pytest_specdec.model.pair import BASELINE
from pytest_specdec.model.plan import Role
from pytest_specdec.model.workload import Depth

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytest_specdec.capture.completeness import Completeness
    from pytest_specdec.capture.progress import Reporter
    from pytest_specdec.capture.server_recipes import ServerRecipes
    from pytest_specdec.capture.workload_runner import WorkloadRunner
    from pytest_specdec.model.plan import Boot
    from pytest_specdec.model.transcript import Answer
    from pytest_specdec.model.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class BootWaves:
    """The boots of a run, in waves that follow one another."""

    staying: tuple[Boot, ...]
    """Up from the first wave to the last: the servers that score."""
    waves: tuple[tuple[Boot, ...], ...]
    """The boots up together with the staying ones, wave by wave; at least one wave, maybe empty."""
    further: tuple[tuple[Boot, ...], ...] = ()
    """The further boots for speed, alone on the machine once all others are gone: each wave a baseline with its variants."""


def boot_waves(boots: Sequence[Boot], servers: int) -> BootWaves:
    """Return the waves of ``boots``, at most ``servers`` up at once.

    The servers that score (``staying``) stay up through all waves, as long as one more server fits beside these. Further boots of an arm,
    numbered from 2 and for speed only, come in waves of their own. A boot of the old engine stays for no other wave, even if it scores.
    """
    further = [boot for boot in boots if boot.number > 1]
    first_boots = [boot for boot in boots if boot.number == 1]
    scoring = [boot for boot in first_boots if boot.scores and not boot.role.is_old]
    all_fit = len(first_boots) <= servers
    staying = scoring if all_fit else scoring[: max(1, servers - 1)]  # one place is left for the others, in turn
    # A draft model that cannot stay comes last: it scores the tokens of the others.
    changing = [boot for boot in first_boots if boot not in scoring] + scoring[len(staying) :]
    waves = tuple(_fill_waves(changing, max(1, servers - len(staying))))
    return BootWaves(staying=tuple(staying), waves=waves or ((),), further=tuple(_group_by_baseline(further)))


def _fill_waves(boots: Sequence[Boot], room: int) -> Iterator[tuple[Boot, ...]]:
    """Yield waves of at most ``room`` boots, in the given order.

    A boot of the old engine, the one before an upgrade, comes right after its counterpart of the new one in ``boots``: their requests
    alternate, so that both are in the same wave if ``room`` is at least 2.
    """
    wave: list[Boot] = []
    for index, boot in enumerate(boots):
        has_counterpart = index + 1 < len(boots) and boots[index + 1].role.is_old and not boot.role.is_old
        needed_room = 2 if has_counterpart and room > 1 else 1
        if len(wave) + needed_room > room:
            yield tuple(wave)
            wave = []
        wave.append(boot)
    if wave:
        yield tuple(wave)


def _group_by_baseline(further: Sequence[Boot]) -> Iterator[tuple[Boot, ...]]:
    """Yield the waves of further boots, each beginning with a baseline."""
    starts = [start for start, boot in enumerate(further) if boot.role is Role.BASELINE or start == 0]
    for start, end in pairwise([*starts, len(further)]):
        yield tuple(further[start:end])


_PAUSE_S = 0.1
_END_S = 30.0
"""Seconds that workers get to notice that their servers were killed."""


def run(boots: Sequence[Boot], recipes: ServerRecipes, reporter: Reporter, completeness: Completeness) -> None:
    """Run all boots, at most ``plan.servers`` at once, in waves.

    The servers that score stay up through all waves. The further boots for speed run once all other servers have ended. A boot that fails
    does not stop the others, unless it is the baseline or control that scores, without which nothing is judged.
    """
    planned = boot_waves(boots, recipes.plan.servers)
    workers = _Workers(reporter)

    def run_wave(boots_of_wave: Sequence[Boot], starting: Sequence[_Worker], staying: Sequence[_Worker]) -> None:
        """Boot a wave's servers, with those ``starting`` to stay, and stop all that do not stay."""
        needed = [boot for boot in boots_of_wave if not workers.is_needless(boot, recipes, completeness)]
        changing = [_create_worker(boot, recipes, reporter, completeness) for boot in needed]
        _Wave(workers, coming=[*starting, *changing], staying=staying).run()
        workers.run(_workers_up(changing), _Worker.stop)

    staying = [_create_worker(boot, recipes, reporter, completeness) for boot in planned.staying]
    try:
        for number, wave in enumerate(planned.waves):
            run_wave(wave, staying if number == 0 else [], staying)  # those that stay boot with the first wave, and score in all
        workers.run(_workers_up(staying), _Worker.stop)
        for wave in planned.further:
            run_wave(wave, [], [])
    finally:
        workers.kill()


@dataclass(slots=True, eq=False)
class _Worker:
    """One boot at work in a thread of its own."""

    session: BootSession
    queue: ScoringQueue
    up: bool = False
    """Whether its server has come up and was not stopped."""
    failed: bool = False
    """Whether an error of its engine has ended its answers."""
    scored: set[tuple[str, str]] = field(default_factory=set)
    """Arm and workload of the tasks that were begun."""

    @property
    def boot(self) -> Boot:
        return self.session.boot

    def start(self) -> None:
        """Boot the server, and start scoring if it is to score."""
        self.session.start()
        self.up = True
        if self.boot.scores:
            self.queue.start()

    def stop(self, *, graceful: bool = True) -> None:
        """Close the queue and stop the server."""
        self.queue.close()
        self.up = False
        self.session.stop(graceful=graceful)

    def score(self) -> None:
        """Score the answers given so far, by tasks not done yet.

        A task is one arm's answers to one workload. Tasks begun before are skipped, so that this may be called after every wave.
        """
        self.queue.drain()  # of the answers that it scores while their arms give others
        for task in self.boot.scores:
            key = (task.arm, task.workload)
            if key not in self.scored and self.session.completeness.has_answers(*key):
                self.scored.add(key)
                scorer = self.queue.scoring(task.workload)  # the same that the queue used: it holds the scores so far
                self.session.score(task, scorer)


def _create_worker(boot: Boot, recipes: ServerRecipes, reporter: Reporter, completeness: Completeness) -> _Worker:
    session = BootSession(boot=boot, recipes=recipes, reporter=reporter.boot_reporter(boot), completeness=completeness)
    return _Worker(session, ScoringQueue(session))


def _workers_up(workers: Sequence[_Worker]) -> list[_Worker]:
    return [worker for worker in workers if worker.up]


def _sound_workers(workers: Sequence[_Worker]) -> list[_Worker]:
    return [worker for worker in workers if worker.up and not worker.failed]


class _Workers:
    """The workers of a capture, run in parallel and ended together.

    ``_failure`` is the first error that ends the capture, ``_dead`` the arms that did not come up.
    """

    def __init__(self, reporter: Reporter) -> None:
        """Take the reporter shared by all workers of the capture."""
        self._reporter = reporter
        self._workers: list[_Worker] = []
        self._threads: list[threading.Thread] = []
        self._failure: BaseException | None = None
        self._dead: set[str] = set()
        """The arms that did not come up, variants and those of the old engine."""
        self.passes: dict[str, int] = {}
        """How often timed workloads were sent, by name."""

    def is_needless(self, boot: Boot, recipes: ServerRecipes, completeness: Completeness) -> bool:
        """Return True if no verdict needs ``boot`` any more.

        :func:`why_needless` decides by the arms that did not come up. Its reason is recorded: the results of a needless boot count as
        missing.
        """
        reason = why_needless(boot, recipes.plan, self._dead)
        if reason:
            completeness.record_reason(boot, reason)
            self._reporter.drop(boot)
        return bool(reason)

    def run(self, workers: Sequence[_Worker], work: Callable[[_Worker], None]) -> None:
        """Run ``work`` for every worker in a thread of its own.

        Waits for all of these, then raises the error that ends the capture, if there is one.
        """
        self._workers += [worker for worker in workers if worker not in self._workers]
        self._threads = [
            threading.Thread(target=self._run_and_record_failure, args=(worker, work), name="specdec-boot", daemon=True)
            for worker in workers
        ]
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            while thread.is_alive():  # a join without end would keep an interrupt waiting
                thread.join(_PAUSE_S)
        self._raise_failure()

    def run_here(self, worker: _Worker, work: Callable[[_Worker], None]) -> None:
        """Run ``work`` for one worker, in the calling thread.

        Raises the error that ends the capture, if there is one; other errors are only recorded, as by :meth:`run`.
        """
        self._run_and_record_failure(worker, work)
        self._raise_failure()

    def _raise_failure(self) -> None:
        """Raise the error that ends the capture, if there is one."""
        if self._failure is not None:
            raise self._failure

    def kill(self) -> None:
        """End all workers still running, and kill their servers at once.

        Does nothing after a capture that came to its end, since no worker runs then.
        """
        # A thread still at work may be booting a server that is not up yet. Which one is unknown, so all are killed.
        is_any_working = any(thread.is_alive() for thread in self._threads)
        running = [worker for worker in self._workers if worker.up or is_any_working]
        if running:
            self._reporter.end("the capture was ended")
        for worker in running:
            worker.session.kill()  # does not wait; the worker's thread notices and ends
        for thread in self._threads:
            thread.join(_END_S)
        # Killed servers still have to be waited for, and their times recorded, unless their threads have done so.
        for worker in _workers_up(self._workers):
            worker.stop(graceful=False)

    def _run_and_record_failure(self, worker: _Worker, work: Callable[[_Worker], None]) -> None:
        """Run ``work``, and record its failure instead of raising it.

        A boot that fails by an EngineError ends the capture only if it scores as baseline or control; any other error ends it always. A
        variant or an arm of the old engine that did not come up is noted in ``_dead``, so that no further server is booted for it alone. It
        is not noted for a small-cache boot, since it may still come up with the usual cache.
        """
        try:
            work(worker)
        except EngineError as error:
            worker.session.completeness.record_error(worker.boot, error)
            worker.failed = True
            self._reporter.drop(worker.boot)
            if not worker.up:
                worker.queue.close()  # nothing takes answers out of the queue, and arms would wait for room
            if (worker.boot.role is Role.VARIANT or worker.boot.role.is_old) and not worker.up and not worker.boot.small_cache:
                self._dead.add(worker.boot.arm)
            if worker.boot.scores and worker.boot.role in {Role.BASELINE, Role.CONTROL}:
                self._fail(error)
        except BaseException as error:  # noqa: BLE001 - raised in the calling thread
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Record the first failure, and have all workers end.

        Their reporters then raise DeadlineError. Errors that the workers raise because of this are not recorded.
        """
        self._failure = self._failure or error
        self._reporter.end(str(error))


class _Wave:
    """The servers of one wave, those booted in it (``_coming``) and those that stay."""

    def __init__(self, workers: _Workers, *, coming: Sequence[_Worker], staying: Sequence[_Worker]) -> None:
        """Take all workers of the capture, those booted in this wave, and those that stay."""
        self._workers = workers
        self._coming = coming
        self._all = list(dict.fromkeys([*staying, *coming]))

    def run(self) -> None:
        """Boot the wave's servers, have all workloads answered, and score.

        If anything is timed, all servers boot before the first request: timed requests alternate between the servers, and nothing else
        runs meanwhile. Otherwise each server gets its requests as soon as it is up.
        """
        if any(worker.session.workloads(timed=True) for worker in self._coming):
            self._workers.run(self._coming, _Worker.start)
            self._measure()
            self._workers.run(_sound_workers(self._coming), self._answer)
        else:
            self._workers.run(self._coming, self._start_and_answer)
        self._workers.run([worker for worker in _workers_up(self._all) if worker.boot.scores], _Worker.score)

    def _measure(self) -> None:
        """Send the timed workloads, one arm taking turns with the others.

        Nothing else runs meanwhile. The alternation makes drift of the machine affect all arms alike. Servers that stay from an earlier
        wave have answered their timed workloads there.
        """
        sessions = [worker.session for worker in _workers_up(self._coming)]
        for name in dict.fromkeys(workload.name for session in sessions for _, workload in session.workloads(timed=True)):
            # One runner sends the workload as one arm; a server may be two, baseline and control. Servers that have failed are left out.
            runners = [
                (worker, worker.session.runner(arm, workload))
                for worker in _sound_workers(self._coming)
                for arm, workload in worker.session.workloads(timed=True)
                if workload.name == name
            ]
            if runners:
                self._measure_workload(name, runners)

    def _measure_workload(self, name: str, runners: Sequence[tuple[_Worker, WorkloadRunner]]) -> None:
        """Send one timed workload, and write the answers of each arm.

        The machine is held alone meanwhile. An engine's error ends the work of its own boot alone. The number of times that the whole
        workload was sent (``passes``) is stored, since a later wave is sent as many.
        """
        alternation = _create_alternation([(worker.session, runner) for worker, runner in runners], self._workers.passes.get(name, 0))
        with runners[0][0].session.exclusive():  # the lock is the machine's, so any session holds it for all
            self._workers.passes[name] = alternation.run()
        for (worker, runner), arm in zip(runners, alternation.arms, strict=True):
            self._workers.run_here(worker, partial(_write_answers, runner=runner, error=alternation.errors.get(arm)))

    def _start_and_answer(self, worker: _Worker) -> None:
        worker.start()
        self._answer(worker)

    def _answer(self, worker: _Worker) -> None:
        """Have the untimed workloads answered, limit-setting ones first.

        The baseline settles the token limits of these, and all other servers wait for it. Sorting puts False, its workloads, first.
        """
        plan = worker.session.recipes.plan

        def settles_no_limits(arm_and_workload: tuple[str, Workload]) -> bool:
            arm, workload = arm_and_workload
            return arm != BASELINE or limit_setting_boot(plan, workload.name) is None

        worker.session.answer(sorted(worker.session.workloads(timed=False), key=settles_no_limits), self._scoring_callback)

    def _scoring_callback(self, arm: str, workload: str) -> Callable[[Answer], None]:
        """Return a callback for queueing an arm's answers wherever they are scored.

        Several servers may score the same answer, such as the baseline and a draft model.
        """
        takers = [
            worker.queue.taker(workload, task.top_tokens)
            for worker in self._all
            for task in worker.boot.scores
            if (task.arm, task.workload) == (arm, workload)
        ]

        def take(answer: Answer) -> None:
            for taker in takers:
                taker(answer)

        return take


def _write_answers(worker: _Worker, *, runner: WorkloadRunner, error: EngineError | None) -> None:
    """Write one arm's answers, or raise the error that ended them."""
    if error is not None:
        raise error
    worker.session.write_answers(runner.result())


def _create_alternation(runners: Sequence[tuple[BootSession, WorkloadRunner]], earlier_passes: int) -> Alternation:
    """Return an alternation, which sends one timed workload to this wave's arms in turn.

    ``runners`` send it, one per arm. A pass is the whole workload sent once. ``earlier_passes`` is the number that arms of earlier waves
    were sent, 0 without such arms; these arms get no fewer, since they are compared with those.
    """
    session = runners[0][0]  # config, plan and deadline are the same in all of them
    return Alternation(
        arms=[
            TimedArm(runner=runner, speculative=arm_session.boot.role.speculates, old=arm_session.boot.role.is_old)
            for arm_session, runner in runners
        ],
        boot_sd=stated_boot_sd(session.recipes.config.gates),  # how much the config takes speed to vary from boot to boot
        # Further passes may follow the planned ones if these vary much, but not at smoke depth or under a deadline.
        may_extend=session.recipes.plan.depth is not Depth.SMOKE and math.isinf(session.reporter.left_s),
        earlier_passes=earlier_passes,
    )
