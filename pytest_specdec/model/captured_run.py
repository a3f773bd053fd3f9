"""Captured run: the input of a judge for one pair and everything that it was asked in a run.

A pair is a baseline and a speculative variant of it. Each workload is one part. The control is the baseline booted again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_specdec.model.captured import Captured
from pytest_specdec.model.spec_counters import SpecCounters, sum_ranks
from pytest_specdec.model.transcript import Transcript

__all__ = ["CapturedRun", "join"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedRun:
    """One pair's answers to every workload of a run.

    It holds no scores: only the judge of a single workload needs them.
    """

    whole: Captured
    """All of them as one: request ids have their workload before them, ``mixed/chat-07``. Its workload is the one that the test names."""
    parts: tuple[Captured, ...]
    """One by one, in the order of the plan; the test's own workload is among them."""
    missing: tuple[str, ...] = ()
    """Planned workloads that this variant or the baseline did not answer."""

    def as_control(self) -> CapturedRun:
        """Return the same with the control in the variant's place.

        Workloads that the control did not answer are left out. Raises ValueError if there is no control at all.
        """
        parts = tuple(part.as_control() for part in self.parts if part.control is not None)
        return replace(self, whole=self.whole.as_control(), parts=parts)


def join(whole: Captured, parts: Sequence[Captured]) -> Captured:
    """Return ``whole`` with the requests and answers of all ``parts``.

    The parts are one pair's answers, one part for each workload. Every request id gets its workload's name in front, so that ids stay
    unique. There is a control only if every part has one: every request must have an answer of each arm. What other arms answered
    (``beside``) follows one another too; all else stays as in ``whole``.
    """
    controls = [part.control for part in parts if part.control is not None]
    requests = tuple(replace(request, id=_joined_id(part, request.id)) for part in parts for request in part.workload.requests)
    return replace(
        whole,
        workload=replace(whole.workload, requests=requests),
        baseline=_unite_transcripts(parts, [part.baseline for part in parts]),
        control=_unite_transcripts(parts, controls) if len(controls) == len(parts) else None,
        speculative=_unite_transcripts(parts, [part.speculative for part in parts]),
        beside=tuple(transcript for part in parts for transcript in part.beside),
    )


def _unite_transcripts(parts: Sequence[Captured], transcripts: Sequence[Transcript]) -> Transcript:
    """Return the transcripts of all parts as one.

    Answers, counters and silent routes, those that refused all requests, are united. Server failures and a limit on concurrency are left
    out: they are about one workload, and stay in its part. Everything else is that of the first transcript.
    """
    pairs = list(zip(parts, transcripts, strict=True))
    answers = tuple(
        replace(answer, request_id=_joined_id(part, answer.request_id)) for part, transcript in pairs for answer in transcript.answers
    )
    counters = [transcript.counters for transcript in transcripts if transcript.counters is not None]
    has_all_counters = len(counters) == len(transcripts)  # a sum over some parts would be of other answers
    # ``elsewhere`` is a sentence if the baseline's server gave some of the answers, else empty: one such sentence is enough.
    elsewhere = next((transcript.elsewhere for transcript in transcripts if transcript.elsewhere), "")
    return replace(
        transcripts[0],
        answers=answers,
        counters=sum(counters, SpecCounters()) if has_all_counters else None,
        ranks=sum_ranks(transcript.ranks for transcript in transcripts),
        server_failures=(),
        elsewhere=elsewhere,
        silent_routes=tuple(dict.fromkeys(route for transcript in transcripts for route in transcript.silent_routes)),
        concurrency=None,
    )


def _joined_id(part: Captured, request_id: str) -> str:
    return f"{part.workload.name}/{request_id}"
