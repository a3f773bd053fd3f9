"""Company: what wrong waves have in common, answers that are another's, and foreign text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.judge.concurrency_waves import (
    UNDER_CONCURRENCY,
    WRONG_ALONE,
    WaveTokens,
    WrongToken,
    blame,
    concurrent_tokens,
    find_foreign_text,
    swapped_answers,
)
from pytest_specdec.prompts.company import marker
from tests.judge.captured_values import a_workload, answer, captured, requests, score

WRONG = (WrongToken(request_id="r", index=0, gap=2.0),)


def wave(size, *traits, wrong=(), tokens=20):
    return WaveTokens(number=1, size=size, traits=frozenset(traits), tokens=tokens, wrong=wrong)


@pytest.mark.parametrize(
    "waves, name",
    [
        ((wave(1, wrong=WRONG), wave(4)), WRONG_ALONE),
        ((wave(1), wave(3), wave(4, wrong=WRONG)), UNDER_CONCURRENCY),
        ((wave(1), wave(3), wave(4, "sampling", wrong=WRONG)), "answers go wrong beside requests that sample"),
        ((wave(1), wave(3), wave(4, "sampling", "grammar", wrong=WRONG)), UNDER_CONCURRENCY),
        (
            (wave(3, "sampling"), wave(5), wave(4, "sampling", "grammar", wrong=WRONG)),
            "answers go wrong beside requests with a grammar",
        ),
        ((wave(3, "sampling"), wave(2), wave(4, "sampling", wrong=WRONG)), "answers go wrong beside requests that sample"),
        ((wave(3, "penalties"), wave(4, "penalties", wrong=WRONG)), UNDER_CONCURRENCY),
        ((wave(3, "penalties"), wave(4, "penalties", wrong=WRONG), wave(2, tokens=0)), UNDER_CONCURRENCY),
        ((wave(3), wave(4, "leaving", wrong=WRONG)), "answers go wrong when a neighbour's client leaves"),
        ((wave(3), wave(4, "left", wrong=WRONG)), "answers go wrong when a neighbour's client leaves"),
        ((wave(3), wave(4, "left", wrong=WRONG), wave(4, "leaving", wrong=WRONG)), UNDER_CONCURRENCY),
    ],
)
def test_the_one_trait_that_only_wrong_waves_have_is_blamed(waves, name):
    assert blame(waves) == name


def of(texts, theirs, control=None, *, waves=(4,)):
    """What a judge sees of four requests in flight together, answered as text."""
    asked = a_workload(requests(len(texts)), waves=waves)
    arms = [
        None if each is None else [answer(request.id, range(9), text=text) for request, text in zip(asked.requests, each, strict=True)]
        for each in (texts, theirs, control)
    ]
    return captured("concurrency", *arms, workload=asked)


OWN = [f"{letter} is what I was asked about, nothing else at all" for letter in "ABCD"]


def test_two_answers_that_changed_places_are_found():
    pairs = swapped_answers(of([OWN[1], OWN[0], *OWN[2:]], OWN))
    assert [(pair.request_id, pair.other_id) for pair in pairs] == [("chat-00", "chat-01"), ("chat-01", "chat-00")]


@pytest.mark.parametrize(
    "texts",
    [
        OWN,
        [OWN[1], *OWN[1:]],  # one alone may be a near-tie
        ["B is what", "A is what", *OWN[2:]],
    ],
)
def test_one_answer_or_a_few_words_are_not_swapped(texts):
    assert swapped_answers(of(texts, OWN)) == ()


def marked(texts, theirs):
    seen = of(texts, theirs)
    asked = [replace(r, body={**r.body, "messages": f"[{marker(n)}]"}) for n, r in enumerate(seen.workload.requests)]
    return replace(seen, workload=replace(seen.workload, requests=tuple(asked)))


def test_one_word_of_a_neighbour_is_enough():
    pairs = swapped_answers(marked([f"so {marker(2)}", *OWN[1:]], OWN))
    assert [(pair.request_id, pair.other_id) for pair in pairs] == [("chat-00", "chat-02")]
    assert swapped_answers(marked([f"so {marker(0)}", *OWN[1:]], OWN)) == ()
    assert swapped_answers(marked([f"so {marker(2)}", *OWN[1:]], [f"{marker(2)}", *OWN[1:]])) == ()


def test_sampled_answers_that_begin_alike_are_not_swapped():
    seen = of([OWN[1], OWN[0], *OWN[2:]], OWN)
    drawn = tuple(replace(r, body={**r.body, "temperature": 1.0}) for r in seen.workload.requests)
    assert swapped_answers(replace(seen, workload=replace(seen.workload, requests=drawn))) == ()


def test_answers_that_the_control_gives_too_are_not_swapped():
    other = [OWN[1], OWN[0], *OWN[2:]]
    assert swapped_answers(of(other, OWN, other)) == ()


def test_answers_of_requests_that_were_not_together_are_not_swapped():
    assert swapped_answers(of([OWN[1], OWN[0], *OWN[2:]], OWN, waves=(1, 1, 1, 1))) == ()


@pytest.mark.parametrize(
    "text, found", [("plain", ""), ("naïve", ""), ("so <|im_end|> it", "<|im_end|>"), ("привет", "cyrillic letters"), ("</s>", "</s>")]
)
def test_letters_and_marks_that_no_prompt_has_are_foreign(text, found):
    alike = of([text], ["plain"], waves=())
    assert find_foreign_text(alike, alike.speculative).kinds == ({"chat-00": found} if found else {})


def test_letters_of_the_prompt_are_not_foreign():
    asked = a_workload([replace(requests(1)[0], body={"messages": "по-русски <s>"})])
    seen = captured("concurrency", [answer(text="привет <s>")], [answer(text="x")], workload=asked)
    assert find_foreign_text(seen, seen.speculative).kinds == {}


def test_tokens_are_counted_by_wave_without_grammars_and_draws():
    greedy = requests(4)
    asked = a_workload(
        (
            greedy[0],
            greedy[1],
            replace(greedy[2], body={**greedy[2].body, "response_format": {"type": "json_object"}}),
            replace(greedy[3], body={**greedy[3].body, "temperature": 1.0}),
        ),
        waves=(1, 3),
    )
    answers = [answer(request.id, range(10, 20)) for request in asked.requests]
    scores = {
        "draft-k3": tuple(score("draft-k3", each, [(3, 2.0)] if each is answers[1] else []) for each in answers),
        "baseline": tuple(score("baseline", each) for each in answers),
    }
    tokens = concurrent_tokens(captured("concurrency", answers, answers, workload=asked, scores=scores))
    assert [(w.size, w.tokens, len(w.wrong)) for w in tokens.waves] == [(1, 10, 0), (3, 10, 1)]
    assert tokens.waves[1].traits == {"grammar", "sampling"}
    assert (tokens.waves[1].wrong[0].request_id, tokens.waves[1].wrong[0].index) == ("chat-01", 3)
