"""Planted upgrades of the reference engine, each compared with the build before: ``python -m benchmarks.upgrades [NAME …] [--write]``.

A build is judged by a few suites at smoke depth under ``--specdec-against``. Its last word has to attribute the change: to the baseline, to
speculation, to both, to speed, to what the servers offer, or to nothing.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import yaml
from safetensors.numpy import load_file, save_file

from benchmarks import results

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CHECKPOINTS = Path("specdec_reference/checkpoints")
_RUN_S = 600.0
_VARIANT: Mapping[str, object] = {
    "method": "draft_model",
    "model": "draft",
    "num_speculative_tokens": 3,
    "draft_sample_method": "probabilistic",
}
_SAFE, _CHANGED, _BROKE, _BOTH, _SLOWER, _OFFERS_LESS = (
    "SAFE TO UPGRADE",
    "ANSWERS CHANGED, speculation follows",
    "SPECULATION BROKE IN THE NEW RUN",
    "BOTH CHANGED",
    "SLOWER",
    "THE NEW RUN OFFERS LESS",
)
_TIMED: Mapping[str, object] = {"padded-layers": 8}
"""Arguments of builds whose speed is judged: a model of twice the layers, so that a step takes longer than the client needs to read it."""
_TOKENS = ("greedy", "sampling")
_SPEED = (
    "greedy",
    "speed/test_speed.py::test_answers_come_sooner",
    "speed/test_speed.py::test_enough_drafts_are_accepted",
    "speed/test_speed.py::test_as_many_drafts_are_accepted_as_before_in_sampled_answers",
)
_REQUESTS = ("greedy", "parameters")


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrade:
    """One new build."""

    title: str
    word: str
    """How the last line has to begin."""
    kind: str = ""
    """What it has to say of the change; empty where the word says it."""
    code: int = 1
    """Of the session's exit."""
    change: Callable[[Path], None] | None = None
    """What is done to a copy of the target's checkpoint; None where the build serves the same."""
    engine: Mapping[str, object] = field(default_factory=dict)
    """Arguments of both arms."""
    variant: Mapping[str, object] = field(default_factory=dict)
    """Arguments of the variant."""
    suites: tuple[str, ...] = _TOKENS
    """What it is judged by; the build before is judged by the same."""
    depth: str = "smoke"
    """Of both runs."""
    drafter: Callable[[Path], None] | None = None
    """What is done to a copy of the drafter's checkpoint; None where it is the same."""


def quantise(bits: int) -> Callable[[Path], None]:
    """Return a change that rounds every matrix to ``bits``, row by row with one scale each."""

    def change(folder: Path) -> None:
        path = folder / "model.safetensors"
        tensors = load_file(path)
        levels = 2 ** (bits - 1) - 1
        for name, tensor in tensors.items():
            if tensor.ndim > 1:
                scale = np.abs(tensor).max(axis=-1, keepdims=True).astype(np.float32) / levels
                tensors[name] = (np.round(tensor / np.maximum(scale, 1e-12)) * scale).astype(tensor.dtype)
        save_file(tensors, path)

    return change


def _change_template(folder: Path) -> None:
    path = folder / "chat_template.jinja"
    path.write_text(path.read_text(encoding="utf-8").replace("\n{{ m.content }}", "\n\n{{ m.content }}"), encoding="utf-8")


def _ignore_end(folder: Path) -> None:
    for name in ("config.json", "generation_config.json"):
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), "eos_token_id": 0}), encoding="utf-8")


def _cool(folder: Path) -> None:
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), "temperature": 0.6}), encoding="utf-8")


