"""The forward pass against an independent one, and against itself in other batches."""

from __future__ import annotations

import numpy as np
import pytest

from specdec_reference import checkpoint, model
from specdec_reference.pad import pad_model


@pytest.fixture(scope="module")
def target():
    return checkpoint.read("target")


@pytest.fixture(scope="module")
def decoder(target):
    return model.load(target, 128)


def plain(found, tokens):
    """Qwen3 as its paper says, one position after the other, full attention, no cache, float64."""
    shape, tensors = found.shape, found.tensors

    def norm(x, weight):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + shape.norm_epsilon) * weight

    def rope(x, position):
        half = shape.head_dim // 2
        angle = position * shape.rope_theta ** (-np.arange(half) / half)
        first, second = x[..., :half], x[..., half:]
        return np.concatenate([first * np.cos(angle) - second * np.sin(angle), second * np.cos(angle) + first * np.sin(angle)], -1)

    x = tensors["model.embed_tokens.weight"][tokens].astype(np.float64)
    for index in range(shape.layers):
        w = {name.split(f"layers.{index}.")[1].removesuffix(".weight"): t for name, t in tensors.items() if f"layers.{index}." in name}
        queries, keys, values = [], [], []
        for position, row in enumerate(norm(x, w["input_layernorm"])):
            queries.append(rope(norm((w["self_attn.q_proj"] @ row).reshape(-1, shape.head_dim), w["self_attn.q_norm"]), position))
            keys.append(rope(norm((w["self_attn.k_proj"] @ row).reshape(-1, shape.head_dim), w["self_attn.k_norm"]), position))
            values.append((w["self_attn.v_proj"] @ row).reshape(-1, shape.head_dim))
        for position in range(len(tokens)):
            heads = []
            for head in range(shape.heads):
                group = head * shape.kv_heads // shape.heads
                scores = np.array([queries[position][head] @ keys[i][group] for i in range(position + 1)]) / np.sqrt(shape.head_dim)
                weights = np.exp(scores - scores.max())
                heads.append(sum(a * values[i][group] for i, a in enumerate(weights / weights.sum())))
            x[position] += w["self_attn.o_proj"] @ np.concatenate(heads)
        inner = norm(x, w["post_attention_layernorm"])
        gate = inner @ w["mlp.gate_proj"].T
        x = x + (gate / (1 + np.exp(-gate)) * (inner @ w["mlp.up_proj"].T)) @ w["mlp.down_proj"].T
    return norm(x, tensors["model.norm.weight"]) @ tensors["model.embed_tokens.weight"].T


def prompts(*lengths):
    random = np.random.default_rng(7)
    return [random.integers(5, 4096, length) for length in lengths]


def test_the_forward_pass_is_qwen3(target, decoder):
    (tokens,) = prompts(24)
    logits = decoder.logits(decoder.forward(tokens[None], decoder.cache(1), np.zeros(1, np.intp)))
    np.testing.assert_allclose(logits, plain(target, tokens), atol=1e-4)


@pytest.mark.parametrize("window", [1, 2, 3, 4, 5])
def test_tokens_fed_in_windows_through_the_cache_are_tokens_fed_at_once(decoder, window):
    (tokens,) = prompts(20)
    whole = decoder.logits(decoder.forward(tokens[None], decoder.cache(1), np.zeros(1, np.intp)))
    cache = decoder.cache(3)
    steps = [(tokens[None, at : at + window], cache, np.array([at])) for at in range(0, 20, window)]
    parts = [decoder.logits(decoder.forward(*step, slot=2)) for step in steps]
    np.testing.assert_allclose(np.concatenate(parts), whole, atol=1e-4)


@pytest.mark.parametrize("window", [1, 4])
def test_a_row_in_a_batch_is_the_row_alone(decoder, window):
    several = prompts(5, 17, 30, 11)
    cache = decoder.cache(4)
    fed = np.array(prompts(*[window] * 4))
    lengths = np.array([len(tokens) for tokens in several])
    for slot, tokens in enumerate(several):
        decoder.forward(tokens[None], cache, np.zeros(1, np.intp), slot=slot)
    together = decoder.logits(decoder.forward(fed, cache, lengths)).reshape(4, window, -1)
    for slot, tokens in enumerate(several):
        alone = decoder.logits(decoder.forward(np.concatenate([tokens, fed[slot]])[None], decoder.cache(1), np.zeros(1, np.intp)))
        np.testing.assert_allclose(together[slot], alone[-window:], atol=1e-4)


def test_rows_that_live_shorter_are_packed_and_are_the_rows_alone(decoder):
    several, live = prompts(5, 17, 30, 11), np.array([1, 4, 2, 1])
    fed = np.array(prompts(4, 4, 4, 4))
    cache = decoder.cache(4)
    filled = np.zeros((4, 30), np.intp)
    for slot, tokens in enumerate(several):
        filled[slot, : len(tokens)] = tokens
    lengths = np.array([len(tokens) for tokens in several])
    entered = decoder.logits(decoder.forward(filled, cache, np.zeros(4, np.intp), counts=lengths))
    stepped = decoder.logits(decoder.forward(fed, cache, lengths, counts=live))
    assert (len(entered), len(stepped)) == (63, 8)
    for slot, tokens in enumerate(several):
        whole = np.concatenate([tokens, fed[slot, : live[slot]]])[None]
        alone = decoder.logits(decoder.forward(whole, decoder.cache(1), np.zeros(1, np.intp)))
        before, after = lengths[:slot].sum(), live[:slot].sum()
        got = np.concatenate([entered[before : before + lengths[slot]], stepped[after : after + live[slot]]])
        np.testing.assert_allclose(got, alone, atol=1e-4)


def test_what_lies_behind_a_row_in_the_cache_is_not_seen(decoder):
    """Rejected drafts stay in the cache behind the length and must not matter."""
    (tokens,) = prompts(10)
    clean, token, length = decoder.cache(1), np.array([[9]]), np.array([10])
    decoder.forward(tokens[None], clean, np.zeros(1, np.intp))
    dirty = clean.copy()
    dirty[..., 10:, :] = 7.0
    np.testing.assert_array_equal(decoder.forward(token, dirty, length), decoder.forward(token, clean, length))


def test_padding_changes_the_price_and_not_the_distribution(decoder):
    (tokens,) = prompts(12)
    deeper = pad_model(decoder, 9)
    assert len(deeper.layers) == 9
    assert all(np.any(layer.qkv) and np.any(layer.gate_up) for layer in deeper.layers)
    plainly, dearly = (d.forward(tokens[None], d.cache(1), np.zeros(1, np.intp)) for d in (decoder, deeper))
    np.testing.assert_array_equal(plainly, dearly)
