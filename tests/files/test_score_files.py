from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_specdec.errors import RunError
from pytest_specdec.files import transcripts as stored
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.model.transcript import Position, Score


def test_scores_are_read_as_they_were_written_to_seven_digits(directory, scores):
    stored.write_scores(directory, "org/d", "v", "w", scores("v", "org/d"))
    read = stored.read_scores(directory, "org/d", "v", "w")
    assert [score.key for score in read] == [("chat-00", 0), ("chat-01", 1)]
    assert (read[0].arm, read[0].under) == ("v", "org/d")
    assert read[0].positions[0] == Position(token_id=7, logprob=-0.1234568, top_ids=(7, 9), top_logprobs=(-0.1234568, float("-inf")))


def test_absent_scores_are_none_at_all(directory):
    assert stored.read_scores(directory, "baseline", "v", "w") == ()


LOGPROBS = st.floats(max_value=0.0, allow_nan=False)
POSITIONS = st.builds(
    Position,
    token_id=st.integers(0, 10**6),
    logprob=LOGPROBS,
    top_ids=st.lists(st.integers(0, 10**6)).map(tuple),
    top_logprobs=st.lists(LOGPROBS).map(tuple),
)


@settings(deadline=None, derandomize=True)
@given(positions=st.lists(POSITIONS).map(tuple), name=st.text(max_size=5))
def test_rounding_twice_changes_nothing(tmp_path_factory, positions, name):
    directory = RunDirectory(tmp_path_factory.mktemp("run"))
    stored.write_scores(directory, "baseline", "v", "w", [Score(request_id=name, arm="v", under="baseline", positions=positions)])
    once = stored.read_scores(directory, "baseline", "v", "w")
    stored.write_scores(directory, "baseline", "v", "w", once)
    assert stored.read_scores(directory, "baseline", "v", "w") == once
    assert all(a.logprob == pytest.approx(b.logprob, rel=1e-6) for a, b in zip(once[0].positions, positions, strict=True))


@pytest.mark.parametrize("line", ["[]", '{"request_id":"a","pass_index":0}', '{"request_id":"a","pass_index":0,"positions":[[1,2]]}', "7"])
def test_a_line_that_is_no_score_is_told_with_its_number(directory, line, scores):
    stored.write_scores(directory, "baseline", "v", "w", scores("v"))
    path = directory.scores("baseline", "v", "w")
    header, first, _, end = path.read_text().split("\n")
    path.write_text(f"{header}\n{first}\n{line}\n{end}")
    with pytest.raises(RunError, match="this is no Score") as caught:
        stored.read_scores(directory, "baseline", "v", "w")
    assert caught.value.where == f"{path}:3"
