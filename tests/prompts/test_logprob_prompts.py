"""Log-probability workloads: lists of every length on both routes, prompts of lengths in a row."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from pytest_specdec.judge.logprob_lists import asked_top
from pytest_specdec.model.workload import Route
from pytest_specdec.prompts import ALL, logprobs

TOKENIZER = Path(__file__).parents[2] / "specdec_reference/checkpoints/target/tokenizer.json"


def test_lists_of_every_length_are_asked_for_on_both_routes_mostly_at_temperature_0():
    asked = logprobs.top_lists(ALL).requests
    assert {(request.route, asked_top(request)) for request in asked} == {
        (route, top) for route in (Route.CHAT, Route.COMPLETIONS) for top in (0, 1, 2, 5, 20)
    }
    assert sum(request.body["temperature"] == 0 for request in asked) == 30


def test_sixteen_prompts_in_a_row_have_one_whose_tokens_fill_whole_blocks():
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    lengths = [len(tokenizer.encode(request.body["prompt"]).ids) for request in logprobs.prompt_lengths().requests]
    for start in range(0, len(lengths), 16):
        assert {length % 16 for length in lengths[start : start + 16]} == set(range(16))
    assert max(lengths) > 512


def test_every_fourth_prompt_is_echoed_with_its_logprobs_before_a_long_or_a_short_answer():
    asked = logprobs.prompt_lengths(max_tokens=32).requests
    echoed = [request for request in asked[:16] if request.body.get("echo")]
    assert [request.id for request in echoed] == ["words-041#echo", "words-045#echo", "words-049#echo", "words-053#echo"]
    assert [(request.body["max_tokens"], request.body["logprobs"]) for request in echoed] == [(32, 1), (1, 1)] * 2
    assert all(("prompt_logprobs" in request.body) is not bool(request.body.get("echo")) for request in asked)
    assert sum("echo" in request.body for request in asked[:2]) == 1
