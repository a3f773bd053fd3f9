from __future__ import annotations

import pytest

from pytest_specdec.errors import RunError
from pytest_specdec.files import grammar_masks
from pytest_specdec.model.grammar_mask import AnswerMask, GrammarMasks

MASKS = GrammarMasks(
    release="1.9.1",
    server_release="1.7.6",
    answers=(
        AnswerMask(request_id="a", grammar="g", start=2, allowed=(1, 40), best=(0, -1), forbidden=3),
        AnswerMask(request_id="b", pass_index=1, grammar="g", unread="no"),
    ),
)


def test_masks_are_read_as_they_were_written(directory):
    assert grammar_masks.read(directory, "v", "w") is None
    grammar_masks.write(directory, "v", "w", MASKS)
    assert grammar_masks.read(directory, "v", "w") == MASKS


@pytest.mark.parametrize("line, wrong", [(1, '"release":7'), (2, '"start":"x"')])
def test_a_line_that_is_no_mask_is_named(directory, line, wrong):
    grammar_masks.write(directory, "v", "w", MASKS)
    path = directory.grammar_masks("v", "w")
    lines = path.read_text().split("\n")
    name = wrong.split(":")[0]
    before, _, after = lines[line - 1].partition(f"{name}:")
    lines[line - 1] = f"{before}{wrong},{after.split(',', 1)[1]}"
    path.write_text("\n".join(lines))
    with pytest.raises(RunError, match=f"w.jsonl:{line}"):
        grammar_masks.read(directory, "v", "w")


@pytest.mark.parametrize("mine, theirs, exact", [("1", "1", True), ("1", "2", False), ("1", "", False), ("", "", False)])
def test_masks_are_exact_where_both_releases_are_known_and_the_same(mine, theirs, exact):
    assert GrammarMasks(release=mine, server_release=theirs).exact is exact
