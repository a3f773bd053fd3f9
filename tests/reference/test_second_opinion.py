"""The reference engine against transformers on the same checkpoints: forward pass, sampling parameters, ends, and verification."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from tokenizers import Tokenizer

from specdec_reference import checkpoint, model
from specdec_reference.faults import catalogue
from specdec_reference.rejection_sampler import DraftProposal, verify
from specdec_reference.sampler import Sampling, distributions, pick
from tests.reference.asgi_client import GREEDY, NGRAM, PROBABILISTIC, served
from tests.reference.test_eagle import EAGLE

ROOT = Path(__file__).parents[2]
PYTHON = next((path for name in (".venv-vllm", ".venv-transformers") if (path := ROOT / name / "bin" / "python").exists()), None)
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(PYTHON is None, reason="transformers is not here: make vllm-env or make transformers-env"),
]

TARGET = checkpoint.read("target")
ENCODER = Tokenizer.from_file(str(TARGET.folder / "tokenizer.json"))
PROMPTS = (
    "import os\nimport sys\n",
    "def main():\n    return",
    "a b c d a b c d a b",
    "<|im_start|>user\nWrite JSON.<|im_end|>\n<|im_start|>assistant\n",
    'class Reader:\n    """Reads lines, one by one, until the file ends."""\n\n    def __init__(self, path):\n' * 4,
)
ASKED = {
    "plain": ({}, {}),
    "repetition": ({"repetition_penalty": 1.6}, {"repetition_penalty": 1.6}),
    "repetition rewarded": ({"repetition_penalty": 0.7}, {"repetition_penalty": 0.7}),
    "bias": (
        {"logit_bias": {"13": -100, "30": 2, "260": 3.5}},
        {"sequence_bias": [[13, -100.0], [30, 2.0], [260, 3.5]]},
    ),
    "allowed": ({"allowed_token_ids": [198, 203, *range(260, 700, 3)]}, {"allowed": [198, 203, *range(260, 700, 3)]}),
    "ends": ({"ignore_eos": False}, {"eos_token_id": 2}),
    "stop ids": ({"stop_token_ids": [198, 203, 265]}, {"eos_token_id": [198, 203, 265]}),
    "least tokens": (
        {"stop_token_ids": [198, 203, 265], "min_tokens": 9},
        {"eos_token_id": [198, 203, 265], "min_new_tokens": 9},
    ),
    "stop string": ({"stop": ["self", "\n\n"]}, {"stop_strings": ["self", "\n\n"]}),
}
"""By what is asked: a request's parameters, and what they are called by ``generate``. transformers has no presence or frequency penalty."""
TOKENS = 32
WARPED = (
    {"temperature": 0.7},
    {"temperature": 1.3, "top_p": 0.8},
    {"temperature": 1.0, "top_k": 7},
    {"temperature": 0.9, "top_k": 40, "top_p": 0.6},
    {"temperature": 1.4, "min_p": 0.05},
    {"temperature": 0.8, "min_p": 0.02, "top_k": 12, "top_p": 0.9},
)
K, WINDOWS = 3, 2000


class Opinion:
    """What transformers said to all questions, which are asked at once: its start takes longer than its answers."""

    def __init__(self, folder):
        self.prompts = [ENCODER.encode(text, add_special_tokens=False).ids for text in PROMPTS]
        self.ours = {name: [logits(name, prompt) for prompt in self.prompts] for name in ("target", "draft")}
        self.rows = np.concatenate(self.ours["target"])[::7]
        p = np.exp(self.ours["target"][0][: K + 1])
        q = np.exp(self.ours["draft"][0][:K])
        self.p, self.q = (mass / mass.sum(axis=1, keepdims=True) for mass in (p, q))
        asked = [(name, prompt) for name in ASKED for prompt in self.prompts]
        generated = [{"prompt": prompt, "max_new_tokens": TOKENS, **ASKED[name][1]} for name, prompt in asked]
        generated += [{"prompt": prompt, "max_new_tokens": TOKENS, "assisted": True} for prompt in self.prompts]
        checkpoints = {name: str(checkpoint.read(name).folder) for name in ("target", "draft")}
        questions = {
            "checkpoints": checkpoints,
            "prompts": self.prompts,
            "warped": WARPED,
            "windows": WINDOWS,
            "generated": generated,
        }
        (folder / "questions.json").write_text(json.dumps(questions))
        np.savez(folder / "numbers.npz", rows=self.rows, p=self.p, q=self.q)
        argv = (PYTHON, ROOT / "tests/engines/transformers/second_opinion.py", folder / "questions.json", folder / "numbers.npz")
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        said = json.loads(done.stdout.splitlines()[-1])
        self.generated = {(name, tuple(prompt)): ids for (name, prompt), ids in zip(asked, said, strict=False)}
        self.assisted = dict(zip(map(tuple, self.prompts), said[len(asked) :], strict=True))
        with np.load(folder / "answers.npz") as arrays:
            self.arrays = dict(arrays)


