"""Each fault of stops, ends and limits does what its row says, to the rule that it replaces."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from specdec_reference.emission import EmittedToken, StopMatch, WrittenText
from specdec_reference.faults.catalogue import rules
from specdec_reference.openai_request import EngineRequest
from specdec_reference.rejection_sampler import VerifyWindows
from specdec_reference.sequence import RunningSequence
from specdec_reference.tokenizer import Text
from tests.reference.faulty_methods import with_fault

REQUEST = EngineRequest(prompt=(1,), max_tokens=8, stop=("cd",), min_tokens=3)
INSIDE = EmittedToken(count=4, position=1, window_tokens=4, room=100, eos=False, stop_id=False)
LAST = replace(INSIDE, count=6, position=3)
TEXT = WrittenText(text="abcd", before_token=3, before_window=2)
FOUND = StopMatch(stop="cd", at=2)


def ruled(fault):
    return rules(fault, speculating=True)


def test_the_right_rules_know_no_window():
    right = ruled("")
    assert right.match(REQUEST, TEXT, INSIDE) == right.match(REQUEST, TEXT, LAST) == FOUND
    assert (right.cut(REQUEST, FOUND), right.cut(replace(REQUEST, include_stop=True), FOUND)) == (2, 4)
    assert right.end(replace(REQUEST, max_tokens=4), INSIDE) == "length"
    assert right.end(REQUEST, replace(INSIDE, room=0)) == "length"
    assert right.end(replace(REQUEST, max_tokens=4), replace(INSIDE, eos=True)) == "stop"
    assert right.end(replace(REQUEST, ignore_eos=True), replace(INSIDE, eos=True)) is None


@pytest.mark.parametrize(
    "fault, text, token, found",
    [
        ("stop-missed-mid-window", TEXT, INSIDE, None),
        ("stop-missed-mid-window", TEXT, LAST, FOUND),
        ("stop-split-missed", TEXT, INSIDE, FOUND),
        ("stop-split-missed", replace(TEXT, before_window=3), INSIDE, None),
        ("limit-before-stop", TEXT, INSIDE, FOUND),
        ("limit-before-stop", TEXT, replace(INSIDE, count=6), None),
        ("text-behind-stop", TEXT, INSIDE, None),
        ("text-behind-stop", replace(TEXT, text="abcdefg", before_token=6), LAST, StopMatch(stop="cd", at=7)),
        ("stop-said-length", TEXT, INSIDE, replace(FOUND, finish_reason="length")),
    ],
)
def test_a_stop_string_is_looked_for_elsewhere(fault, text, token, found):
    assert ruled(fault).match(REQUEST, text, token) == found


@pytest.mark.parametrize("fault, length, kept", [("stop-not-cut", 4, 4), ("stop-cut-early", 1, 3), ("include-stop-ignored", 2, 2)])
def test_a_text_is_cut_elsewhere(fault, length, kept):
    assert ruled(fault).cut(REQUEST, FOUND) == length
    assert ruled(fault).cut(replace(REQUEST, include_stop=True), FOUND) == kept


@pytest.mark.parametrize(
    "fault, token, reason",
    [
        ("stop-ids-at-last-only", replace(INSIDE, stop_id=True), None),
        ("stop-ids-at-last-only", replace(LAST, stop_id=True), "stop"),
        ("stop-ids-ignored", replace(LAST, stop_id=True), None),
        ("end-missed-mid-window", replace(INSIDE, eos=True), None),
        ("end-missed-mid-window", replace(LAST, eos=True), "stop"),
        ("limit-undershot", INSIDE, None),
        ("limit-undershot", LAST, "length"),
        ("context-ends-early", replace(INSIDE, room=3), "length"),
        ("context-ends-early", replace(INSIDE, room=4), None),
    ],
)
def test_an_answer_ends_elsewhere(fault, token, reason):
    assert ruled(fault).end(REQUEST, token) == reason


def test_ignore_eos_is_dropped_inside_a_window_only():
    ignoring, faulty = replace(REQUEST, ignore_eos=True), ruled("ignore-eos-dropped")
    assert faulty.end(ignoring, replace(INSIDE, eos=True)) == "stop"
    assert faulty.end(ignoring, replace(LAST, eos=True)) is None


@pytest.mark.parametrize("fault, kept", [("", [1, 2]), ("limit-overrun", [1, 2, 3, 4])])
@pytest.mark.parametrize("stop_ids", [(), (2,)])
def test_the_rest_of_a_window_is_kept_behind_a_limit_only(fault, kept, stop_ids):
    request = EngineRequest(prompt=(9,), max_tokens=2, stop_ids=stop_ids, include_stop=True)
    text = Text([b"a", b"b", b"c", b"d", b"e"], ())
    sequence = RunningSequence(request, index=0, random=np.random.default_rng(0), text=text, eos_ids=(), context=99)
    take = with_fault(fault, "sequence.take", sequence.take) if fault else sequence.take
    delta = take([1, 2, 3, 4], ["one", "two", "three", "four"])
    kept = [1, 2] if stop_ids else kept
    assert [*delta.tokens] == sequence.emitted == kept
    assert delta.text == sequence.text.whole == "bcde"[: len(kept)]
    assert [*delta.entries] == sequence.entries == ["one", "two", "three", "four"][: len(kept)]


def test_usage_counts_what_the_end_of_an_answer_discarded():
    sequence = SimpleNamespace(request=REQUEST, accepted=[3, 4], completion_tokens=7)
    assert [ruled(fault).usage([sequence]).completion for fault in ("", "usage-counts-discarded")] == [7, 10]


def test_min_tokens_is_counted_or_kept_otherwise():
    assert [ruled(fault).held_back(REQUEST, 3, 1) for fault in ("", "min-tokens-in-steps")] == [0, 2]
    logits = np.zeros((3, 5), np.float32)
    ruled("min-tokens-at-bonus").forbid(logits, (2,), 2)
    assert not np.isinf(logits).any()
    ruled("min-tokens-at-bonus").forbid(logits, (2,), 3)
    assert np.argwhere(np.isinf(logits)).tolist() == [[2, 2]]


def test_the_end_of_the_context_comes_elsewhere():
    lengths, accepted, drafted = np.array([90, 10]), np.array([3, 3]), np.array([3, 3])
    assert ruled("context-clamped").keep(lengths, accepted, drafted, 100).tolist() == [92, 14]
    assert [ruled(fault).fits(90, 10, 100) for fault in ("", "context-refused", "context-admitted")] == [True, False, True]
    assert [ruled(fault).fits(90, 11, 100) for fault in ("", "context-refused", "context-admitted")] == [False, False, True]


def test_only_the_very_last_token_of_the_context_is_another():
    rows = [SimpleNamespace(tokens=[0] * tokens) for tokens in (97, 97, 99)]
    engine = SimpleNamespace(batch=SimpleNamespace(rows=rows), settings=SimpleNamespace(max_model_len=100))
    windows = VerifyWindows(accepted=np.array([2, 1, 0]), last=np.array([5, 6, 7]))
    hand_out = with_fault("context-last-token", "batch.hand_out", lambda draft, windows, logits: windows.last.tolist(), engine)
    assert hand_out(None, windows, np.zeros((1, 8))) == [6, 6, 0]


@pytest.mark.parametrize("fault, room, own", [("context-deadly", 3, 50), ("draft-context-deadly", 50, -1)])
def test_a_server_dies_where_no_window_fits(fault, room, own):
    drafted = np.array([3])
    assert ruled(fault).shrink(drafted, np.array([10]), np.array([2])).tolist() == [2]
    with pytest.raises(RuntimeError):
        ruled(fault).shrink(drafted, np.array([room]), np.array([own]))
