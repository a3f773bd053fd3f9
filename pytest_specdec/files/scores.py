"""Scores on disk: a header line, then one line per answer with ``[token, logprob, [atoms], [their logprobs]]`` per position."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pytest_specdec.errors import RunError
from pytest_specdec.files import lines
from pytest_specdec.model.score import Position, Score

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.files.directory import RunDirectory
    from pytest_specdec.model.workload import JSON

__all__ = ["SCHEMA", "read", "write"]

SCHEMA = "urn:pytest-specdec:score:1"


def write(directory: RunDirectory, under: str, arm: str, workload: str, scores: Sequence[Score]) -> None:
    """Write the scores of ``arm`` under the law of ``under``, log-probabilities rounded to 7 significant digits."""
    header: dict[str, JSON] = {"under": under, "arm": arm, "workload": workload}
    lines.write(directory.scores(under, arm, workload), SCHEMA, header, map(_line, scores))


def read(directory: RunDirectory, under: str, arm: str, workload: str) -> tuple[Score, ...]:
    """Return the scores of ``arm`` under the law of ``under``; () when there are none. Raises RunError with file and line."""
    found = lines.read(directory.scores(under, arm, workload), SCHEMA)
    if found is None:
        return ()
    return tuple(_score(found, number, line, under=under, arm=arm) for number, line in enumerate(found.rest, 2))


def _line(score: Score) -> JSON:
    return {"request_id": score.request_id, "pass_index": score.pass_index, "positions": [_position(p) for p in score.positions]}


def _position(position: Position) -> JSON:
    return [position.token_id, _short(position.logprob), list(position.atom_ids), [_short(value) for value in position.atom_logprobs]]


def _short(logprob: float) -> JSON:
    """Return 7 significant digits, which is what single precision holds; JSON has no infinity."""
    return float(f"{logprob:.7g}") if math.isfinite(logprob) else str(logprob)


def _score(found: lines.Lines, number: int, line: JSON, *, under: str, arm: str) -> Score:
    try:
        fields: dict[str, Any] = dict(line)  # type: ignore[arg-type]
        positions = tuple(
            Position(token_id=token, logprob=float(logprob), atom_ids=tuple(ids), atom_logprobs=tuple(map(float, values)))
            for token, logprob, ids, values in fields["positions"]
        )
        return Score(request_id=fields["request_id"], pass_index=fields["pass_index"], arm=arm, under=under, positions=positions)
    except (KeyError, TypeError, ValueError) as error:
        expected = "request_id, pass_index, positions of [token, logprob, [atoms], [logprobs]]"
        raise found.error(RunError("this is no Score", found=f"{type(error).__name__}: {error}", expected=expected), number) from None
