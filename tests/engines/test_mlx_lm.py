"""mlx-lm: what is asked of its server and read from it, and a pair of real servers where it is installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_specdec.config.load import load
from pytest_specdec.engines.mlx_lm import MlxLm, MlxLmDialect
from pytest_specdec.engines.protocol import ServerSetup
from pytest_specdec.errors import EngineError
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.pair import Draft, DraftKind, DraftSampling
from pytest_specdec.model.workload import Request, Route

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "suites" / "configs" / "mlx-lm.yaml"
ENTRY = {"id": 394, "token": "a", "logprob": -0.5}


@pytest.mark.parametrize(
    "body, sent",
    [
        ({"prompt": "a"}, {"prompt": "a", "logprobs": True}),
        ({"prompt": "a", "logprobs": 5}, {"prompt": "a", "logprobs": True}),
        ({"messages": [], "logprobs": True, "top_logprobs": 1}, {"messages": [], "logprobs": True}),
        ({"top_k": -1, "temperature": 1.0}, {"top_k": 0, "temperature": 1.0, "logprobs": True}),
        ({"top_k": 7}, {"top_k": 7, "logprobs": True}),
        ({"presence_penalty": 0.5}, {"presence_penalty": 0.5, "presence_context_size": 1_000_000, "logprobs": True}),
        ({"repetition_penalty": 1.1}, {"repetition_penalty": 1.1, "repetition_context_size": 1_000_000, "logprobs": True}),
    ],
)
def test_a_request_is_sent_as_its_validation_takes_it(body, sent):
    neutral = {"model": "default_model", "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
    assert MlxLmDialect().sent(Request(id="a", route=Route.COMPLETIONS, body=body), stream=False) == {**neutral, **sent}


def test_a_stream_is_asked_for_its_usage():
    assert MlxLmDialect().sent(Request(id="a", route=Route.CHAT, body={}), stream=True)["stream_options"] == {"include_usage": True}


def test_ids_come_with_the_log_probabilities():
    reply = MlxLmDialect().reply({"choices": [{"index": 0, "logprobs": {"content": [ENTRY, {**ENTRY, "id": 7}]}}, {"index": 1}]})
    assert [choice["token_ids"] for choice in reply["choices"]] == [[394, 7], []]
    assert MlxLmDialect().reply({"error": "no"}) == {"error": "no"}


def test_a_draft_model_speculates_and_three_tokens_are_the_default():
    expected = Draft(kind=DraftKind.MODEL, tokens=3, sampling=DraftSampling.PROBABILISTIC, model="small")
    assert MlxLm().draft({"draft-model": "small"}) == expected
    assert MlxLm().draft({"num-draft-tokens": 3}) is None


@pytest.fixture
def checkpoints(tmp_path):
    for name, vocabulary in (("big", 40), ("small", 40), ("other", 41)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"vocab_size": vocabulary, "dtype": "float32"}))
    (tmp_path / "run").write_text("#!/bin/sh\n")
    (tmp_path / "run").chmod(0o755)

    def config(draft="small"):
        path = tmp_path / "mine.yaml"
        path.write_text(f"engine: {{kind: mlx_lm, model: big, executable: ./run}}\nvariants: {{v: {{args: {{draft-model: {draft}}}}}}}\n")
        return load(path)

    return config


def test_models_are_named_by_paths_that_hold_wherever_the_server_starts(checkpoints, tmp_path):
    config = checkpoints()
    setup = ServerSetup(model="big", port=8, args={"draft-model": "small", "adapter-path": "small"}, secrets=Secrets())
    argv = MlxLm().command(config, setup).argv
    assert argv[1:3] == ("--model", str(tmp_path / "big"))
    assert [argv[argv.index(flag) + 1] for flag in ("--draft-model", "--adapter-path")] == [str(tmp_path / "small")] * 2
    assert (MlxLm().single_precision(config), MlxLm().vocabulary(config)) == (True, 40)


def test_a_draft_of_another_vocabulary_is_refused(checkpoints):
    MlxLm().check(checkpoints())
    with pytest.raises(EngineError, match="another vocabulary"):
        MlxLm().check(checkpoints("other"))


installed = pytest.mark.skipif(not (ROOT / ".venv-mlx-lm").exists(), reason="mlx-lm is not here: make mlx-env")


def judged(config, run):
    argv = (sys.executable, "-m", "pytest", "suites/greedy", f"--specdec-config={config}", "--specdec-depth=smoke")
    ended = subprocess.run((*argv, f"--specdec-run-dir={run}"), cwd=ROOT, capture_output=True, text=True, check=False)
    (judgement,) = json.loads((run / "run.json").read_text())["judgements"]
    return judgement["verdict"], ended.stdout


@installed
def test_a_pair_of_real_servers_is_judged_through_the_scorer(tmp_path):
    """Greedy tokens of mlx-lm, with and without a draft model, under the engine that comes with this package."""
    verdict, shown = judged("mlx-lm", tmp_path / "run")
    assert verdict["outcome"] == "pass", shown
    assert "scored by a further server of the same weights: reference target" in verdict["evidence"]
    assert verdict["rules_out"].endswith("drafting seen by bursts of its stream, not counted")
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "complete"


@installed
def test_a_variant_whose_draft_model_is_not_used_is_red(tmp_path):
    """The flags of the draft model are taken out on the way to the server: it serves the same answers, and drafts nothing."""
    program = tmp_path / "mlx_lm.server"
    program.write_text(
        f"#!{sys.executable}\nimport os, sys\nargs = sys.argv[1:]\n"
        "for flag in ('--draft-model', '--num-draft-tokens'):\n    if flag in args:\n        del args[(at := args.index(flag)) : at + 2]\n"
        f"os.execv({str(ROOT / '.venv-mlx-lm/bin/mlx_lm.server')!r}, ['mlx_lm.server', *args])\n"
    )
    program.chmod(0o755)
    text = (
        CONFIG.read_text().replace("../../.specdec", str(ROOT / ".specdec")).replace("venv: ../../.venv-mlx-lm", f"executable: {program}")
    )
    (tmp_path / "planted.yaml").write_text(text)
    verdict, shown = judged(tmp_path / "planted.yaml", tmp_path / "run")
    assert verdict["outcome"] == "not speculating", shown
    assert verdict["headline"].startswith("speculation unknown")
