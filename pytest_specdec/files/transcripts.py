"""Transcripts and scores on disk: a header line on the arm and its server, then one line per answer.

An arm is a server setup, such as the baseline or a variant. A score is the distribution that the server ``under`` gives at each token of an
answer, which ``arm`` emitted. A pass is one sending of all requests of a workload.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from operator import index
from typing import TYPE_CHECKING, Any

from pytest_specdec.errors import RunError, ScoreError
from pytest_specdec.files import codec, jsonl
from pytest_specdec.model import score_flaws
from pytest_specdec.model.transcript import Answer, Position, Score, Transcript

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from pytest_specdec.files.run_directory import RunDirectory
    from pytest_specdec.model.plan import Plan
    from pytest_specdec.model.timing import Timing
    from pytest_specdec.model.workload import JSON

SCHEMA = "urn:pytest-specdec:transcript:2"
_MICROSECONDS = 6
_RESTORE = "restore the file that the capture wrote, or capture again"


def write(directory: RunDirectory, transcript: Transcript) -> None:
    """Write ``transcript`` to its file, with secrets masked and seconds rounded to microseconds."""
    header = directory.secrets.mask_json(codec.encode(replace(transcript, answers=(), wall_s=round(transcript.wall_s, _MICROSECONDS))))
    assert isinstance(header, dict)
    del header["answers"]
    lines = (directory.secrets.mask_json(codec.encode(_round_timing(answer))) for answer in transcript.answers)
    jsonl.write(directory.transcript(transcript.arm, transcript.workload), SCHEMA, header, lines)


def read(directory: RunDirectory, arm: str, workload: str) -> Transcript | None:
    """Return the transcript of ``arm`` on ``workload``; None without a file.

    Raises RunError, with file and line, if the file is invalid, has the answers of another arm or workload, or repeats a
    row.
    """
    lines = jsonl.read(directory.transcript(arm, workload), SCHEMA)
    if lines is None:
        return None
    answers = tuple(_decode_answer(lines, number, line) for number, line in enumerate(lines.rest, 2))  # line 1 is the header
    try:
        transcript = replace(codec.decode(Transcript, {**lines.header, "answers": []}), answers=answers)
    except RunError as error:
        raise lines.error(error, 1) from None
    names = {"arm": (transcript.arm, arm), "workload": (transcript.workload, workload)}
    _check_names(lines, "these are the answers of another arm or workload", **names)
    _refuse_duplicates(lines, [answer.key for answer in answers])
    return transcript


def reports_failures(directory: RunDirectory, arm: str, workload: str) -> bool:
    """Return True if a stored transcript lists server failures.

    Only its header is parsed. False without a file, and for one with an unreadable header.
    """
    with suppress(RunError):
        return bool((jsonl.read_header(directory.transcript(arm, workload), SCHEMA) or {}).get("server_failures"))
    return False


def _check_names(lines: jsonl.JsonLines, what: str, **names: tuple[object, str]) -> None:
    """Raise RunError if a name in the header is not as expected.

    ``names`` has the name in the header and the expected one of the file's path, by kind: ``arm``, ``workload`` or ``under``. ``what`` is
    the message of the error.
    """
    for name, (name_in_file, expected) in names.items():
        if name_in_file != expected:
            error = RunError(what, found=f"{name} {name_in_file!r}", expected=f"{name} {expected!r}", remedy=_RESTORE)
            raise lines.error(error, 1)


def _refuse_duplicates(lines: jsonl.JsonLines, keys: Sequence[tuple[str, int]]) -> None:
    """Raise RunError if a request and pass has two rows.

    ``keys`` are the request and pass of each row. An answer with two rows would count twice.
    """
    line_of_key: dict[tuple[str, int], int] = {}
    for number, key in enumerate(keys, 2):
        if line_of_key.setdefault(key, number) != number:
            duplicate = f"request {key[0]}, pass {key[1]}, as in line {line_of_key[key]}"
            error = RunError("a row stands twice", found=duplicate, expected="one row for each request and pass", remedy=_RESTORE)
            raise lines.error(error, number)


def _decode_answer(lines: jsonl.JsonLines, number: int, line: JSON) -> Answer:
    """Return the answer in line ``number``; raise RunError if it is none."""
    try:
        return codec.decode(Answer, line)
    except RunError as error:
        raise lines.error(error, number) from None


def _round_timing(answer: Answer) -> Answer:
    return answer if answer.timing is None else replace(answer, timing=_to_microseconds(answer.timing))


def _to_microseconds(timing: Timing) -> Timing:
    stamps = {name: getattr(timing, name) for name in ("sent_s", "first_s", "content_s", "last_s", "done_s")}
    return replace(timing, **{name: round(stamp, _MICROSECONDS) for name, stamp in stamps.items() if stamp is not None})


SCORES_SCHEMA = "urn:pytest-specdec:score:2"


def write_scores(directory: RunDirectory, under: str, arm: str, workload: str, scores: Sequence[Score]) -> None:
    """Write the scores of ``arm``'s tokens under the server ``under``.

    Log-probabilities are rounded to 7 significant digits, as many as single precision has.
    """
    header: dict[str, JSON] = {"under": under, "arm": arm, "workload": workload}
    jsonl.write(directory.scores(under, arm, workload), SCORES_SCHEMA, header, map(_encode_score, scores))


def read_other_arms(directory: RunDirectory, plan: Plan, workload: str, arms: Collection[str]) -> Iterator[Transcript]:
    """Yield the transcripts of all arms but ``arms`` on ``workload``.

    Those of the old engine, and those that cannot be read, are left out.
    """
    answering = (boot for boot in plan.boots if workload in boot.answers and not boot.role.is_old)
    for arm in (arm for boot in answering for arm in boot.arms if arm not in arms):
        with suppress(RunError):
            transcript = read(directory, arm, workload)
            if transcript is not None:
                yield transcript


def read_scores(directory: RunDirectory, under: str, arm: str, workload: str, *, top_tokens: int = 1) -> tuple[Score, ...]:
    """Return the scores of ``arm``'s tokens under the server ``under``.

    ``top_tokens`` is the number of most probable tokens that were asked for at each position. () without a file. Raises RunError, with file
    and line, if the file is invalid. Raises ScoreError, with the token, if the log-probabilities of a position contradict each other. So it
    does if several tokens were asked for and the only one listed is not nearly certain: a better one may be missing.
    """
    lines = jsonl.read(directory.scores(under, arm, workload), SCORES_SCHEMA)
    if lines is None:
        return ()
    header = {name: lines.header.get(name) for name in ("under", "arm", "workload")}
    expected = {"under": under, "arm": arm, "workload": workload}
    _check_names(lines, "these are other scores", **{name: (header[name], expected[name]) for name in expected})
    scores = tuple(_decode_score(lines, number, line, under=under, arm=arm) for number, line in enumerate(lines.rest, 2))
    _refuse_duplicates(lines, [score.key for score in scores])
    for number, score in enumerate(scores, 2):
        _check_distributions(lines.path, number, score, top_tokens)
    return scores


def _check_distributions(path: Path, line: int, score: Score, top_tokens: int) -> None:
    """Raise ScoreError for the first impossible position of a score.

    :func:`read_scores` says which positions are impossible. ``path`` and ``line`` are the place of the score, for the error.
    """
    for place, position in enumerate(score.positions):
        if flaw := score_flaws.flaw(position, top_tokens=top_tokens):
            what = f"the scores of {score.arm} under {score.under} are no distributions"
            raise ScoreError(
                what,
                where=f"{path}:{line}  request {score.request_id}, pass {score.pass_index}, token {place} (id {position.token_id})",
                found=f"the token {flaw}",
                expected=f"its log-probability and the {top_tokens} most probable tokens or more, finite, not above 0",
                remedy="restore the file that the capture wrote; if the server sent this, name another one as `scorer:`",
            )


def _encode_score(score: Score) -> JSON:
    """Return a score as JSON; arm and server are in the header."""
    prompt: dict[str, JSON] = {"prompt_token_ids": list(score.prompt_token_ids)} if score.prompt_token_ids else {}
    return {
        "request_id": score.request_id,
        "pass_index": score.pass_index,
        **prompt,
        "positions": [_encode_position(position) for position in score.positions],
    }


def _encode_position(position: Position) -> JSON:
    """Return a position as JSON: token, logprob, top tokens, their logprobs."""
    return [
        position.token_id,
        _encode_logprob(position.logprob),
        list(position.top_ids),
        [_encode_logprob(value) for value in position.top_logprobs],
    ]


def _encode_logprob(logprob: float) -> JSON:
    """Return a log-probability as JSON, with 7 significant digits.

    Single precision has as many. Infinities and NaN, which JSON does not have, become strings.
    """
    return float(f"{logprob:.7g}") if math.isfinite(logprob) else str(logprob)


def _decode_score(lines: jsonl.JsonLines, number: int, line: JSON, *, under: str, arm: str) -> Score:
    """Return the score of one answer from a line of JSON.

    ``lines`` is the file and ``number`` the line's, for the place of an error. ``arm`` emitted the tokens, and the server ``under`` scored
    them. Raises RunError if the line is invalid.
    """
    try:
        fields: dict[str, Any] = dict(line)  # type: ignore[arg-type]
        # index() refuses what int() would cut or parse, such as 1.5 and "1".
        positions = tuple(
            Position(token_id=index(token), logprob=float(logprob), top_ids=tuple(map(index, ids)), top_logprobs=tuple(map(float, values)))
            for token, logprob, ids, values in fields["positions"]
        )
        prompt = tuple(map(int, fields.get("prompt_token_ids", ())))
        name, pass_index = str(fields["request_id"]), index(fields["pass_index"])
        return Score(request_id=name, pass_index=pass_index, arm=arm, under=under, positions=positions, prompt_token_ids=prompt)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        expected = "request_id, pass_index, positions of [token, logprob, [top tokens], [logprobs]]"
        raise lines.error(RunError("this is no Score", found=f"{type(error).__name__}: {error}", expected=expected), number) from None