_WEIGHTS = "a broad shift, as of quantised weights or caches"
_NUMERICS = "numerics, as of another kernel or precision"
_NOTHING = ("nothing", "nothing-again", "nothing-once-more", *(f"nothing-{time}" for time in range(4, 11)))
"""Ten times: a gate that cries wolf in one of ten is switched off."""
UPGRADES: Mapping[str, Upgrade] = {
    **dict.fromkeys(_NOTHING, Upgrade(title="the same build", word=_SAFE, code=0)),
    "bf16": Upgrade(
        title="kernels in bfloat16, with their noise, in place of float32",
        word=_CHANGED,
        kind=_NUMERICS,
        code=0,
        engine={"numerics": "normal:0.03,grid:bf16"},
    ),
    "int8": Upgrade(title="weights rounded to 8 bits", word=_CHANGED, kind=_NUMERICS, code=0, change=quantise(8)),
    "int4": Upgrade(title="weights rounded to 4 bits", word=_CHANGED, kind=_WEIGHTS, change=quantise(4)),
    "template": Upgrade(
        title="another chat template", word=_CHANGED, kind="the chat template gives other prompts", change=_change_template
    ),
    "end": Upgrade(
        title="the end of sequence is ignored", word=_CHANGED, kind="answers end elsewhere after the same tokens", change=_ignore_end
    ),
    "temperature": Upgrade(title="another default temperature", word=_CHANGED, kind="default sampling parameters", change=_cool),
    "accept-all": Upgrade(title="drafts are accepted without verification", word=_BROKE, variant={"fault": "accept-all"}),
    "inverted": Upgrade(title="the acceptance ratio is inverted", word=_BROKE, variant={"fault": "inverted-ratio"}),
    "int4-accept-all": Upgrade(
        title="weights rounded to 4 bits, and drafts accepted without verification",
        word=_BOTH,
        kind=_WEIGHTS,
        change=quantise(4),
        variant={"fault": "accept-all"},
    ),
    "template-inverted": Upgrade(
        title="another chat template, and the acceptance ratio inverted",
        word=_BOTH,
        kind="the chat template gives other prompts",
        change=_change_template,
        variant={"fault": "inverted-ratio"},
    ),
    "slower-baseline": Upgrade(
        title="a target of four times as many layers, which add nothing but cost",
        word=_SLOWER,
        kind="SLOWER: the baseline;",
        engine={"padded-layers": 32},
        suites=_SPEED,
    ),
    "slower-verify": Upgrade(
        title="a verify step that waits", word=_SLOWER, kind="the verify step of draft-k3", variant={"fault": "slow-verify"}, suites=_SPEED
    ),
    "worse-drafter": Upgrade(
        title="the drafter's weights rounded to 2 bits",
        word=_SLOWER,
        kind="SLOWER: the drafter of draft-k3;",
        drafter=quantise(2),
        suites=_SPEED,
    ),
    "refused-bias": Upgrade(
        title="logit_bias is refused",
        word=_OFFERS_LESS,
        kind="now refuses logit_bias",
        variant={"variation": "refused-bias"},
        suites=_REQUESTS,
    ),
    "dropped-seed": Upgrade(
        title="a verify step that drops the seed",
        word=_BROKE,
        kind="1 new finding",
        variant={"fault": "seed-ignored"},
        suites=("greedy", "seeds"),
        depth="standard",
    ),
}


def main() -> int:
    """Print a line for each build. Returns 1 if one is attributed otherwise than it has to be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[*UPGRADES, []], help="of these builds alone")
    parser.add_argument("--write", action="store_true", help="keep the results under benchmarks/results")
    arguments = parser.parse_args()
    began_s, rows = time.monotonic(), []
    with tempfile.TemporaryDirectory() as folder:
        names = arguments.names or list(UPGRADES)
        ways = dict.fromkeys((UPGRADES[name].suites, UPGRADES[name].depth) for name in names)
        before = {way: Path(folder) / f"old-{number}" for number, way in enumerate(ways)}
        for (suites, depth), old in before.items():
            judge(Upgrade(title="before", word="", suites=suites, depth=depth), Path(folder) / f"before-{old.name}", old)
        for name in names:
            old = before[UPGRADES[name].suites, UPGRADES[name].depth]
            row = {"table": "upgrades", "form": name, **follow(UPGRADES[name], Path(folder) / name, old)}
            sys.stdout.write("  ".join(map(str, list(row.values())[1:])) + "\n")
            sys.stdout.flush()
            rows.append(row)
    if arguments.write:
        results.write("upgrades", rows, command="python -m benchmarks.upgrades --write", seconds=time.monotonic() - began_s)
    return int(any(not row["right"] for row in rows))


def follow(upgrade: Upgrade, folder: Path, old: Path) -> dict[str, object]:
    """Judge one build against the run ``old``; return its headline, and whether it is the right one."""
    code, output = judge(upgrade, folder, folder / "run", f"--specdec-against={old}")
    headline = next((line.removeprefix("UPGRADE: ") for line in output.splitlines() if line.startswith("UPGRADE: ")), output[-300:])
    headline = headline.replace(str(folder.parent), "")
    right = headline.startswith(upgrade.word) and upgrade.kind in headline and code == upgrade.code
    return {"build": upgrade.title, "headline": headline, "exit": code, "right": right}


def judge(upgrade: Upgrade, folder: Path, run: Path, *options: str) -> tuple[int, str]:
    """Capture and judge one build; return the session's exit code and output."""
    folder.mkdir()
    model = "target"
    if upgrade.change is not None:
        shutil.copytree(CHECKPOINTS / "target", folder / "target")
        upgrade.change(folder / "target")
        model = str(folder / "target")
    speculation = dict(_VARIANT)
    if upgrade.drafter is not None:
        shutil.copytree(CHECKPOINTS / "draft", folder / "draft")
        upgrade.drafter(folder / "draft")
        speculation["model"] = str(folder / "draft")
    timed = _TIMED if upgrade.suites == _SPEED else {}
    config = {
        "engine": {"kind": "reference", "model": model, "args": {"max-num-seqs": 32, "max-model-len": 1024, **timed, **upgrade.engine}},
        "variants": {"draft-k3": {"args": {"speculative-config": speculation, **upgrade.variant}}},
    }
    (folder / "upgrade.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        *(f"suites/{suite}" for suite in upgrade.suites),
        "-q",
        "-p",
        "no:cacheprovider",
        "--specdec-exit-codes",
    ]
    options = (*options, f"--specdec-config={folder / 'upgrade.yaml'}", f"--specdec-run-dir={run}", f"--specdec-depth={upgrade.depth}")
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=_RUN_S, check=False)
    return done.returncode, done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main())
