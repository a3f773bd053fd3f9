"""The prefix cache: what is reused is what would have been computed, in the target's cache and in the draft's."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

from specdec_reference.prefix_cache import BLOCK_TOKENS, Block, PrefixCache, blocks_of
from specdec_reference.rules import EngineRules
from tests.reference.asgi_client import GREEDY, NGRAM, PROBABILISTIC, served
from tests.reference.test_eagle import EAGLE

ASKED = {"temperature": 0, "max_tokens": 24, "return_token_ids": True, "ignore_eos": True}
TEXT = list(range(300, 380))
SPECULATIONS = {"none": None, "probabilistic": PROBABILISTIC, "greedy": GREEDY, "ngram": NGRAM, "eagle": EAGLE}


def asked(prompt, **body):
    return ASKED | {"prompt": prompt} | body


def ids(answer):
    return answer["choices"][0]["token_ids"]


def cached(answer):
    return answer["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0)


@pytest.fixture(scope="module")
def uncached():
    with served(prefix_caching=False, tells_cached=True) as client:
        yield client


@pytest.fixture(scope="module", params=SPECULATIONS)
def caching(request):
    with served(SPECULATIONS[request.param], tells_cached=True) as client:
        yield client


def text(first, count):
    """Tokens that begin like no others that are asked for here."""
    return [first, *TEXT[1:count]]


@pytest.mark.examples(2)
@pytest.mark.parametrize("shared, reused", [(15, 0), (16, 16), (17, 16), (31, 16), (32, 32), (33, 32), (48, 48), (64, 64)])
def test_a_shared_prefix_is_reused_by_full_blocks_and_changes_no_token(caching, shared, reused, uncached):
    one, other = text(1000 + shared, 80), [*text(1000 + shared, shared), *range(900, 917)]
    caching.complete(asked(one))
    answer = caching.complete(asked(other))
    assert cached(answer) == reused
    assert ids(answer) == ids(uncached.complete(asked(other)))


@pytest.mark.examples(2)
@pytest.mark.parametrize("length", [1, 15, 16, 17, 32, 33, 80])
def test_the_same_prompt_again_is_answered_alike_and_its_last_token_is_computed(caching, length, uncached):
    prompt = text(1200 + length, length)
    first, second = (caching.complete(asked(prompt)) for _ in range(2))
    assert (cached(first), cached(second)) == (0, (length - 1) // BLOCK_TOKENS * BLOCK_TOKENS)
    assert ids(first) == ids(second) == ids(uncached.complete(asked(prompt)))


def test_blocks_of_an_answer_are_reused_as_well(caching, uncached):
    longer = [*text(1400, 20), *ids(caching.complete(asked(text(1400, 20), max_tokens=60))), 500]
    answer = caching.complete(asked(longer))
    assert cached(answer) in {64, 80}
    assert ids(answer) == ids(uncached.complete(asked(longer)))


def test_reported_logits_are_the_uncached_ones_within_float_noise(caching, uncached):
    """A shorter matrix is multiplied in another order, so not bit for bit."""
    body = asked(text(1401, 80), logprobs=1)
    caching.complete(asked(text(1401, 64)))
    warm = caching.complete(body)["choices"][0]["logprobs"]["token_logprobs"]
    assert np.abs(np.array(warm) - uncached.complete(body)["choices"][0]["logprobs"]["token_logprobs"]).max() < 1e-4


@pytest.mark.examples(2)
def test_side_by_side_with_others_reuse_changes_nothing(caching, uncached):
    lots = ((70, 3), (20, 40), (1, 30), (33, 90))
    prompts = [[*text(1402, shared), *range(700 + shared, 700 + shared + extra)] for shared, extra in lots]
    caching.complete(asked(text(1402, 80)))
    answers = caching.complete(*map(asked, prompts))
    assert [ids(answer) for answer in answers] == [ids(uncached.complete(asked(prompt))) for prompt in prompts]


@pytest.mark.parametrize("speculation", [GREEDY, NGRAM, EAGLE], ids=["greedy", "ngram", "eagle"])
def test_a_reused_prompt_is_drafted_for_as_well_as_a_fresh_one(speculation):
    with served(speculation, spec_decode_metrics="detailed") as client:
        first, second = (client.complete(asked(TEXT))["metrics"]["speculative_decoding"] for _ in range(2))
    assert first["per_step_accepted"] == second["per_step_accepted"]


def test_a_scored_prompt_is_computed_whole_and_says_so():
    with served(tells_cached=True) as client:
        client.complete(asked(TEXT))
        answer = client.complete(asked(TEXT, prompt_logprobs=1, max_tokens=1))
    assert cached(answer) == 0
    assert len(answer["choices"][0]["prompt_logprobs"]) == len(TEXT)


def test_usage_keeps_silent_unless_told_otherwise_and_metrics_count():
    with served() as client:
        answers = [client.complete(asked(TEXT)) for _ in range(2)]
        counters = client.counters()
    assert all("prompt_tokens_details" not in answer["usage"] for answer in answers)
    assert (counters["vllm:prefix_cache_queries_total"], counters["vllm:prefix_cache_hits_total"]) == (160.0, 64.0)


def test_a_chain_tells_equal_blocks_behind_different_ones_apart():
    cache = PrefixCache(8, EngineRules())
    one, other = (cache.keys([*head, *range(16)]) for head in (range(100, 116), range(200, 216)))
    assert len({*one, *other}) == 4
    assert cache.keys(list(range(40))) == cache.keys(list(range(47)))


def test_the_least_recently_used_block_goes_first():
    cache = PrefixCache(2, EngineRules())
    blocks = {key: Block(index=0, target=np.zeros(key), draft=None) for key in (1, 2, 3)}
    (first,) = cache.keys(list(range(16)))
    for key in (first, 2):
        cache.put(key, lambda: blocks[1])
    assert len(cache.match([first])) == 1
    cache.put(3, lambda: blocks[3])
    assert (len(cache.match([first])), len(cache.match([2])), len(cache)) == (1, 0, 2)


def test_without_blocks_nothing_is_kept():
    cache = PrefixCache(0, EngineRules())
    cache.put(1, lambda: Block(index=0, target=np.zeros(1), draft=None))
    assert (len(cache), cache.match([1])) == (0, [])


def test_few_blocks_keep_few_and_answers_stay_right(uncached):
    with served(GREEDY, blocks=8, max_model_len=110, tells_cached=True) as client:
        prompts = [[*range(start, start + 50)] for start in (300, 400, 500, 300)]
        answers = [client.complete(asked(prompt)) for prompt in prompts]
    assert cached(answers[-1]) == 0
    assert [ids(answer) for answer in answers] == [ids(uncached.complete(asked(prompt))) for prompt in prompts]


@pytest.mark.parametrize("tokens, blocks", [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_a_part_of_a_block_takes_a_block(tokens, blocks):
    assert blocks_of(tokens) == blocks


def test_eviction_is_a_rule_of_the_dictionary_alone():
    blocks = OrderedDict.fromkeys(range(5))
    EngineRules().evict(blocks, 3)
    assert list(blocks) == [2, 3, 4]
