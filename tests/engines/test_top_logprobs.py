"""From what a server lists to the top tokens of a position."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_specdec.engines.top_logprobs import ListedToken, position
from pytest_specdec.errors import RequestError


def ids(*pairs):
    return [ListedToken(token_id=token, logprob=math.log(p)) for token, p in pairs]


def texts(*pairs):
    return [ListedToken(text=text, logprob=math.log(p)) for text, p in pairs]


def masses(found):
    return {token: round(math.exp(logprob), 12) for token, logprob in zip(found.top_ids, found.top_logprobs, strict=True)}


def test_the_most_probable_tokens_are_the_top_tokens_by_falling_probability():
    found = position(7, ids((3, 0.2), (7, 0.5), (9, 0.1)), top_tokens=2)
    assert (found.token_id, found.top_ids) == (7, (7, 3))
    assert found.logprob == found.top_logprobs[0] == math.log(0.5)


def test_of_an_unlisted_token_nothing_is_known():
    assert math.isnan(position(8, ids((3, 0.2), (7, 0.5)), top_tokens=2).logprob)


def test_the_drawn_token_that_a_server_adds_is_cut_off_even_if_it_is_the_emitted_one():
    found = position(8, ids((8, 0.01), (3, 0.2), (7, 0.5)), top_tokens=2)
    assert found.top_ids == (7, 3)
    assert math.isnan(found.logprob)


def test_two_tokens_of_one_text_are_one_top_token_with_the_mass_of_both():
    found = position(8, texts((" a", 0.3), ("b", 0.4), (" a", 0.2), ("c", 0.05)), top_tokens=4, text="x")
    assert list(masses(found).values()) == [0.5, 0.4, 0.05]
    assert max(found.top_ids) < -1
    assert len(set(found.top_ids)) == 3
    assert math.isnan(found.logprob)


@pytest.mark.parametrize("token_id", [8, 19])
def test_an_emitted_token_of_an_ambiguous_text_is_that_top_token_whichever_token_it_is(token_id):
    found = position(token_id, texts((" a", 0.3), ("b", 0.4), (" a", 0.2)), top_tokens=3, text=" a")
    assert found.top_ids[0] == token_id
    assert masses(found)[token_id] == 0.5
    assert found.logprob == found.top_logprobs[0]


def test_what_was_drawn_is_cut_off_before_texts_are_put_together():
    found = position(8, texts(("a", 0.3), ("b", 0.2), ("a", 0.1)), top_tokens=2, text="a")
    assert masses(found)[8] == 0.3


def test_texts_need_the_emitted_tokens_text():
    with pytest.raises(RequestError, match="by text alone") as caught:
        position(8, texts(("a", 0.3)), top_tokens=1)
    assert caught.value.found == "'a'"


@pytest.mark.parametrize("listed, found", [
    ([], "an empty list"),
    ([ListedToken(token_id=3, logprob=-math.inf)], "no finite number among 1 listed"),
])  # fmt: skip
def test_nothing_listed_is_no_distribution(listed, found):
    with pytest.raises(RequestError, match="listed no log-probabilities") as caught:
        position(8, listed, top_tokens=5)
    assert caught.value.found == found


def test_a_token_beyond_the_top_tokens_needs_no_id():
    listed = [*ids((3, 0.5)), *texts(("a", 0.1))]
    assert position(8, listed, top_tokens=1).top_ids == (3,)
    with pytest.raises(RequestError, match="by text alone"):
        position(8, listed, top_tokens=2)


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.floats(-30, 0)), min_size=1), st.integers(1, 20), st.sampled_from("abcdef"))
def test_putting_together_keeps_the_mass_and_never_splits_it(pairs, top_tokens, text):
    listed = [ListedToken(text=name, logprob=logprob) for name, logprob in pairs]
    kept = sorted((logprob for _, logprob in pairs), reverse=True)[:top_tokens]
    found = position(5, listed, top_tokens, text)
    assert len(set(found.top_ids)) == len(found.top_ids) <= 5
    assert list(found.top_logprobs) == sorted(found.top_logprobs, reverse=True)
    total = sum(map(math.exp, kept))
    assert total <= 1 or max(found.top_logprobs) <= 0
    if total <= 1:
        assert math.isclose(sum(map(math.exp, found.top_logprobs)), total, rel_tol=1e-9)
    assert (5 in found.top_ids) != math.isnan(found.logprob)
