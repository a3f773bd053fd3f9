"""LoRA in the reference engine: the sum of the matrices, each row under its own, keys and values of one never under another."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pytest_specdec.errors import EngineError
from specdec_reference import adapters, checkpoint, model
from specdec_reference.cli import parse
from tests.reference.asgi_client import PROBABILISTIC, served

MODULES = ("first=random:1", "second=random:2")
LORA = {"enable_lora": True, "lora_modules": MODULES}
TOKENS = np.array([[5, 70, 300, 9, 1000, 44]])
PROMPT = "def add(a, b):\n    return a + b\n\n\ndef subtract(a, b):\n    return"


@pytest.fixture(scope="module")
def target():
    return checkpoint.read("target")


def logits(loaded, adapted=()):
    lines = tuple(adapters.AdaptedLines(adapter=adapter, lines=np.arange(TOKENS.size)) for adapter in adapted)
    hidden = loaded.forward(TOKENS, loaded.cache(1), np.zeros(1, np.intp), adapted=lines)
    return loaded.logits(hidden)


def test_an_adapter_is_what_its_product_adds_to_every_matrix(target):
    """The factors, folded and interleaved, are those of a checkpoint in whose matrices they were merged."""
    factors = adapters._draw_factors("random:1", target)
    merged = {f"{name}.weight": target.tensors[f"{name}.weight"] + b @ a for name, (a, b) in factors.items()}
    other = replace(target, tensors={**target.tensors, **merged})
    (adapter,) = adapters.load(MODULES[:1], target).values()
    base = model.load(target, 64)
    assert np.abs(logits(base, [adapter]) - logits(model.load(other, 64))).max() < 1e-3
    assert np.abs(logits(base, [adapter]) - logits(base)).max() > 1.0


def test_a_folder_of_peft_s_is_the_same_adapter(target, tmp_path, capsys):
    assert adapters.main(["target", str(tmp_path / "one"), "--seed", "1"]) == 0
    assert "rank 8, seed 1" in capsys.readouterr().out
    drawn, stored = adapters.load([MODULES[0], f"stored={tmp_path / 'one'}"], target).values()
    base = model.load(target, 64)
    assert np.abs(logits(base, [drawn]) - logits(base, [stored])).max() < 1e-3


@pytest.mark.parametrize("module", ["first", "first=", "first=random:x", "first=/nowhere"])
def test_what_is_no_adapter_is_refused_by_name(module, target):
    with pytest.raises(EngineError, match=r"--lora-modules"):
        adapters.load([module], target)


@pytest.mark.parametrize("factor, cut", [("lora_A", np.s_[:, 4:]), ("lora_A", np.s_[1:]), ("lora_B", np.s_[4:])])
def test_an_adapter_of_another_size_is_refused_before_any_request(factor, cut, target, tmp_path):
    assert adapters.main(["target", str(tmp_path), "--seed", "1"]) == 0
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    name = f"base_model.model.model.layers.0.mlp.down_proj.{factor}.weight"
    save_file({**tensors, name: np.ascontiguousarray(tensors[name][cut])}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(EngineError, match=r"an adapter of another model\n.*layers\.0\.mlp\.down_proj"):
        adapters.load([f"cut={tmp_path}"], target)


def test_adapters_need_lora():
    with pytest.raises(EngineError, match="--enable-lora"):
        parse(["target", "--lora-modules", *MODULES])
    assert parse(["target", "--enable-lora", "--lora-modules", *MODULES]).lora_modules == MODULES


def complete(server, *names, **body):
    bodies = [{"prompt": PROMPT, "max_tokens": 10, "temperature": 0, "return_token_ids": True, "model": name, **body} for name in names]
    answers = server.complete(*bodies)
    return [answer["choices"][0]["token_ids"] for answer in (answers if len(names) > 1 else [answers])]


@pytest.mark.parametrize("speculation", [None, PROBABILISTIC])
def test_every_token_of_an_answer_is_the_adapters_own(speculation):
    """Decoded and verified under it, as its prompt was read."""
    with served(speculation, **LORA) as server:
        for name in ("first", "second", "target"):
            body = {"prompt": PROMPT, "max_tokens": 10, "temperature": 0, "return_token_ids": True, "model": name}
            (choice,) = server.complete(body)["choices"]
            prompt, ids = choice["prompt_token_ids"], choice["token_ids"]
            scored = server.complete({**body, "prompt": [*prompt, *ids], "max_tokens": 1, "prompt_logprobs": 1})
            best = [min(entry.items(), key=lambda item: item[1]["rank"])[0] for entry in scored["choices"][0]["prompt_logprobs"][-10:]]
            assert [int(token) for token in best] == ids, name


@pytest.mark.parametrize("speculation", [None, PROBABILISTIC])
def test_each_name_answers_as_itself_alone_and_in_one_batch_and_after_the_others(speculation):
    names = ("target", "first", "second", "first", "target")
    with served(speculation, **LORA) as server:
        alone = [complete(server, name)[0] for name in names]
        together = complete(server, *names)
    assert alone == together
    assert len(set(map(tuple, alone))) == 3
    with served(None, **LORA) as fresh:
        assert complete(fresh, "second") == [alone[2]]


def test_models_lists_adapters_and_an_unknown_name_is_a_404():
    with served(None, **LORA) as server:
        cards = json.loads(server.get("/v1/models")[1])["data"]
        assert [(card["id"], card.get("parent")) for card in cards] == [("target", None), ("first", "target"), ("second", "target")]
        assert server.ask("/v1/completions", {"prompt": "a", "model": "third"})[0] == 404