def logits(name, prompt):
    """Return the engine's logits after each token of ``prompt``, (tokens, vocabulary)."""
    decoder = model.load(checkpoint.read(name), len(prompt) + 1)
    return decoder.logits(decoder.forward(np.array([prompt]), decoder.cache(1), np.zeros(1, np.intp)))


@pytest.fixture(scope="module")
def opinion(tmp_path_factory):
    return Opinion(tmp_path_factory.mktemp("opinion"))


@pytest.mark.parametrize("name", ["target", "draft"])
def test_logits_are_those_of_transformers(opinion, name):
    for at, ours in enumerate(opinion.ours[name]):
        theirs = opinion.arrays[f"{name}_logits_{at}"]
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max() < 1e-3, "float32, sums in another order"


@pytest.mark.parametrize("at", range(len(WARPED)), ids=[" ".join(asked) for asked in WARPED])
def test_distributions_are_those_of_its_warpers(opinion, at):
    rows, asked = opinion.rows, WARPED[at]
    given = {name: np.full(len(rows), asked.get(name, off)) for name, off in (("top_p", 1.0), ("min_p", 0.0))}
    sampling = Sampling(
        temperature=np.full(len(rows), asked["temperature"], np.float32), top_k=np.full(len(rows), asked.get("top_k", 0)), **given
    )
    ours, theirs = distributions(rows, sampling), opinion.arrays[f"distribution_{at}"]
    assert ((ours > 0) == (theirs > 0)).all(), "the same tokens are left"
    assert np.abs(ours - theirs).max() < 1e-5


SERVERS = {
    "baseline": {},
    "draft": {"speculation": PROBABILISTIC},
    "lookup": {"speculation": NGRAM},
    "eagle": {"speculation": EAGLE},
    "small cache": {"speculation": GREEDY, "max_model_len": 176, "blocks": 12},
}


@pytest.mark.parametrize("name", list(SERVERS))
def test_greedy_answers_are_those_of_generate(opinion, name):
    """All prompts at once, so that they share steps; twice, so that the second time the prompts are in the prefix cache."""
    same = {"temperature": 0, "max_tokens": TOKENS, "return_token_ids": True, "ignore_eos": True}
    with served(**SERVERS[name]) as server:
        for asked, (ours, _) in ASKED.items():
            bodies = [{**same, **ours, "prompt": prompt} for prompt in opinion.prompts]
            expected = [opinion.generated[asked, tuple(prompt)] for prompt in opinion.prompts]
            for _ in range(2):
                assert [answer["choices"][0]["token_ids"] for answer in server.complete(*bodies)] == expected, asked
        assert (server.counters()["vllm:num_preemptions_total"] > 0) == (name == "small cache")


@pytest.mark.parametrize("name", sorted(set(ASKED) - {"plain"}))
def test_what_is_asked_changes_an_answer(opinion, name):
    assert any(opinion.generated[name, tuple(prompt)] != opinion.generated["plain", tuple(prompt)] for prompt in opinion.prompts)


def test_its_own_assisted_generation_agrees(opinion):
    for prompt in map(tuple, opinion.prompts):
        assert opinion.assisted[prompt] == opinion.generated["plain", prompt]


def test_windows_are_distributed_as_its_own(opinion):
    """Two samples of the same size, ours and theirs: accepted tokens, and the first token of a window. Fixed seeds on both sides."""
    random = np.random.default_rng(2)
    tokens = np.stack([pick(np.tile(row, (WINDOWS, 1)), random.random(WINDOWS)) for row in opinion.q], axis=1)
    draft = DraftProposal(tokens=tokens, counts=np.full(WINDOWS, K), q=np.tile(opinion.q.astype(np.float32), (WINDOWS, 1, 1)))
    found = verify(
        np.tile(opinion.p.astype(np.float32), (WINDOWS, 1)),
        draft,
        random.random((WINDOWS, K + 1)),
        catalogue.rules(None, speculating=True),
    )
    first = np.where(found.accepted > 0, tokens[:, 0], found.last)
    theirs = opinion.arrays["windows"]
    for ours, other in ((found.accepted, theirs[:, 0]), (first, theirs[:, 1])):
        assert homogeneous(ours, other) > 1e-3
    assert homogeneous(first, pick(np.tile(opinion.q[0], (WINDOWS, 1)), random.random(WINDOWS))) < 1e-9, "drafts alone would be told apart"


def homogeneous(one, other):
    """Return the p-value of the chi-squared test that two samples are of one distribution; cells of fewer than ten are one."""
    size = max(one.max(), other.max()) + 1
    table = np.array([np.bincount(sample, minlength=size) for sample in (one, other)])
    many = table.sum(axis=0) >= 10
    table = np.column_stack([table[:, many], table[:, ~many].sum(axis=1)])
    return stats.chi2_contingency(table[:, table.sum(axis=0) > 0]).pvalue
