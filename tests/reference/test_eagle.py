"""The EAGLE-3 head against vLLM's windows, against an independent forward, and against itself in other batches."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pytest_specdec.errors import EngineError
from specdec_reference import checkpoint, eagle, model
from specdec_reference.cli import ServerSettings, Speculation
from specdec_reference.engine import ReferenceEngine
from specdec_reference.sampler import Sampling
from tests.reference.asgi_client import served

K = 3
EAGLE = Speculation(method="eagle3", tokens=K, model="eagle3")
PROBABILISTIC = Speculation(method="eagle3", tokens=K, model="eagle3", probabilistic=True)
RECORDED = json.loads((Path(__file__).parent / "data" / "eagle3_windows.json").read_text())["answers"]
"""vLLM's own, with the same checkpoints."""


@pytest.fixture(scope="module")
def target():
    return checkpoint.read("target")


@pytest.fixture(scope="module")
def decoder(target):
    return model.load(target, 64)


@pytest.fixture(scope="module")
def trained():
    return checkpoint.read("eagle3", checkpoint.EAGLE3)


def drafter(trained, decoder, slots):
    return eagle.EagleDrafter(eagle.load(trained, decoder), tokens=K, slots=slots, probabilistic=True)


def row(tokens):
    return SimpleNamespace(tokens=list(tokens), grammar=None)


def take_in(watching, decoder, tokens, *, slot=0):
    """Take the tokens in, the last one as if the target had just emitted it."""
    prompt = np.array([tokens[:-1]], np.intp)
    decoder.forward(prompt, decoder.cache(slot + 1), np.zeros(1, np.intp), slot=slot, tap=watching.tap)
    watching.enter(slot, prompt, np.zeros(1, np.intp), np.array([len(tokens) - 1], np.intp))


def proposed(watching, *rows):
    """Return what it drafts after each row by the same numbers, and the distributions that it draws from."""
    sampling = Sampling.of(SimpleNamespace(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0) for _ in rows)
    draft = watching.propose([row(tokens) for tokens in rows], sampling, np.full((len(rows), K), 0.5))
    return draft.tokens, draft.q


def plain(trained, target, tokens, drafted):
    """The head as vLLM's llama_eagle3 says, one position after the other, float64: the distributions after the tokens and each draft."""
    shape, w = trained.shape, {name.removeprefix("midlayer."): t.astype(np.float64) for name, t in trained.tensors.items()}
    embedding = target.tensors["model.embed_tokens.weight"]

    def norm(x, weight):
        return x / np.sqrt((x * x).mean() + shape.norm_epsilon) * weight

    def rope(x, position):
        half = shape.head_dim // 2
        angle = position * shape.rope_theta ** (-np.arange(half) / half)
        first, second = x[..., :half], x[..., half:]
        return np.concatenate([first * np.cos(angle) - second * np.sin(angle), second * np.cos(angle) + first * np.sin(angle)], -1)

    keys, values = [], []

    def step(token, state):
        position = len(keys)
        fed = np.concatenate([norm(embedding[token], w["input_layernorm.weight"]), norm(state, w["hidden_norm.weight"])])
        q = rope((w["self_attn.q_proj.weight"] @ fed).reshape(-1, shape.head_dim), position)
        keys.append(rope((w["self_attn.k_proj.weight"] @ fed).reshape(-1, shape.head_dim), position))
        values.append((w["self_attn.v_proj.weight"] @ fed).reshape(-1, shape.head_dim))
        heads = []
        for head in range(shape.heads):
            group = head * shape.kv_heads // shape.heads
            scores = np.array([q[head] @ key[group] for key in keys]) / np.sqrt(shape.head_dim)
            weights = np.exp(scores - scores.max())
            heads.append(sum(a * value[group] for a, value in zip(weights / weights.sum(), values, strict=True)))
        state = state + w["self_attn.o_proj.weight"] @ np.concatenate(heads)
        inner = norm(state, w["post_attention_layernorm.weight"])
        gate = w["mlp.gate_proj.weight"] @ inner
        return state + w["mlp.down_proj.weight"] @ (gate / (1 + np.exp(-gate)) * (w["mlp.up_proj.weight"] @ inner))

    class Watching:
        layers = (1, 2, 3)

        def take(self, span, states):
            self.states = np.concatenate(states, axis=1)

    watching, decoder = Watching(), model.load(target, 64)
    decoder.forward(np.array([tokens[:-1]]), decoder.cache(1), np.zeros(1, np.intp), tap=watching)
    fused = watching.states @ w["fc.weight"].T
    for token, state in zip(tokens[1:], fused, strict=True):
        behind = step(token, state)
    found = []
    for token in drafted:
        found.append(np.exp(w["lm_head.weight"] @ norm(behind, w["norm.weight"])))
        behind = step(token, behind)
    return np.array([mass / mass.sum() for mass in found])


