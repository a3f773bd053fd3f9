"""Faults of a batch touch the rows that their row names, and no others."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from specdec_reference.faults import catalogue
from specdec_reference.openai_request import EngineRequest
from specdec_reference.rejection_sampler import DraftProposal, VerifyWindows
from specdec_reference.sampler import PenaltyState
from tests.reference.asgi_client import NGRAM, PROBABILISTIC, served
from tests.reference.faulty_methods import verified, with_fault

VOCABULARY = 6


def planted(fault):
    return catalogue.rules(fault, speculating=True)


def request(**fields):
    return EngineRequest(**{"prompt": (1,), "max_tokens": 9, "temperature": 0.0, **fields})


def row(*, grammar=None, emitted=(2,), seed=0, **fields):
    asked = request(**fields)
    penalties = PenaltyState(asked, VOCABULARY) if asked.penalised else None
    random = np.random.default_rng(seed)
    return SimpleNamespace(request=asked, grammar=grammar, penalties=penalties, emitted=list(emitted), random=random)


def rows(count, **fields):
    return [row(seed=number, **fields) for number in range(count)]


def settled(fault, given, accepted=None):
    count = len(given)
    draft = DraftProposal(tokens=np.zeros((count, 3), np.intp), counts=np.full(count, 3))
    windows = VerifyWindows(accepted=np.arange(count) % 4 if accepted is None else np.array(accepted), last=np.arange(10, 10 + count))
    after = verified(fault, given, draft, windows)
    return after.accepted.tolist(), after.last.tolist()


def test_rows_change_places_beside_a_sampled_one_only():
    assert settled("rows-swapped", rows(3))[1] == [10, 11, 12]
    assert settled("rows-swapped", [*rows(2), row(temperature=1.0)])[1] == [12, 10, 11]


@pytest.mark.parametrize("count, last", [(1, [10]), (2, [10, 0]), (3, [10, 11, 0]), (4, [10, 11, 12, 13])])
def test_padding_reaches_the_last_row_of_an_odd_batch(count, last):
    assert settled("padding-leaks", rows(count))[1] == last


@pytest.mark.parametrize("count, last", [(2, [10, 11]), (3, [12, 10, 11]), (4, [10, 11, 12, 13])])
def test_three_is_the_wrong_size(count, last):
    assert settled("wrong-at-three", rows(count))[1] == last


@pytest.mark.parametrize("count, wrong", [(11, False), (12, True), (15, True), (16, False)])
def test_twelve_to_fifteen_are_the_wrong_sizes(count, wrong):
    assert (settled("wrong-from-twelve-to-fifteen", rows(count))[1] != list(range(10, 10 + count))) is wrong


def test_acceptance_of_one_row_is_that_of_all():
    assert settled("most-accepted", rows(3), [0, 2, 1])[0] == [2, 2, 2]
    assert settled("fewest-accepted", rows(3), [3, 2, 1])[0] == [1, 1, 1]
    assert settled("most-accepted", rows(1), [1])[0] == [1]


@pytest.mark.parametrize("fault", ["rows-swapped", "padding-leaks", "wrong-at-three", "most-accepted", "fewest-accepted"])
def test_a_batch_with_a_grammar_is_spared(fault):
    given = [row(grammar=object()), row(temperature=1.0), row()]
    assert settled(fault, given, [0, 2, 1]) == ([0, 2, 1], [10, 11, 12])


def test_one_temperature_is_that_of_all():
    given = [row(temperature=0.5), row(), row(temperature=2.0)]
    assert planted("first-temperature").sampling(given).temperature.tolist() == [0.5, 0.5, 0.5]
    assert planted("greedy-sampled").sampling(given).temperature.tolist() == [2.0, 2.0, 2.0]


def test_penalties_of_one_row_fall_on_all_by_their_own_tokens():
    given = [row(emitted=(3, 3)), row(presence_penalty=1.0, frequency_penalty=0.5), row(emitted=(4,))]
    added = [
        penalties.shape_logits(np.zeros((1, VOCABULARY), np.float32), ()) for _, penalties in planted("penalties-for-all").states(given)
    ]
    assert added[0][0].tolist() == [0, 0, 0, -2.0, 0, 0]
    assert added[2][0].tolist() == [0, 0, 0, 0, -1.5, 0]
    assert planted("penalties-for-all").states(rows(2)) == [(None, None)] * 2


def test_a_neighbours_grammar_masks_and_stays_where_it_is():
    own = SimpleNamespace(mask=lambda: "mask")
    (mine, _), (theirs, _) = planted("grammar-of-neighbour").states([row(grammar=own), row()])
    assert mine is own
    theirs.advance(5)
    theirs.retreat(1)
    assert (theirs.mask(), theirs.allowed_prefix((1, 2))) == ("mask", (1, 2))
    assert planted("grammar-of-neighbour").states(rows(1)) == [(None, None)]


def lines(fault, *, masked=False):
    """Which line of two rows of two drafts each becomes which."""
    draft = DraftProposal(tokens=np.zeros((2, 2), np.intp), counts=np.array([2, 2]))
    numbered = np.arange(6, dtype=np.float32)[:, None]
    logits = np.full((6, 1), -np.inf if masked else 0.0, np.float32)
    distribute = with_fault(fault, "distribute", lambda logits, sampling, draft: numbered)
    return distribute(logits, None, draft)[:, 0].tolist()


def test_distributions_of_a_neighbour_are_taken_whole_or_at_the_bonus():
    assert lines("neighbours-target") == [0, 1, 2, 0, 1, 2]
    assert lines("bonus-of-neighbour") == [0, 1, 5, 3, 4, 2]
    assert lines("neighbours-target", masked=True) == lines("bonus-of-neighbour", masked=True) == [0, 1, 2, 3, 4, 5]


def test_a_client_that_leaves_costs_the_others_an_entry():
    running, waiting = object(), object()
    batch = SimpleNamespace(rows=[running, object()], lengths=np.array([5, 6, 7]))
    drop = with_fault("wrong-after-abort", "batch.drop", lambda sequences: None, SimpleNamespace(batch=batch))
    drop({waiting})
    assert batch.lengths.tolist() == [5, 6, 7]
    drop({running, waiting})
    assert batch.lengths.tolist() == [4, 5, 7]


def test_the_next_request_in_the_row_of_an_aborted_one_takes_its_temperature():
    hot, later, other = (SimpleNamespace(request=EngineRequest(prompt=(1,), max_tokens=9, temperature=t)) for t in (1.5, 0.0, 0.0))
    engine = SimpleNamespace(batch=SimpleNamespace(rows=[other, hot]))
    with_fault("aborted-temperature-stays", "batch.drop", lambda sequences: None, engine)([hot])
    reuse = with_fault("aborted-temperature-stays", "batch.reuse_prefix", lambda sequence, slot: 16)
    assert [reuse(sequence, slot) for sequence, slot in ((other, 0), (later, 1), (other, 1))] == [16, 16, 16]
    assert (later.request.temperature, other.request.temperature) == (1.5, 0.0)


def test_large_batches_accept_nothing():
    draw, right = planted("dead-drafts-under-load").draw, planted("").draw
    assert (draw(rows(7), 7) == right(rows(7), 7)).all()
    drawn = draw(rows(8), 7)
    assert np.isinf(drawn[:, 3:6]).all()
    assert (np.delete(drawn, [3, 4, 5], axis=1) == np.delete(right(rows(8), 7), [3, 4, 5], axis=1)).all()


def test_one_number_accepts_and_draws():
    own = planted("").draw(rows(1), 7)[0].tolist()
    assert planted("one-number-a-window").draw(rows(1), 7)[0].tolist() == [*own[:3], *[own[-1]] * 4]


def test_rows_share_the_first_rows_numbers_or_turn_their_own():
    own = np.array([each.random.random(4) for each in rows(3)])
    shared = planted("stream-of-first-row").draw(rows(3), 4)
    turned = planted("seed-by-row").draw(rows(3), 4)
    assert (shared == own[0]).all()
    assert (turned[0] == own[0]).all()
    assert ((turned >= 0) & (turned < 1)).all()
    assert not (turned[1:] == own[1:]).any()


@pytest.mark.parametrize(
    "fault, alike",
    [
        ("", {((1, 7, 0), (1, 8, 0))}),
        ("seed-ignored", {((1, 7, 0), (2, 7, 0))}),
        ("constant-stream", {((1, 7, 0), (1, 8, 0)), ((1, 7, 0), (2, 7, 0)), ((None, 7, 0), (None, 8, 0))}),
        ("unseeded-alike", {((1, 7, 0), (1, 8, 0)), ((None, 7, 0), (None, 8, 0))}),
        ("choices-alike", {((1, 7, 0), (1, 8, 0)), ((1, 7, 0), (1, 7, 1))}),
    ],
)
def test_streams_are_alike_as_the_row_says(fault, alike):
    pairs = {((1, 7, 0), (1, 8, 0)), ((1, 7, 0), (2, 7, 0)), ((None, 7, 0), (None, 8, 0)), ((1, 7, 0), (1, 7, 1))}
    make = planted(fault).randomness
    assert {(one, other) for one, other in pairs if make(*one).random() == make(*other).random()} == alike


def test_a_seed_is_honoured_at_choices_and_in_company():
    """Of the right rules: what depends on the batch would show."""
    asked = {"prompt": "import os\n", "temperature": 1.0, "max_tokens": 24, "seed": 5, "n": 2, "return_token_ids": True}
    others = [{"prompt": "def f(x):\n", "temperature": 1.0, "max_tokens": 24, "seed": seed} for seed in range(5)]
    for speculation in (PROBABILISTIC, NGRAM):
        with served(speculation) as client:
            alone, (*_, beside) = client.complete(asked), client.complete(*others, asked)
        ids = [choice["token_ids"] for choice in alone["choices"]]
        assert ids == [choice["token_ids"] for choice in beside["choices"]]
        assert ids[0] != ids[1]
