"""Transcripts on disk: a header line with what the arm and its server were, then one line per answer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.errors import RunError
from pytest_specdec.files import codec, lines
from pytest_specdec.model.answer import Answer
from pytest_specdec.model.transcript import Transcript

if TYPE_CHECKING:
    from pytest_specdec.files.directory import RunDirectory
    from pytest_specdec.model.answer import Timing
    from pytest_specdec.model.workload import JSON

__all__ = ["SCHEMA", "read", "write"]

SCHEMA = "urn:pytest-specdec:transcript:1"
_MICROSECONDS = 6


def write(directory: RunDirectory, transcript: Transcript) -> None:
    """Write ``transcript`` to its place, its seconds rounded to microseconds."""
    header = directory.secrets.masked(codec.encode(replace(transcript, answers=(), wall_s=round(transcript.wall_s, _MICROSECONDS))))
    assert isinstance(header, dict)
    del header["answers"]
    rest = (directory.secrets.masked(codec.encode(_rounded(answer))) for answer in transcript.answers)
    lines.write(directory.transcript(transcript.arm, transcript.workload), SCHEMA, header, rest)


def read(directory: RunDirectory, arm: str, workload: str) -> Transcript | None:
    """Return what ``arm`` answered to ``workload``, None when there is no such file. Raises RunError with file and line."""
    found = lines.read(directory.transcript(arm, workload), SCHEMA)
    if found is None:
        return None
    answers = tuple(_answer(found, number, line) for number, line in enumerate(found.rest, 2))
    try:
        return replace(codec.decode(Transcript, {**found.header, "answers": []}), answers=answers)
    except RunError as error:
        raise found.error(error, 1) from None


def _answer(found: lines.Lines, number: int, line: JSON) -> Answer:
    try:
        return codec.decode(Answer, line)
    except RunError as error:
        raise found.error(error, number) from None


def _rounded(answer: Answer) -> Answer:
    return answer if answer.timing is None else replace(answer, timing=_to_microseconds(answer.timing))


def _to_microseconds(timing: Timing) -> Timing:
    first_s = None if timing.first_s is None else round(timing.first_s, _MICROSECONDS)
    return replace(timing, sent_s=round(timing.sent_s, _MICROSECONDS), first_s=first_s, done_s=round(timing.done_s, _MICROSECONDS))