def test_drafts_are_accepted_where_vllm_accepts_them():
    with served(EAGLE, spec_decode_metrics="detailed") as client:
        for recorded in RECORDED:
            asked = {"prompt": recorded["prompt"], "max_tokens": 128, "temperature": 0, "return_token_ids": True}
            answer = client.complete(asked)
            assert answer["choices"][0]["token_ids"] == recorded["tokens"]
            accepted = answer["metrics"]["speculative_decoding"]["per_step_accepted"]
            assert [1, *(1 + count for count in accepted)] == recorded["windows"]


@pytest.mark.parametrize("length", [2, 3, 9, 24])
def test_drafts_are_those_of_an_independent_forward(trained, target, decoder, length):
    tokens = RECORDED[0]["prompt"][:length]
    watching = drafter(trained, decoder, 1)
    take_in(watching, decoder, tokens)
    drafted, q = proposed(watching, tokens)
    assert np.abs(q[0] - plain(trained, target, tokens, drafted[0])).max() < 1e-5


def test_drafts_do_not_depend_on_the_slot_or_the_neighbours(trained, decoder):
    first, second = RECORDED[0]["prompt"][:20], RECORDED[1]["prompt"][:7]
    alone = []
    for tokens in (first, second):
        watching = drafter(trained, decoder, 1)
        take_in(watching, decoder, tokens)
        alone.append(proposed(watching, tokens)[1][0])
    both = drafter(trained, decoder, 3)
    take_in(both, decoder, first)
    take_in(both, decoder, second, slot=2)
    both.move(2, 1, len(second))
    assert np.abs(proposed(both, first, second)[1] - alone).max() < 1e-5


def test_answers_in_company_are_those_alone():
    bodies = [{"prompt": each["prompt"], "max_tokens": 48, "temperature": 0, "return_token_ids": True} for each in RECORDED]
    with served(PROBABILISTIC, max_num_seqs=3) as client:
        answers = client.complete(*bodies)
    assert [answer["choices"][0]["token_ids"] for answer in answers] == [each["tokens"][:48] for each in RECORDED]


def test_a_path_names_a_head_although_it_has_no_tokenizer(tmp_path):
    shutil.copytree(checkpoint.PACKAGED / "eagle3", tmp_path / "head")
    speculation = Speculation(method="eagle3", tokens=2, model=str(tmp_path / "head"))
    assert ReferenceEngine(ServerSettings(model="target", speculation=speculation)).settings.speculation == speculation


@pytest.mark.parametrize("layers, words", [([1, 2], r"\(256, 768\)"), ([1, 2, 4], "layers below 4")])
def test_a_head_of_another_target_is_refused(tmp_path, layers, words):
    shutil.copytree(checkpoint.PACKAGED / "eagle3", tmp_path / "head")
    path = tmp_path / "head" / "config.json"
    config = json.loads(path.read_text())
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = layers
    path.write_text(json.dumps(config))
    speculation = Speculation(method="eagle3", tokens=2, model=str(tmp_path / "head"))
    with pytest.raises(EngineError, match=words):
        ReferenceEngine(ServerSettings(model="target", speculation=speculation))


def test_a_draft_model_is_no_head():
    with pytest.raises(EngineError, match="LlamaForCausalLMEagle3"):
        ReferenceEngine(ServerSettings(model="target", speculation=Speculation(method="eagle3", tokens=2, model="draft")))
