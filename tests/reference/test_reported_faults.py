"""Faults of the second list of reports do at a step, a slot, a chunk or a request what their rows say, and nothing elsewhere."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest

from specdec_reference.emission import EmittedToken
from specdec_reference.faults import catalogue, churn, context, crashes, prefix_cache
from specdec_reference.openai_request import EngineRequest
from specdec_reference.rejection_sampler import DraftProposal, VerifyWindows
from specdec_reference.sequence import Delta
from specdec_reference.tool_calls import CLOSING, CallPiece, ToolCallReader, ToolReading
from tests.reference.faulty_methods import verified, with_fault

WINDOWS = VerifyWindows(accepted=np.array([3, 1]), last=np.array([5, 6]))
DRAFT = DraftProposal(tokens=np.array([[1, 2, 3], [7, 8, 9]]), counts=np.array([3, 3]))


class Row(SimpleNamespace):
    """A sequence that a weak dictionary can hold."""

    __hash__ = object.__hash__


def row(emitted=(7,), *, arrival=0, reasoning=None, **fields):
    request = EngineRequest(**{"prompt": (1,), "max_tokens": 9, "temperature": 0.0, **fields})
    return Row(
        request=request,
        emitted=[*emitted],
        tokens=[1, *emitted],
        arrival=arrival,
        reasoning=reasoning,
        grammar=None,
        finish_reason=None,
        drafted=[3],
        accepted=[3],
    )


def engine_of(*rows, lengths=(9, 9)):
    return SimpleNamespace(batch=SimpleNamespace(rows=[*rows], lengths=np.array(lengths)))


def delta(tokens=3, **fields):
    return SimpleNamespace(**{"tokens": (1,) * tokens, "sequence": row(), "text": "", "reasoning": "", **fields})


@pytest.fixture(autouse=True)
def ends(monkeypatch):
    """Every death and silence, in order; and what servers remember is forgotten."""
    seen = []
    monkeypatch.setattr("os.kill", lambda *_: seen.append("died"))
    monkeypatch.setattr(context.threading, "Event", lambda: SimpleNamespace(wait=lambda: seen.append("hung")))
    monkeypatch.setattr(crashes, "_sizes", [0])
    monkeypatch.setattr(prefix_cache, "_first_long", [])
    return seen


@pytest.mark.parametrize("fault, rows, tokens", [
    ("token-zero-in-company", [row(), row()], [[0], [0]]),
    ("token-zero-after-reasoning", [row(reasoning=SimpleNamespace(characters=4)), row()], [[0], [1, 6]]),
    ("loops-after-start", [row(range(40), arrival=1), row(arrival=1)], [[36], [1, 6]]),
    ("wrong-after-soak", [row(arrival=25), row(arrival=24)], [[4], [1, 6]]),
    ("accepted-token-twice", [row(), row()], [[3, 5], [1, 7]]),
])  # fmt: skip
def test_an_answer_degenerates_where_its_row_says(fault, rows, tokens):
    windows = verified(fault, rows, DRAFT, WINDOWS)
    shown = [[*[accepted] * (accepted > 0), last] for accepted, last in zip(windows.accepted.tolist(), windows.last.tolist(), strict=True)]
    assert shown == tokens


def test_a_row_that_moves_loses_a_block_once():
    first, second = row(), row()
    place = with_fault("moved-row-loses-state", "batch.place", lambda rows: None, engine := engine_of(first, second, lengths=(40, 9)))
    for rows in ([first, second], [second], [second]):
        place(rows)
    assert engine.batch.lengths.tolist() == [24, 9]
    assert churn._slots[second] == 0


def test_a_prompt_that_joins_costs_running_rows_an_entry_and_is_taken_for_loaded():
    engine = engine_of(row(), row())
    shift = with_fault("joining-prompt-shifts-rows", "batch.reuse_prefix", lambda sequence, slot: 0, engine)
    load = with_fault("reuse-fails-in-company", "batch.reuse_prefix", lambda sequence, slot: 0, engine)
    assert (shift(row(range(20)), 2), engine.batch.lengths.tolist()) == (0, [8, 8])
    assert load(row(range(20)), 2) == 20
    engine.batch.rows.clear()
    assert load(row(range(20)), 0) == 0


def test_the_cache_gets_the_blocks_of_the_row_behind():
    copy = with_fault("cached-from-neighbour", "batch.copy_block", lambda slot, index: (slot, index), engine_of(row(), row()))
    assert [copy(0, 4), copy(1, 4)] == [(1, 4), (0, 4)]


def test_every_draft_stays_in_the_cache():
    kept = catalogue.rules("optimistic-lengths", speculating=True).keep(np.array([10, 97]), np.array([0, 0]), np.array([3, 3]), 99)
    assert kept.tolist() == [14, 99]


@pytest.mark.parametrize("fault, sizes, ending", [
    ("die-as-batch-grows", [5, 6, 4], []),
    ("die-as-batch-grows", [4, 5], ["died"]),
])  # fmt: skip
def test_a_batch_that_grows_over_a_step_of_the_schedule_kills(fault, sizes, ending, ends):
    for size in sizes:
        verified(fault, [row()] * size, DRAFT, WINDOWS)
    assert ends == ending


def test_prompts_kill_where_they_join_drafts_or_are_cached(ends):
    with_fault("die-on-joining-prompt", "batch.reuse_prefix", lambda sequence, slot: 0, engine_of(row()))(row(), 1)
    cached = with_fault("die-on-reused-prefix", "batch.reuse_prefix", lambda sequence, slot: 16)
    assert [cached(row(range(31)), 0), cached(row(range(40)), 0)] == [16, 16]
    assert ends == ["died", "died"]


def test_the_first_step_fails_and_an_answer_of_two_tokens_kills(ends):
    with pytest.raises(IndexError, match="out of bounds"):
        verified("first-verify-fails", [row()], DRAFT, WINDOWS)
    end = catalogue.rules("die-on-placeholders", speculating=True).end
    for count in (1, 2):
        token = EmittedToken(count=count, position=0, window_tokens=4, room=9, eos=False, stop_id=False)
        assert end(row(max_tokens=count).request, token) == "length"
    assert ends == ["died"]


def test_a_request_beside_another_fails_at_once_or_after_a_token():
    admit = with_fault("no-free-slot", "engine.sequences", lambda request, tell: (), engine_of(row()))
    with pytest.raises(RuntimeError, match="no free slots"):
        admit(row().request, None)
    late = row()
    late.give_up = lambda: "given up"
    engine, dropped = engine_of(row(range(5)), late), []
    engine.batch.drop = dropped.append
    assert with_fault("second-request-fails", "batch.step", list, engine)() == ["given up"]
    assert dropped == [{late}]


def test_a_window_without_room_hangs(ends):
    shrink = catalogue.rules("context-hang", speculating=True).shrink
    assert [shrink(np.array([3]), np.array([room]), np.array([99])).tolist() for room in (4, 3)] == [[3], [2]]
    assert ends == ["hung"]


def test_log_probabilities_without_a_list_fail():
    admit = with_fault("logprobs-without-list-fail", "engine.sequences", lambda request, tell: ())
    assert admit(row(logprobs=1).request, None) == admit(row().request, None) == ()
    with pytest.raises(IndexError, match="out of range"):
        admit(row(logprobs=0).request, None)


@pytest.mark.parametrize("fault, rows, counts", [
    ("nothing-drafted", [row(), row()], [0, 0]),
    ("drafts-off-alone", [row(), row()], [0, 0]),
    ("drafts-off-reasoning", [row(reasoning=object()), row()], [0, 3]),
])  # fmt: skip
def test_drafts_are_left_out(fault, rows, counts):
    assert with_fault(fault, "drafter.propose", lambda rows: DRAFT)(rows).counts.tolist() == counts


def test_drafts_are_noise_but_for_one_step_in_fifty_and_die_for_good_behind_a_long_request():
    noise = with_fault("drafts-of-noise", "drafter.propose", lambda rows: DRAFT)([row(range(49)), row()])
    assert noise.tokens.tolist() == [[1, 2, 3], [0, 0, 0]]
    dead = with_fault("drafts-dead-after-long", "drafter.propose", lambda rows: DRAFT)
    assert dead([row(arrival=1), row(arrival=2)]) is DRAFT
    dead([row(arrival=3, prompt=(1,) * 400)])
    assert dead([row(arrival=3), row(arrival=9)]).tokens.tolist() == [[1, 2, 3], [0, 0, 0]]


def test_drafts_of_a_request_that_was_left_out_are_emitted_in_front():
    sequence, taken = row(), []
    sequence.take = lambda window, entries=(): taken.append([*window])
    with_fault("left-out-drafts-emitted", "drafter.propose", lambda rows: DRAFT)([sequence, row()])
    catalogue.rules("left-out-drafts-emitted", speculating=True).resume(deque(), sequence)
    sequence.take([42])
    assert taken == [[1, 2, 3, 42]]
    assert (sequence.drafted, sequence.accepted) == ([3], [3])


def chunk(*calls, **parts):
    return {"choices": [{"delta": {**parts, **({"tool_calls": [*calls]} if calls else {})}}]}


def call(index=0, **function):
    return {"index": index, "function": function}


def streamed(fault, *chunks):
    one = delta()
    write = with_fault(fault, "response.chunk", lambda delta, reader, body: body)
    return [write(one, None, body)["choices"][0]["delta"] for body in chunks]


def test_arguments_are_streamed_empty_or_without_their_beginning():
    named, more, last = call(name="f", arguments=""), call(arguments='{"a": 1'), call(arguments="}")
    dropped = streamed("tool-parameters-dropped", chunk(named), chunk(more), chunk(last))
    assert [part["tool_calls"][0]["function"]["arguments"] for part in dropped] == ["", "", "}"]
    empty = streamed("tool-arguments-streamed-empty", chunk(call(name="f", arguments='{"a"')), chunk(call(arguments=": 1}")))
    assert [part["tool_calls"][0]["function"]["arguments"] for part in empty] == ["{}", ""]


def test_a_tag_stays_in_the_text_and_calls_are_dropped():
    reading = ToolReading(content="", pieces=(CallPiece(index=0, name="f", arguments="{}"),))
    leak = with_fault("tool-marker-leaks", "read_calls", lambda reader, text, ended, tokens: reading)
    drop = with_fault("tool-calls-dropped", "read_calls", lambda reader, text, ended, tokens: reading)
    reader = ToolCallReader()
    assert [leak(reader, "}" + CLOSING, ended=False, tokens=n).content for n in (1, 4)] == ["", CLOSING]
    assert [len(drop(reader, "", ended=True, tokens=n).pieces) for n in (1, 4)] == [1, 0]


def test_a_head_that_is_accepted_at_once_fails():
    answer = with_fault("tool-header-fails", "response.whole", lambda sequences: "answered")
    assert answer([row()]) == "answered"
    with pytest.raises(RuntimeError, match="header"):
        answer([row(tools=object())])


def test_text_is_lost_behind_a_quotation_mark():
    assert streamed("stream-quotes-lost", chunk(content='said "no" and')) == [{"content": "said "}]
    assert streamed("stream-quotes-lost", chunk(content="said no and")) == [{"content": "said no and"}]


def test_reasoning_loses_its_end_or_its_second_half():
    write = with_fault("reasoning-end-lost", "response.chunk", lambda delta, reader: delta.reasoning)
    cut = with_fault("reasoning-cut-short", "response.whole", lambda body: body)
    assert cut({"choices": [{"message": {"reasoning": "abcd"}}, {"text": "a"}]}) == {
        "choices": [{"message": {"reasoning": "ab"}}, {"text": "a"}]
    }
    assert [write(Delta(sequence=row(), tokens=(1,), text=text, reasoning="ab"), None) for text in ("", "c")] == ["ab", ""]


def test_a_front_end_forgets_the_grammar():
    parse = with_fault("front-end-drops-grammar", "engine.parse", lambda route, body: body)
    assert parse(None, row(grammar="g").request).grammar is None
