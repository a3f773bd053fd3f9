from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_specdec.errors import RunError, ScoreError
from pytest_specdec.files import transcripts
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.model.transcript import Position, Score


def test_a_transcript_is_read_as_it_was_written_but_for_fractions_of_a_microsecond(directory, transcript):
    written = transcript("v")
    transcripts.write(directory, written)
    read = transcripts.read(directory, "v", "greedy-mixed")
    answer = written.answers[0]
    timing = replace(answer.timing, sent_s=0.123457, last_s=1.5)
    assert read == replace(written, answers=(replace(answer, timing=timing), *written.answers[1:]))


def test_stamps_that_an_earlier_release_did_not_keep_are_unknown(directory, transcript):
    transcripts.write(directory, transcript("v"))
    path = directory.transcript("v", "greedy-mixed")
    earlier = path.read_text(encoding="utf-8").replace(',"content_s":1.25,"last_s":1.5,"gaps_us":[250000,250000]', "")
    path.write_text(earlier, encoding="utf-8")
    timing = transcripts.read(directory, "v", "greedy-mixed").answers[0].timing
    assert (timing.first_s, timing.done_s) == (1.0, 2.0)
    assert (timing.content_s, timing.last_s, timing.gaps_us) == (None, None, ())


def test_an_absent_transcript_is_none(directory):
    assert transcripts.read(directory, "v", "w") is None


def test_an_arm_may_be_named_like_a_path(directory, transcript):
    transcripts.write(directory, transcript("org/model"))
    assert transcripts.read(directory, "org/model", "greedy-mixed").arm == "org/model"


def _torn(lines):
    return [*lines[:-1], lines[-1][:-5]]


def _schema(number):
    return lambda lines: [lines[0].replace("transcript:2", f"transcript:{number}"), *lines[1:]]


def _no_header(lines):
    return ["[]", *lines[1:]]


def _wrong_answer(lines):
    return [*lines[:2], lines[2].replace("500", '"oops"'), *lines[3:]]


def _wrong_header(lines):
    return [lines[0].replace('"boot":1', '"boot":"one"'), *lines[1:]]


DAMAGE = [
    (_torn, ":4", "the file is incomplete"),
    (lambda lines: lines[:-1], ":3", "the file is incomplete"),
    (lambda lines: [*lines, lines[-1]], ":5", "the file is incomplete"),
    (_schema(1), ":1", "an older release wrote this run"),
    (_schema(9), ":1", "a newer release wrote this run"),
    (_schema("x"), ":1", "the file is of another kind"),
    (_no_header, ":1", "the file is of another kind"),
    (_wrong_answer, ":3  status", "this is no Answer"),
    (_wrong_header, ":1  boot", "this is no Transcript"),
    (lambda _: [""], ":1", "the file is incomplete"),
]


@pytest.mark.parametrize("damage, where, what", DAMAGE)
def test_a_damaged_file_is_told_with_its_line(directory, damage, where, what, transcript):
    transcripts.write(directory, transcript("v"))
    path = directory.transcript("v", "greedy-mixed")
    path.write_text("\n".join(damage(path.read_text(encoding="utf-8").removesuffix("\n").split("\n"))), encoding="utf-8")
    with pytest.raises(RunError) as caught:
        transcripts.read(directory, "v", "greedy-mixed")
    assert (caught.value.what, caught.value.where) == (what, f"{path}{where}")


def test_the_answers_of_another_arm_are_refused(directory, transcript):
    transcripts.write(directory, transcript("v"))
    path = directory.transcript("w", "greedy-mixed")
    path.parent.mkdir(parents=True)
    directory.transcript("v", "greedy-mixed").rename(path)
    with pytest.raises(RunError, match="another arm") as caught:
        transcripts.read(directory, "w", "greedy-mixed")
    assert (caught.value.where, caught.value.found, caught.value.expected) == (f"{path}:1", "arm 'v'", "arm 'w'")


def test_the_answers_to_another_workload_are_refused(directory, transcript):
    transcripts.write(directory, transcript("v"))
    directory.transcript("v", "greedy-mixed").rename(directory.transcript("v", "other"))
    with pytest.raises(RunError, match="another arm or workload") as caught:
        transcripts.read(directory, "v", "other")
    assert (caught.value.found, caught.value.expected) == ("workload 'greedy-mixed'", "workload 'other'")


@pytest.mark.parametrize("changed", ["under", "arm", "workload"])
def test_scores_of_something_else_are_refused(directory, scores, changed):
    place = {"under": "baseline", "arm": "v", "workload": "w"}
    transcripts.write_scores(directory, *place.values(), scores("v"))
    other = {**place, changed: "other"}
    directory.scores(*other.values()).parent.mkdir(parents=True, exist_ok=True)
    directory.scores(*place.values()).rename(directory.scores(*other.values()))
    with pytest.raises(RunError, match="these are other scores") as caught:
        transcripts.read_scores(directory, *other.values())
    assert (caught.value.found, caught.value.expected) == (f"{changed} {place[changed]!r}", f"{changed} 'other'")


