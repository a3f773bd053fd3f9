"""Breakdown: the speed of parts of one timed workload, by category of prompt or by number of concurrent requests."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from pytest_specdec.judge.speed.timing import MeasuredSpeed, measure_speed
from pytest_specdec.model.workload import GATED_CLIENTS, OWN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Answer, Transcript
    from pytest_specdec.model.workload import Request

__all__ = ["SpeedAtLoad", "SpeedByLoad", "by_category", "by_load", "is_by_load"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedAtLoad:
    """The speed with one number of requests in flight."""

    clients: int
    part: Captured
    """The answers of this level alone."""
    speed: MeasuredSpeed
    together: float
    """Tokens per second of all clients together, speculative over baseline."""
    waited: int
    """Answers, over all arms, that began only after another one of their wave had ended, since the server let them wait."""

    def __str__(self) -> str:
        waited = f"; {self.waited} answers waited for others to end" if self.waited else ""
        return f"{self.clients:>4} at once: {self.speed.shown} an answer, {self.together:.2f}x of all together{waited}"


def _clients(level: SpeedAtLoad) -> int:
    return level.clients


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedByLoad:
    """The speed at each number of clients, fewest first."""

    levels: tuple[SpeedAtLoad, ...]

    @property
    def gated(self) -> SpeedAtLoad:
        """The gated level: the highest of at most GATED_CLIENTS, or else the lowest of all."""
        return max((level for level in self.levels if level.clients <= GATED_CLIENTS), key=_clients, default=self.levels[0])

    @property
    def break_even(self) -> float | None:
        """The number of clients at which an answer's speedup falls to 1.

        None if it is above 1 with the fewest clients and never falls so far. If it is 1 or less there, the result is the fewest, unless it
        rises and falls again. Between the levels the log of the speedup is taken to be linear in the log of the clients.
        """
        points = [(math.log(level.clients), math.log(level.speed.ratio)) for level in self.levels]
        for (log_few, log_before), (log_many, log_after) in pairwise(points):
            if log_before > 0.0 >= log_after:
                return math.exp(log_few + (log_many - log_few) * log_before / (log_before - log_after))
        return float(self.levels[0].clients) if points[0][1] <= 0.0 else None

    @property
    def summary(self) -> str:
        """The number of clients from which speculation no longer pays, in few words."""
        fewest, most, even = self.levels[0].clients, self.levels[-1].clients, self.break_even
        if even is None:
            return f"faster up to {most} clients"
        if even > fewest:
            return f"break-even near {even:.0f} clients"
        return "not faster at one client" if fewest == 1 else f"not faster at {fewest} clients, the fewest measured"

    @property
    def lines(self) -> tuple[str, ...]:
        """The levels, one a line."""
        return (f"by requests at once: {self.summary}", *(f"  {level}" for level in self.levels))

    @property
    def figures(self) -> Mapping[str, float]:
        """The speedups by name."""
        even = {} if self.break_even is None else {"break_even_clients": self.break_even}
        return {**{f"speedup_{level.clients}_clients": level.speed.ratio for level in self.levels}, **even}


def is_by_load(captured: Captured) -> bool:
    """Return True if the workload is timed at several numbers of clients."""
    return captured.workload.timed and bool(captured.workload.waves)


def by_load(captured: Captured) -> SpeedByLoad | None:
    """Return the speed at each number of clients, from waves of requests.

    The requests of a wave are in flight together, and its size is the number of clients. Levels go from the fewest clients to the most;
    those without a request timed in every arm are left out. Returns None if none is left.
    """
    by_clients: dict[int, list[Sequence[Request]]] = {}
    for wave in captured.workload.in_waves:
        by_clients.setdefault(len(wave), []).append(wave)
    levels = [level for clients in sorted(by_clients) if (level := _measure_level(captured, clients, by_clients[clients])) is not None]
    return SpeedByLoad(levels=tuple(levels)) if levels else None


def _measure_level(captured: Captured, clients: int, waves: Sequence[Sequence[Request]]) -> SpeedAtLoad | None:
    """Return the speed at one number of clients.

    Each of ``waves`` has as many requests as ``clients``, sent at once. The speed is that of single answers, and of all clients together.
    Returns None if no request was timed in every arm.
    """
    part = _select_answers(captured, (request.id for wave in waves for request in wave))
    speed = measure_speed(part)
    if speed is None:
        return None
    ids_by_wave = [frozenset(request.id for request in wave) for wave in waves]
    arms = [arm for arm in (part.baseline, part.control, part.speculative) if arm is not None]
    # Answers that began only after another one of their wave had ended: fewer than ``clients`` were then in flight, in whichever arm.
    waited = sum(_count_waiting(answers) for arm in arms for answers in _group_by_wave(arm, ids_by_wave))
    return SpeedAtLoad(
        clients=clients,
        part=part,
        speed=speed,
        together=_tokens_per_s(part.speculative, ids_by_wave) / _tokens_per_s(part.baseline, ids_by_wave),
        waited=waited,
    )


def _select_answers(captured: Captured, request_ids: Iterable[str]) -> Captured:
    """Return the captured answers to some of the requests.

    The server's counters are left out, since they cover all requests.
    """
    selected = frozenset(request_ids)
    return replace(
        captured,
        baseline=captured.baseline.part(selected),
        control=None if captured.control is None else captured.control.part(selected),
        speculative=captured.speculative.part(selected),
        further=tuple(
            replace(block, baselines=tuple(boot.part(selected) for boot in block.baselines), speculative=block.speculative.part(selected))
            for block in captured.further
        ),
    )


def _group_by_wave(transcript: Transcript, ids_by_wave: Sequence[frozenset[str]]) -> list[list[Answer]]:
    """Return the answers that were in flight together, by wave and pass.

    ``ids_by_wave`` has the request ids of each wave. Answers without success or timing are left out.
    """
    groups: dict[tuple[int, int], list[Answer]] = {}
    for answer in transcript.answers:
        wave = next((index for index, group in enumerate(ids_by_wave) if answer.request_id in group), None)
        if wave is not None and answer.ok and answer.timing is not None:
            groups.setdefault((answer.pass_index, wave), []).append(answer)
    return list(groups.values())


def _tokens_per_s(transcript: Transcript, ids_by_wave: Sequence[frozenset[str]]) -> float:
    """Return the tokens per second of all clients together.

    It is the sum of all tokens over the sum of the waves' times in all passes, each from the first request sent to the last byte.
    ``ids_by_wave`` has the request ids of each wave; callers ensure that an answer to one of them was timed.
    """
    tokens = seconds = 0.0
    for group in _group_by_wave(transcript, ids_by_wave):
        timings = [answer.timing for answer in group if answer.timing is not None]
        tokens += sum(answer.reported_tokens for answer in group)
        seconds += max(timing.done_s for timing in timings) - min(timing.sent_s for timing in timings)
    return tokens / seconds


def _count_waiting(group: Sequence[Answer]) -> int:
    """Return the number of answers that began after another one of the group had ended.

    All were sent at once, so that the server let these wait. ``group`` has at least one answer, and each is timed.
    """
    timings = [answer.timing for answer in group if answer.timing is not None]
    ended_s = min(timing.done_s for timing in timings)
    return sum(timing.first_s is not None and timing.first_s > ended_s for timing in timings)


def by_category(captured: Captured) -> Mapping[str, MeasuredSpeed]:
    """Return the speed by category of prompt, as read from request ids.

    Categories without a request timed in every arm are left out. Empty if there is only one category.
    """
    ids_by_category: dict[str, list[str]] = {}
    for request in captured.workload.requests:
        ids_by_category.setdefault(_category(request.id), []).append(request.id)
    if len(ids_by_category) == 1:
        return {}
    speeds = ((category, measure_speed(_select_answers(captured, request_ids))) for category, request_ids in ids_by_category.items())
    return {category: speed for category, speed in speeds if speed is not None}


def _category(request_id: str) -> str:
    """Return a request's category: its id without the number at the end, or ``own`` for the user's prompts."""
    return OWN.removesuffix(":") if request_id.startswith(OWN) else request_id.rpartition("-")[0]
