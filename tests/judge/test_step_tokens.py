"""Tokens per step by counters, records and chunks, and what it means where they differ."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.judge.speed import step_tokens
from pytest_specdec.model.pair import Draft, DraftKind
from pytest_specdec.model.transcript import SpecCounters
from tests.judge.captured_values import answer, transcript
from tests.judge.streams import counted, stream

WINDOWS = (1, *(3, 2, 1) * 15)
"""91 tokens: two a step after the first."""
DRAFT = Draft(kind=DraftKind.MODEL, tokens=3)


def arm(*answers, counters=None):
    return transcript("v", answers, counters=counters)


def test_all_three_sources_count_the_same_steps():
    answers = [stream(WINDOWS, step_s=0.02, request_id=f"chat-{i}") for i in range(4)]
    found = step_tokens.step_tokens(arm(*answers, counters=counted(answers)))
    assert (found.counters, found.records, found.client) == (pytest.approx(2.0),) * 3
    assert (found.disagreements, found.collected) == ((), False)
    assert step_tokens.lines(arm(*answers, counters=counted(answers)), DRAFT) == (
        "tokens per step: 2.00 by the server's counters, 2.00 by its records, 2.00 by the client's chunks",
        "drafted per step with a draft: 3.00 of 3",
    )


def test_steps_without_a_draft_count_as_steps():
    """Prompt lookup: of 45 steps 30 have a draft, and all accepted tokens are theirs."""
    answers = [stream((1, *(3,) * 15, *(1,) * 30), step_s=0.02)]
    found = step_tokens.step_tokens(arm(*answers, counters=counted(answers, undrafted=30)))
    assert found.counters == found.records == pytest.approx(75 / 45)


def test_a_window_that_a_limit_cuts_parts_counters_from_answers_by_no_alarm():
    whole = stream((1, *(4,) * 20), step_s=0.02)
    cut = replace(whole, choices=(replace(whole.choice, token_ids=tuple(range(78))),), usage=replace(whole.usage, completion_tokens=78))
    found = step_tokens.step_tokens(arm(cut, counters=counted([whole])))
    assert found.records == found.counters == pytest.approx(77 / 20)
    assert found.disagreements == ()


@pytest.mark.parametrize("told", [True, False])
def test_a_stream_that_collects_steps_is_said_and_is_no_alarm(told):
    """With counters alone too; the client's figure is of chunks and not of steps."""
    plain = stream(WINDOWS, step_s=0.02)
    given = stream(WINDOWS, step_s=0.02, per_chunk=3, told=told)
    found = step_tokens.step_tokens(arm(given, counters=counted([plain])))
    assert found.client == pytest.approx(6.0)
    assert (found.collected, found.known) == (True, pytest.approx(2.0))
    (said,) = found.disagreements
    assert said.startswith("the stream puts several steps into one chunk")


def test_steps_that_come_in_parts_or_tokens_that_are_miscounted_are_said():
    given = stream(WINDOWS, step_s=0.02, usage_tokens=61)
    found = step_tokens.step_tokens(arm(given))
    assert (found.records, found.client) == (pytest.approx(2.0), pytest.approx(60 / 45))
    assert [line.split(":")[0] for line in found.disagreements] == ["the client saw fewer tokens per chunk than the server counts per step"]


def test_counters_that_a_usage_contradicts_stand_alone():
    given = stream(WINDOWS, step_s=0.02, usage_tokens=31, told=False)
    found = step_tokens.step_tokens(arm(given, counters=counted([stream(WINDOWS, step_s=0.02)])))
    assert (found.counters, found.client) == (pytest.approx(2.0), pytest.approx(30 / 45))


def test_counters_that_contradict_records_are_said():
    answers = [stream(WINDOWS, step_s=0.02, request_id=f"chat-{i}") for i in range(4)]
    found = step_tokens.step_tokens(arm(*answers, counters=replace(counted(answers), drafts=280)))
    assert found.counters < found.records
    assert found.disagreements[0].startswith("counters and records of one server contradict each other")


def test_without_counts_the_client_is_all_there_is():
    found = step_tokens.step_tokens(arm(stream(WINDOWS, step_s=0.02, told=False)))
    assert (found.by_server, found.known, found.disagreements) == (None, pytest.approx(2.0), ())
    assert step_tokens.step_tokens(arm(answer("chat-00", status=500))).known is None


@pytest.mark.parametrize(
    "kind, drafted, few",
    [(DraftKind.MODEL, 300, False), (DraftKind.MODEL, 288, False), (DraftKind.MODEL, 200, True), (DraftKind.NGRAM, 200, False)],
)
def test_fewer_drafted_tokens_than_the_variant_says_are_said_where_its_drafts_have_one_length(kind, drafted, few):
    lines = step_tokens.describe_drafts(SpecCounters(drafts=100, draft_tokens=drafted, accepted_tokens=50), Draft(kind=kind, tokens=3))
    assert lines[0] == f"drafted per step with a draft: {drafted / 100:.2f} of 3"
    assert any("fewer tokens are drafted" in line for line in lines) == few


def test_an_unknown_k_and_a_server_that_does_not_count_are_no_finding():
    assert step_tokens.describe_drafts(None, DRAFT) == ()
    assert step_tokens.describe_drafts(SpecCounters(drafts=2, draft_tokens=6), replace(DRAFT, tokens=0)) == (
        "drafted per step with a draft: 3.00",
    )