def test_a_row_that_stands_twice_is_refused_with_both_lines(directory, transcript, scores):
    answers = transcript("v").answers
    transcripts.write(directory, transcript("v", answers=(*answers, answers[1])))
    transcripts.write_scores(directory, "baseline", "v", "w", (*scores("v"), scores("v")[1]))
    with pytest.raises(RunError, match="twice") as caught:
        transcripts.read(directory, "v", "greedy-mixed")
    assert (caught.value.where.rpartition(":")[2], caught.value.found) == ("5", "request chat-01, pass 0, as in line 3")
    with pytest.raises(RunError, match="twice"):
        transcripts.read_scores(directory, "baseline", "v", "w")


def test_the_file_is_json_lines_that_any_program_reads(directory, transcript):
    transcripts.write(directory, transcript("v"))
    text = directory.transcript("v", "greedy-mixed").read_text(encoding="utf-8")

    def no_constants(word):
        raise AssertionError(word)

    parsed = [json.loads(line, parse_constant=no_constants) for line in text.removesuffix("\n").split("\n")]
    assert parsed[0]["count"] == len(parsed) - 1 == 3


def test_scores_are_read_as_they_were_written_to_seven_digits(directory, scores):
    transcripts.write_scores(directory, "org/d", "v", "w", scores("v", "org/d"))
    read = transcripts.read_scores(directory, "org/d", "v", "w")
    assert [score.key for score in read] == [("chat-00", 0), ("chat-01", 1)]
    assert (read[0].arm, read[0].under) == ("v", "org/d")
    assert [score.prompt_token_ids for score in read] == [(), (3, 4)]
    top = (-0.1234568, -2.5, float("-inf"))
    assert read[0].positions[0] == Position(token_id=7, logprob=-0.1234568, top_ids=(7, 9, 11), top_logprobs=top)


def test_absent_scores_are_none_at_all(directory):
    assert transcripts.read_scores(directory, "baseline", "v", "w") == ()


LOGPROBS = st.lists(st.floats(min_value=-1e38, max_value=0.0, allow_nan=False), min_size=1, max_size=8)
POSITIONS = st.builds(
    lambda logprobs, place, first: Position(
        token_id=first + place % len(logprobs),
        logprob=sorted(logprobs)[::-1][place % len(logprobs)],
        top_ids=tuple(range(first, first + len(logprobs))),
        top_logprobs=tuple(sorted(logprobs)[::-1]),
    ),
    logprobs=LOGPROBS,
    place=st.integers(0, 7),
    first=st.integers(0, 10**6),
)


@settings(deadline=None, derandomize=True)
@given(positions=st.lists(POSITIONS).map(tuple), name=st.text(max_size=5))
def test_rounding_twice_changes_nothing(tmp_path_factory, positions, name):
    directory = RunDirectory(tmp_path_factory.mktemp("run"))
    transcripts.write_scores(directory, "baseline", "v", "w", [Score(request_id=name, arm="v", under="baseline", positions=positions)])
    once = transcripts.read_scores(directory, "baseline", "v", "w")
    transcripts.write_scores(directory, "baseline", "v", "w", once)
    assert transcripts.read_scores(directory, "baseline", "v", "w") == once
    assert all(a.logprob == pytest.approx(b.logprob, rel=1e-6) for a, b in zip(once[0].positions, positions, strict=True))


@pytest.mark.parametrize(
    "position, found",
    [
        (Position(token_id=7, logprob=math.nan, top_ids=(7, 9), top_logprobs=(math.nan, -2.0)), "a log-probability of nan"),
        (Position(token_id=7, logprob=-0.5, top_ids=(7,), top_logprobs=(-0.5,)), "lists one token"),
        (Position(token_id=7, logprob=-0.5, top_ids=(), top_logprobs=()), "lists 0 tokens"),
    ],
)
def test_a_score_that_is_no_distribution_is_refused_with_its_token(directory, position, found):
    sound = Position(token_id=7, logprob=-0.5, top_ids=(7, 9), top_logprobs=(-0.5, -2.0))
    scores = [Score(request_id="a", arm="v", under="baseline", positions=(sound, position))]
    transcripts.write_scores(directory, "baseline", "v", "w", scores)
    with pytest.raises(ScoreError, match="no distributions") as caught:
        transcripts.read_scores(directory, "baseline", "v", "w", top_tokens=20)
    assert caught.value.where.endswith(":2  request a, pass 0, token 1 (id 7)")
    assert found in caught.value.found


@pytest.mark.parametrize("line", ["[]", '{"request_id":"a","pass_index":0}', '{"request_id":"a","pass_index":0,"positions":[[1,2]]}', "7"])
def test_a_line_that_is_no_score_is_told_with_its_number(directory, line, scores):
    transcripts.write_scores(directory, "baseline", "v", "w", scores("v"))
    path = directory.scores("baseline", "v", "w")
    header, first, _, end = path.read_text().split("\n")
    path.write_text(f"{header}\n{first}\n{line}\n{end}")
    with pytest.raises(RunError, match="this is no Score") as caught:
        transcripts.read_scores(directory, "baseline", "v", "w")
    assert caught.value.where == f"{path}:3"
