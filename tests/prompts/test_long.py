"""Long prompts: exact parts of the limit, of the text as a server makes ids of it, and ends that answers copy."""

from __future__ import annotations

from functools import cache
from itertools import cycle, islice

import pytest

from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts.context import fitted, is_open, prompt_length, scored_prompt_tokens
from pytest_specdec.prompts.long import LONG_CONTEXTS, MOST_SCORED, Kind, copied_text, kind_of, limit_part, write_prompts

TEXT = "".join(chr(97 + index * index % 23) + " ." * (index % 3) for index in range(4000))
LIMIT = 4096
PARTS = {"eighth": 512, "quarter": 1024, "half": 2048, "whole": 4096}


def ids_of(request):
    """A token a character, after one that begins every text."""
    return (1, *(1000 + ord(character) for character in request.body["prompt"]))


@cache
def written(limit=LIMIT, ids_of=ids_of):
    return write_prompts(fitted(LONG_CONTEXTS, limit), TEXT, ids_of)


def test_prompts_and_their_answers_fill_exact_parts_of_the_limit():
    totals = {request.id: len(request.body["prompt"]) + request.token_limit for request in written().requests}
    assert totals.pop("short") == 32
    assert all(total == PARTS[limit_part(name)] for name, total in totals.items())


def test_lengths_are_known_when_the_run_is_planned_and_the_text_is_put_in_later():
    planned = fitted(LONG_CONTEXTS, LIMIT)
    assert is_open(planned)
    assert [prompt_length(request) for request in planned.requests] == [prompt_length(request) for request in written().requests]
    assert not is_open(written())
    assert write_prompts(written(), "another text", ids_of) == written()


def test_ids_of_a_part_of_the_text_are_enough_for_prompts_of_ids():
    prompts = write_prompts(fitted(LONG_CONTEXTS, LIMIT), TEXT, lambda request: ids_of(request) if request.id == "text-0" else ()).requests
    lengths = [len(request.body["prompt"]) for request in written().requests]
    assert all(isinstance(token, int) for request in prompts for token in request.body["prompt"])
    assert [len(request.body["prompt"]) for request in prompts] == lengths


@pytest.mark.parametrize("limit", [None, 512, 1024, 2048])
def test_no_part_of_a_short_or_unknown_limit_is_asked_for(limit):
    assert [request.id for request in written(limit).requests] == ["short"]


def test_more_is_asked_at_greater_depth_and_the_first_again_at_the_end_of_each():
    asked = {depth: [request.id for request in LONG_CONTEXTS.at(depth).requests] for depth in Depth}
    assert {depth: {limit_part(name) for name in names} - {"short"} for depth, names in asked.items()} == {
        Depth.SMOKE: {"eighth"},
        Depth.STANDARD: {"eighth", "quarter", "half"},
        Depth.DEEP: set(PARTS),
    }
    assert asked[Depth.STANDARD][-2:] == ["eighth/copy-again", "eighth/repeat-again"]
    assert asked[Depth.DEEP][-2:] == ["eighth/copy-at-last", "eighth/repeat-at-last"]
    by_id = written().by_id
    assert by_id["eighth/copy"].asks == by_id["eighth/copy-again"].asks == by_id["eighth/copy-at-last"].asks


def test_the_longest_are_in_flight_alone():
    waves = written().turns
    assert max(map(len, waves)) == 4
    assert all(len(wave) == 1 for wave in waves for request in wave if limit_part(request.id) in {"half", "whole"})


@pytest.mark.parametrize("depth", PARTS)
def test_a_copy_goes_on_with_the_same_text_at_every_depth(depth):
    kinds = {kind_of(request.id): request.body["prompt"] for request in written().requests if limit_part(request.id) == depth}
    first = written().by_id["eighth/copy"].body["prompt"]
    assert copied_text(kinds[Kind.COPY], 96) == copied_text(first, 96)
    assert len(set(copied_text(first, 96))) > 10
    assert kinds[Kind.CONTINUE] == kinds[Kind.SAMPLED]
    assert copied_text(range(100), 96) == ()


def test_a_repetition_goes_on_with_its_few_tokens():
    prompt = written().by_id["eighth/repeat"].body["prompt"]
    assert copied_text(prompt, 96) == tuple(islice(cycle(prompt[-3:]), 96))


def test_what_begins_every_text_stands_before_the_first_piece_alone():
    prompt = written(8192).by_id["half/continue"].body["prompt"]
    assert len(prompt) == 4000
    assert prompt.count(1) <= 1


def test_where_no_server_makes_ids_prompts_are_texts_of_about_their_length():
    prompts = {request.id: request.body["prompt"] for request in written(ids_of=lambda _: ()).requests if request.id != "short"}
    assert all(isinstance(prompt, str) and len(prompt) == 3 * (PARTS[limit_part(name)] - 96) for name, prompt in prompts.items())
    assert prompts["eighth/repeat"].endswith("one two three one tw")


def test_scoring_reads_again_what_is_short_enough_to_be_scored():
    assert scored_prompt_tokens(fitted(LONG_CONTEXTS, LIMIT)) == sum(
        length for request in fitted(LONG_CONTEXTS, LIMIT).requests if (length := prompt_length(request)) >= 1024
    )
    assert 0 < scored_prompt_tokens(fitted(LONG_CONTEXTS, 131_072)) <= 8 * MOST_SCORED + 2 * 16_384
