"""Grammar masks on disk: a header line on the arm and the llguidance that computed them, then one line per answer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.errors import RunError
from pytest_specdec.files import codec, jsonl
from pytest_specdec.model.grammar_mask import AnswerMask, GrammarMasks

if TYPE_CHECKING:
    from pytest_specdec.files.run_directory import RunDirectory
    from pytest_specdec.model.workload import JSON

SCHEMA = "urn:pytest-specdec:grammar-mask:1"


def write(directory: RunDirectory, arm: str, workload: str, masks: GrammarMasks) -> None:
    """Write the masks of ``arm`` along its answers to ``workload``."""
    header = codec.encode(replace(masks, answers=()))
    assert isinstance(header, dict)
    del header["answers"]
    jsonl.write(directory.grammar_masks(arm, workload), SCHEMA, header, map(codec.encode, masks.answers))


def read(directory: RunDirectory, arm: str, workload: str) -> GrammarMasks | None:
    """Return the masks of ``arm`` along its answers to ``workload``.

    None without a file. Raises RunError with file and line.
    """
    lines = jsonl.read(directory.grammar_masks(arm, workload), SCHEMA)
    if lines is None:
        return None
    answers = tuple(_decode_answer_mask(lines, number, line) for number, line in enumerate(lines.rest, 2))
    try:
        return replace(codec.decode(GrammarMasks, {**lines.header, "answers": []}), answers=answers)
    except RunError as error:
        raise lines.error(error, 1) from None


def _decode_answer_mask(lines: jsonl.JsonLines, number: int, line: JSON) -> AnswerMask:
    try:
        return codec.decode(AnswerMask, line)
    except RunError as error:
        raise lines.error(error, number) from None
