"""Parallel placement: servers boot side by side as far as the machine holds them, and scoring runs behind the answers."""

from __future__ import annotations

import queue
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from pytest_specdec.capture import locks
from pytest_specdec.capture.boot import BootSession
from pytest_specdec.capture.scoring import scoring_request
from pytest_specdec.errors import EngineError, SpecdecError
from pytest_specdec.model.plan import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from pytest_specdec.capture.scoring import ScoringRequest, TranscriptScorer
    from pytest_specdec.model.plan import Boot
    from pytest_specdec.model.transcript import Answer

    _Job: TypeAlias = tuple[TranscriptScorer, ScoringRequest]

    from pytest_specdec.capture.boot import ServerRecipes
    from pytest_specdec.capture.completeness import Completeness
    from pytest_specdec.capture.progress import Reporter
    from pytest_specdec.capture.workload_runner import WorkloadRunner
    from pytest_specdec.model.workload import Workload

__all__ = ["BootWaves", "ScoringQueue", "in_waves", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BootWaves:
    """The order in which boots come and go."""

    staying: tuple[Boot, ...]
    """Up from the first wave to the last: the servers that score."""
    waves: tuple[tuple[Boot, ...], ...]
    """What comes beside them, wave by wave; at least one, maybe empty."""


def in_waves(boots: Sequence[Boot], servers: int) -> BootWaves:
    """Return the waves of ``boots``, at most ``servers`` up at once.

    The servers that score stay while there is room for one more beside them; a draft model that finds none comes after those whose tokens
    it scores.
    """
    scoring = [boot for boot in boots if boot.scores]
    staying = tuple(scoring if len(boots) <= servers else scoring[: max(1, servers - 1)])
    rest = [boot for boot in boots if not boot.scores] + [boot for boot in scoring if boot not in staying]
    room = max(1, servers - len(staying))
    waves = tuple(tuple(rest[at : at + room]) for at in range(0, len(rest), room))
    return BootWaves(staying=staying, waves=waves or ((),))


_THREADS = 4
_LONGEST = 256
"""Answers that may wait to be scored; with more, the thread that brings one is held up."""
_SCORING_PAUSE_S = 0.1


class ScoringQueue:
    """One scoring server's queue; what it leaves undone, for whatever reason, is done in its turn."""

    def __init__(self, session: BootSession) -> None:
        self._session = session
        self._waiting: queue.Queue[_Job] = queue.Queue(_LONGEST)
        self._closed = threading.Event()
        self._scorings: dict[str, TranscriptScorer] = {}

    def scoring(self, workload: str) -> TranscriptScorer:
        """Return what scores answers to ``workload`` here, always the same."""
        return self._scorings.setdefault(workload, self._session.scoring(self._session.recipes.plan.workload(workload)))

    def start(self) -> None:
        """Begin to score as soon as the baseline is probed; until then answers wait."""
        for _ in range(_THREADS):
            threading.Thread(target=self._work, name="specdec-scoring", daemon=True).start()

    def taker(self, workload: str, top_tokens: int) -> Callable[[Answer], None]:
        """Return what takes the answers of one arm to ``workload``."""
        scoring = self.scoring(workload)
        return lambda answer: self._put((scoring, scoring_request(answer, top_tokens)))

    def drain(self) -> None:
        """Wait until everything that was taken is scored, or will not be, as where no capabilities were probed."""
        with self._waiting.all_tasks_done:
            while self._waiting.unfinished_tasks and self._session.probed and not self._is_over:
                self._waiting.all_tasks_done.wait(_SCORING_PAUSE_S)

    def close(self) -> None:
        """Take and begin no more."""
        self._closed.set()

    @property
    def _is_over(self) -> bool:
        return self._closed.is_set() or self._session.reporter.left_s <= 0

    def _put(self, job: _Job) -> None:
        while not self._is_over:
            with suppress(queue.Full):
                self._waiting.put(job, timeout=_SCORING_PAUSE_S)
                return

    def _work(self) -> None:
        while not (self._session.probed or self._is_over):
            self._closed.wait(_SCORING_PAUSE_S)
        while not self._is_over:
            try:
                scoring, asked = self._waiting.get(timeout=_SCORING_PAUSE_S)
            except queue.Empty:
                continue
            try:
                with self._session.shared():
                    scoring.ahead(asked)
            except (SpecdecError, OSError, RuntimeError):
                continue  # the server is gone for the moment, or the time is up: its turn will tell
            finally:
                self._waiting.task_done()


_PAUSE_S = 0.1
_END_S = 30.0
"""Seconds that lanes get to notice that their servers were killed."""


def run(boots: Sequence[Boot], recipes: ServerRecipes, reporter: Reporter, completeness: Completeness) -> None:
    """Run all boots, at most ``plan.servers`` at once; one that fails does not stop the others, unless it is the scoring baseline."""
    planned = in_waves(boots, recipes.plan.servers)
    everyone = _Lanes(reporter)
    staying = [_lane(boot, recipes, reporter, completeness) for boot in planned.staying]
    try:
        for number, wave in enumerate(planned.waves):
            coming = [_lane(boot, recipes, reporter, completeness) for boot in wave]
            _Wave(everyone, coming=(staying if number == 0 else []) + coming, staying=staying).run()
            everyone.all([lane for lane in coming if lane.up], _Lane.stop)
        everyone.all([lane for lane in staying if lane.up], _Lane.stop)
    finally:
        everyone.stop()


@dataclass(slots=True, eq=False)
class _Lane:
    """One boot at work in a thread of its own."""

    session: BootSession
    ahead: ScoringQueue
    up: bool = False
    scored: set[tuple[str, str]] = field(default_factory=set)

    @property
    def boot(self) -> Boot:
        return self.session.boot

    def start(self) -> None:
        self.session.start()
        self.up = True
        if self.boot.scores:
            self.ahead.start()

    def stop(self, *, at_once: bool = False) -> None:
        self.ahead.close()
        self.up = False
        self.session.stop(at_once=at_once)

    def named(self, *, timed: bool) -> list[tuple[str, Workload]]:
        """Return the arms that this boot answers as, each with a workload."""
        workloads = [self.session.recipes.plan.workload(name) for name in self.boot.answers]
        return [(name, workload) for name in self.boot.arms for workload in workloads if workload.timed is timed]


def _lane(boot: Boot, recipes: ServerRecipes, reporter: Reporter, completeness: Completeness) -> _Lane:
    session = BootSession(boot=boot, recipes=recipes, reporter=reporter.beside(boot), completeness=completeness)
    return _Lane(session, ScoringQueue(session))


class _Lanes:
    """The lanes of a capture, worked on in parallel and ended together."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._lanes: list[_Lane] = []
        self._threads: list[threading.Thread] = []
        self._failure: BaseException | None = None

    def all(self, lanes: Sequence[_Lane], work: Callable[[_Lane], None]) -> None:
        """Do ``work`` for every lane, each in a thread; raise what ends the capture once all are done."""
        self._lanes += [lane for lane in lanes if lane not in self._lanes]
        self._threads = [threading.Thread(target=self._guarded, args=(lane, work), name="specdec-lane", daemon=True) for lane in lanes]
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            while thread.is_alive():  # a join without end would keep an interrupt waiting
                thread.join(_PAUSE_S)
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """End what still runs, at once: nothing does after a capture that came to its end."""
        running = [lane for lane in self._lanes if lane.up or any(thread.is_alive() for thread in self._threads)]
        if running:
            self._reporter.end("the capture was ended")
        for lane in running:
            lane.session.kill()
        for thread in self._threads:
            thread.join(_END_S)
        for lane in self._lanes:
            if lane.up:
                lane.stop(at_once=True)

    def _guarded(self, lane: _Lane, work: Callable[[_Lane], None]) -> None:
        try:
            work(lane)
        except EngineError as error:
            lane.session.completeness.failed(lane.boot, str(error))
            if lane.boot.scores and lane.boot.role is not Role.DRAFT:
                self._fail(error)
        except BaseException as error:  # noqa: BLE001 - raised in the calling thread
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Have all lanes end; what they say to that is not what ended them."""
        self._failure = self._failure or error
        self._reporter.end(str(error))


class _Wave:
    """The servers that come together, beside those that stay."""

    def __init__(self, everyone: _Lanes, *, coming: Sequence[_Lane], staying: Sequence[_Lane]) -> None:
        self._everyone = everyone
        self._coming = coming
        self._staying = staying

    def run(self) -> None:
        """Boot, measure what is timed, answer the rest, and score what is not scored yet."""
        if any(lane.named(timed=True) for lane in self._coming):
            self._everyone.all(self._coming, _Lane.start)
            self._measure()
            self._everyone.all(self._up, self._answer)
        else:
            self._everyone.all(self._coming, self._start_and_answer)
        scoring = [lane for lane in dict.fromkeys([*self._staying, *self._coming], True) if lane.up and lane.boot.scores]
        self._everyone.all(scoring, _score)

    @property
    def _up(self) -> list[_Lane]:
        return [lane for lane in self._coming if lane.up]

    def _start_and_answer(self, lane: _Lane) -> None:
        lane.start()
        self._answer(lane)

    def _measure(self) -> None:
        """Send timed passes arm by arm, there and back again, while nothing else runs: what drifts then drifts for all of them."""
        names = dict.fromkeys(workload.name for lane in self._up for _, workload in lane.named(timed=True))
        for name in names:
            timed = [_Timed(lane, arm, w) for lane in self._up for arm, w in lane.named(timed=True) if w.name == name]
            session = timed[0].lane.session
            with locks.exclusive(session.lease_s, session.tick):
                _alternate(timed)
            for one in timed:
                one.lane.session.keep(one.answering)

    def _answer(self, lane: _Lane) -> None:
        """Probe the baseline first and a variant last: a question that kills a variant then costs no answers."""
        session = lane.session
        if lane.boot.role is not Role.VARIANT:
            session.probe()
        for name, workload in lane.named(timed=False):
            session.announce(name, workload)
            answering = session.answering(name, workload, self._taker(name, workload.name))
            with session.shared():
                answering.run()
            session.keep(answering)
        if lane.boot.role is Role.VARIANT:
            session.probe()

    def _taker(self, arm: str, workload: str) -> Callable[[Answer], None]:
        """Return what hands an answer on to every server that is to score it."""
        takers = [
            lane.ahead.taker(workload, asked.top_tokens)
            for lane in dict.fromkeys([*self._staying, *self._coming], True)
            for asked in lane.boot.scores
            if (asked.arm, asked.workload) == (arm, workload)
        ]

        def take(answer: Answer) -> None:
            for each in takers:
                each(answer)

        return take


@dataclass(slots=True)
class _Timed:
    """One arm's part of a timed workload."""

    lane: _Lane
    arm: str
    workload: Workload
    answering: WorkloadRunner = field(init=False)

    def __post_init__(self) -> None:
        self.answering = self.lane.session.answering(self.arm, self.workload)

    def do(self, work: Callable[[], None]) -> None:
        self.lane.session.announce(self.arm, self.workload)
        work()


def _alternate(timed: Sequence[_Timed]) -> None:
    for one in timed:
        one.do(one.answering.begin)
    for pass_index in range(timed[0].workload.passes):
        for one in timed if pass_index % 2 == 0 else reversed(timed):
            one.do(partial(one.answering.answer, pass_index))
    for one in timed:
        one.answering.end()


def _score(lane: _Lane) -> None:
    """Score what has been answered by now, after what was scored ahead."""
    lane.ahead.drain()
    for asked in lane.boot.scores:
        key = (asked.arm, asked.workload)
        if key not in lane.scored and lane.session.completeness.has_answers(*key):
            lane.scored.add(key)
            lane.session.score(asked, lane.ahead.scoring(asked.workload))
