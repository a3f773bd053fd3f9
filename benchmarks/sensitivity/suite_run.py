"""A run of the suites against several variants of the reference engine over one baseline, and what they came to."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.sensitivity.ordinary import SEED
from pytest_specdec.files import yaml
from pytest_specdec.model.workload import Family

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.model.workload import JSON
    from specdec_reference.faults.planted import PlantedFault

__all__ = ["DRAFT", "NGRAM", "ROOT", "Judged", "SuiteRun", "families", "planted"]

ROOT = Path(__file__).parents[2]
DRAFT: Mapping[str, JSON] = {
    "speculative-config": {
        "method": "draft_model",
        "model": "draft",
        "num_speculative_tokens": 3,
        "draft_sample_method": "probabilistic",
    }
}
NGRAM: Mapping[str, JSON] = {
    "speculative-config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
}
_TIMED = ("answers_come_sooner",)
"""Tests that are left out but for faults of time: without idle layers nothing is expected of the time that answers take."""
_IDLE: Mapping[str, JSON] = {"args": {"padded-layers": 24}}
"""A config's ``speed:``, with which a step takes as long as in a larger model."""
_SERVERS = 16
"""Servers at once, enough for all of a batch; one at a time where minutes of traffic have to reach a number of requests."""
_PLUGINS = ("-p", "benchmarks.sensitivity.ordinary", "-p", "no:cacheprovider")
_REASONING = {"reasoning-end": '":'}
"""An argument with which the small model reasons: up to its first key."""
_BOTH = {"tokens": 96, "template": [{"enable_thinking": True}, {"enable_thinking": False}]}
"""A config's ``reasoning:``; every prompt is asked with reasoning or without."""


def families() -> tuple[str, ...]:
    """Return the families that have a suite."""
    return tuple(sorted(family.value for family in Family if [*(ROOT / "suites" / family).glob("test_*.py")]))


def planted(fault: PlantedFault) -> dict[str, JSON]:
    """Return the arguments of a variant with a fault."""
    return {"speculative-config": {**DRAFT["speculative-config"], **fault.drafting}, "fault": fault.id}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One judgement of a variant."""

    family: str
    workload: str
    outcome: str
    """The verdict's; that of the test where there is no verdict."""
    name: str = ""
    headline: str = ""
    tokens: int = 0
    """That the alarm took, or that were judged."""

    @property
    def red(self) -> bool:
        """Whether the server is called wrong."""
        return self.outcome in {"fail", "not speculating"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteRun:
    """Variants of the reference engine that the suites judge together, each by the shares of an ordinary run."""

    name: str
    variants: Mapping[str, Mapping[str, JSON]]
    """By variant: its arguments."""
    seed: int = 1
    depth: str = "standard"
    families: tuple[str, ...] = field(default_factory=families)
    engine: Mapping[str, JSON] = field(default_factory=dict)
    """Arguments of both arms, on top of the usual ones."""
    reasons: bool = False
    """Whether answers begin with reasoning, where they are asked to."""
    timed: bool = False
    """Whether answers are timed too."""
    minutes: float = 0.0
    """Minutes of the same traffic, which only deep depth sends; 0 for none."""

    def config(self) -> dict[str, JSON]:
        """Return the config; idle layers are in boots that time answers alone: they never change which tokens come out."""
        settings = {**self.engine, **(_REASONING if self.reasons else {})}
        args = {"max-num-seqs": 32, "max-model-len": 1024, "seed": self.seed, **settings}
        return {
            **({"reasoning": _BOTH} if self.reasons else {}),
            "engine": {"kind": "reference", "model": "target", "args": args},
            "variants": {name: {"args": dict(given)} for name, given in self.variants.items()},
            **({} if self.minutes else {"placement": "side-by-side", "limits": {"servers": _SERVERS}}),
            **({"speed": _IDLE} if self.timed else {}),
            **({"endurance": {"minutes": self.minutes}} if self.minutes else {}),
        }

    def capture(self, folder: Path) -> Path:
        """Run the suites below ``folder`` and return the run directory; a run that was interrupted goes on."""
        folder.mkdir(parents=True, exist_ok=True)
        config, run = folder / f"{self.name}.yaml", folder / self.name
        config.write_text(yaml.dump(self.config()))
        where = ["--specdec-resume" if (run / "plan.json").exists() else "--specdec-run-dir", str(run)]
        seconds = self._suites(folder, f"--specdec-config={config}", f"--specdec-depth={self.depth}", *where)
        with (folder / f"{self.name}.seconds").open("a") as file:
            file.write(f"{seconds:.1f}\n")
        return run

    def judge_again(self, folder: Path) -> None:
        """Judge the run below ``folder`` by the judges of now; what was captured stays."""
        run, judged = folder / self.name, folder / f"{self.name}-judged"
        shutil.rmtree(judged, ignore_errors=True)
        self._suites(folder, f"--specdec-replay={run}", f"--specdec-run-dir={judged}")
        shutil.copy(judged / "run.json", run / "run.json")
        shutil.rmtree(judged)

    def _suites(self, folder: Path, *options: str) -> float:
        """Run the suites and return the seconds that they took."""
        suites = [str(ROOT / "suites" / family) for family in self.families]
        left_out = () if self.timed else ("-k", f"not {' and not '.join(_TIMED)}")
        environment = {key: value for key, value in os.environ.items() if key != "SPECDEC_FAULT"} | {SEED: str(self.seed)}
        began_s = time.monotonic()
        with (folder / f"{self.name}.log").open("a") as log:
            subprocess.run(
                [sys.executable, "-m", "pytest", *suites, *options, *left_out, *_PLUGINS, "-q"],
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
            )
        return time.monotonic() - began_s

    def seconds(self, folder: Path) -> float:
        """Return what its sessions took together."""
        return sum(map(float, (folder / f"{self.name}.seconds").read_text().split()))

    def judged(self, folder: Path) -> dict[str, tuple[Judged, ...]]:
        """Return the judgements by variant. Raises FileNotFoundError where the suites came to none."""
        document = json.loads((folder / self.name / "run.json").read_text())
        found: dict[str, list[Judged]] = {name: [] for name in self.variants}
        for one in document["judgements"]:
            if one["pair"] in found:
                found[one["pair"]].append(_judged(one))
        return {name: tuple(several) for name, several in found.items()}


def _judged(judgement: Mapping[str, JSON]) -> Judged:
    family, workload, verdict = str(judgement["family"]), str(judgement["workload"]), judgement["verdict"]
    if not isinstance(verdict, dict):
        return Judged(family=family, workload=workload, outcome=str(judgement["result"]))
    figures = verdict["figures"]
    assert isinstance(figures, dict)
    tokens = figures.get("tokens_to_alarm", figures.get("tokens", 0))
    return Judged(
        family=family,
        workload=workload,
        outcome=str(verdict["outcome"]),
        name=str(verdict["names"]),
        headline=str(verdict["headline"]),
        tokens=int(float(str(tokens))),
    )
