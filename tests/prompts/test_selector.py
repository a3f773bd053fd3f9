"""Prompts chosen for information: pure, repeatable, spread over categories, and deaf to whatever is judged."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_specdec.model.selection import Candidate, quota
from pytest_specdec.prompts import ALL, selector


def candidate(id_, category, per_token, tokens=10):
    return Candidate(id=id_, category=category, tokens=tokens, information=per_token * tokens)


def of(**categories):
    """Candidates by category from the information per token of each."""
    return [candidate(f"{name}-{i}", name, value) for name, values in categories.items() for i, value in enumerate(values)]


@pytest.mark.parametrize(
    "candidates, count, chosen",
    [
        pytest.param(of(a=[0.1, 0.9, 0.5]), 2, ("a-1", "a-2"), id="the most informative, best first"),
        pytest.param(of(a=[0.5, 0.5, 0.5]), 2, ("a-0", "a-1"), id="ties in their order"),
        pytest.param(of(a=[0.9, 0.8, 0.7], b=[0.1, 0.2, 0.05]), 3, ("a-0", "a-1", "b-1"), id="every category has its best one"),
        pytest.param(
            of(a=[0.9, 0.8, 0.7, 0.6], b=[0.3, 0.2], c=[0.1]),
            6,
            ("a-0", "a-1", "a-2", "b-0", "b-1", "c-0"),
            id="none beyond its share and a half",
        ),
        pytest.param(of(a=[0.9, 0.8, 0.7, 0.6], b=[0.1]), 4, ("a-0", "a-1", "a-2", "b-0"), id="a small category costs nothing"),
        pytest.param(of(a=[0.9, 0.8, 0.7, 0.6, 0.5], b=[0.1]), 5, ("a-0", "a-1", "a-2", "a-3", "b-0"), id="the quota is filled"),
        pytest.param(of(a=[0.1], b=[0.3], c=[0.2]), 2, ("b-0", "c-0"), id="fewer than categories"),
        pytest.param([], 3, (), id="nothing to choose from"),
    ],
)
def test_the_most_informative_are_chosen_with_a_spread(candidates, count, chosen):
    assert selector.ranked(candidates, count) == chosen


def test_information_counts_per_token_and_not_per_answer():
    short, long = candidate("short", "a", 0.9, tokens=2), candidate("long", "a", 0.3, tokens=16)
    assert long.information > short.information
    assert selector.ranked([long, short], 1) == ("short",)
    assert candidate("mute", "a", 1.0, tokens=0).per_token == 0.0


LISTS = st.lists(st.tuples(st.sampled_from("abcd"), st.floats(0, 3)), max_size=30)


@given(drawn=LISTS, count=st.integers(0, 20))
def test_whatever_the_survey_says_so_many_different_ones_of_the_pool_are_chosen_and_no_category_is_lost(drawn, count):
    candidates = [candidate(str(i), category, value) for i, (category, value) in enumerate(drawn)]
    chosen = selector.ranked(candidates, count)
    assert len(set(chosen)) == len(chosen) == min(count, len(candidates))
    category = {one.id: one.category for one in candidates}
    assert len({category[id_] for id_ in chosen}) == min(count, len(set(category.values())))
    assert chosen == selector.ranked(candidates, count)


@given(values=st.lists(st.floats(0, 3), min_size=40, max_size=40))
def test_of_even_categories_none_has_more_than_half_again_its_share(values):
    candidates = [candidate(str(i), "abcd"[i % 4], value + 2.0 * (i % 4 == 0)) for i, value in enumerate(values)]
    held = Counter("abcd"[int(id_) % 4] for id_ in selector.ranked(candidates, 20))
    assert max(held.values()) <= 8
    assert min(held.values()) >= 1


@pytest.fixture
def pool():
    return ALL.sampled(prompts=24, requests=72, survey=True)


def surveyed(pool, per_token, tokens=16):
    return [candidate(prompt.id, prompt.category, per_token(prompt), tokens) for prompt in pool.prompts]


def test_the_chosen_half_is_sent_with_ids_seeds_and_order_as_they_were(pool):
    selection = selector.selected(pool, surveyed(pool, lambda prompt: float(prompt.id.endswith("02"))))
    sent = selection.applied(pool)
    assert selection.informative
    assert {request.id.partition("#")[0] for request in sent.requests} == set(selection.chosen)
    assert all(id_.endswith("02") for id_ in selection.chosen)
    assert len(selection.chosen) == quota(pool) == 12
    assert sent.requests == tuple(request for request in pool.requests if request.id.partition("#")[0] in selection.chosen)
    assert len(sent.requests) == 36
    assert sent.digest not in {pool.digest, selector.selected(pool, []).applied(pool).digest}


def test_without_scores_the_first_prompts_are_sent_and_it_says_why(pool):
    few = [*surveyed(pool, lambda _: 1.0)[:11], *surveyed(pool, lambda _: 1.0, tokens=0)[11:]]
    selection = selector.selected(pool, few, "13 of 24 answers are not scored: 400: no")
    assert not selection.informative
    assert selection.chosen == tuple(prompt.id for prompt in pool.prompts[:12])
    assert [request.id for request in selection.applied(pool).requests[:12]] == [request.id for request in pool.requests[:12]]
    why = "11 of 24 have scored answers: 13 of 24 answers are not scored: 400: no"
    assert str(selection) == f"all-sampled: the first 12 prompts are sent, none chosen for information: {why}"


def test_it_says_what_was_chosen_out_of_what(pool):
    selection = selector.selected(pool, surveyed(pool, lambda prompt: 2.0 if prompt.id.endswith("01") else 1.0))
    said = "all-sampled: 12 of 24 prompts chosen for information by a survey of 384 tokens, 1.50 informative ones per token"
    assert str(selection) == said
