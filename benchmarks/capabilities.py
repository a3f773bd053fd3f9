"""The capability matrix: ``python -m benchmarks.capabilities CONFIG`` asks real servers, ``--double NAME`` those of tests/engines/doubles.

Each run holds the contract (``doctor --contract``), stores its outcome as ``benchmarks/results/capabilities/ENGINE-VERSION.json``, and
writes docs/capabilities.md anew from all that is stored. Without arguments the page alone is written.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pytest_specdec.__main__ import main as specdec
from pytest_specdec.model.captured import FeatureSupport
from suites.contract import test_contract as suite
from suites.contract.parameters import PARAMETERS
from tests.engines.doubles import configs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = ["FOLDER", "PAGE", "add", "clauses", "page", "store", "stored"]

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "benchmarks" / "results" / "capabilities"
PAGE = ROOT / "docs" / "capabilities.md"
SEEN, READ = "seen", "read"
_PROBED = ("token_ids", "logprobs", "chat_logprobs", "stop", "seed", "top_p", "top_k", "json_object", "json_schema")
"""Features of the capability probe, without the routes to scores, which have clauses."""
_DEPTHS = {"completions": "`logprobs`, tokens listed", "chat": "`top_logprobs`, tokens listed"}
_HEAD = """\
# What each engine can do

Written by `python -m benchmarks.capabilities` from the stored outcomes of `python -m pytest_specdec doctor --contract`
(`benchmarks/results/capabilities/`), never by hand. *seen*: a real engine of that version answered. *read*: a double answered, which
behaves as the engine's sources say; it is evidence of our reading only, with the reference engine's model underneath.

"""
_CLAIMS = """
## What the adapters claim

Each clause of the contract, baseline / variant: *kept* by the server, **broken**, `-` where the adapter claims nothing, `?` where it could
not be checked, and nothing where the clause is not for that arm. Why is in the stored outcome.

"""
_REQUESTS = """
## What the servers do with requests

By effect, baseline / variant: *yes* is honoured, *no* refused with a 4xx, **ignored** answered with 200 and without effect, `?` where
neither showed. What needs an option of the server, such as a grammar back end, is judged as the config starts it. Nothing shows on an arm
whose greedy answers do not repeat. The refusals of a double are left out: it refuses what the model underneath has not.

"""
_REPEATS = "greedy repeats"
_MODEL_FOLDER = re.compile(r"(?<=model )\.{0,2}/\S*/")
_OUTCOMES = {"kept": "kept", "broken": "**broken**", "not claimed": "-", "could not be checked": "?"}
_SUPPORT = {
    FeatureSupport.HONOURED: "yes",
    FeatureSupport.REFUSED: "no",
    FeatureSupport.IGNORED: "**ignored**",
    FeatureSupport.UNKNOWN: "?",
}


def add(config: str, evidence: str, variant: str = "") -> Path:
    """Hold the contract of ``config`` and store its outcome as ``seen`` or ``read``; return the file."""
    with TemporaryDirectory() as folder:
        outcome = Path(folder) / "outcome.json"
        specdec(["doctor", config, "--contract", "--variant", variant, "--json", str(outcome)])
        return store(outcome.read_text(encoding="utf-8"), evidence)


def clauses() -> list[str]:
    """Return the name of every clause, in the order of the suite."""
    parts = (part for arm in (suite.TestBaseline, suite.TestVariant) for part in reversed(arm.__bases__))
    return list(dict.fromkeys(name.removeprefix("test_").replace("_", " ") for part in parts for name in vars(part) if name[:5] == "test_"))


def store(outcome: str, evidence: str) -> Path:
    """Store an outcome as ``doctor --contract --json`` writes it, without the folders of the machine's models; return the file."""
    document = {"evidence": evidence, **json.loads(_MODEL_FOLDER.sub("", outcome))}
    FOLDER.mkdir(parents=True, exist_ok=True)
    version = re.sub(r"[^\w.+-]+", "-", document["version"]).strip("-") or "unknown"
    path = FOLDER / f"{document['engine']}-{version}{'' if evidence == SEEN else '-double'}.json"
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return path


def stored(folder: Path = FOLDER) -> list[Mapping[str, object]]:
    """Return the stored outcomes, real engines first, each by name."""
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")]
    return sorted(documents, key=lambda document: (document["evidence"] != SEEN, document["engine"], document["version"]))


def page(documents: Sequence[Mapping]) -> str:
    """Return the page as Markdown."""
    names = ["", *(f"{_engine(document)}<br>*{document['evidence']}*" for document in documents)]
    claims = [[name, *(_claim(document, name) for document in documents)] for name in clauses()]
    requests = [[f"`{name}`", *(_support(document, name) for document in documents)] for name in (*_PROBED, *PARAMETERS)]
    requests += [[title, *(_depth(document, route) for document in documents)] for route, title in _DEPTHS.items()]
    requests += [["log-probabilities of the raw distribution", *map(_raw, documents)], ["ends the server", *map(_deadly, documents)]]
    return (
        _HEAD
        + _table(["engine", "evidence", "config", "arms", "date", "machine"], map(_source, documents))
        + (_CLAIMS + _table(names, claims) + _REQUESTS + _table(names, requests))
    )


def _engine(document: Mapping) -> str:
    return f"{document['engine']} {document['version']}".strip()


def _source(document: Mapping) -> list[str]:
    machine = document["environment"]
    where = ", ".join(machine["devices"]) or f"CPU, {machine['cores']} cores"
    arms = ", ".join(arm["arm"] for arm in document["arms"])
    return [_engine(document), f"*{document['evidence']}*", document["config"], arms, document["date"], where]


def _claim(document: Mapping, name: str) -> str:
    told = [[held["outcome"] for held in arm["clauses"] if held["name"] == name] for arm in document["arms"]]
    return _arms([_OUTCOMES[outcomes[0]] if outcomes else "" for outcomes in told])


def _support(document: Mapping, name: str) -> str:
    return _arms([_SUPPORT[_support_of(document, arm, name)] for arm in document["arms"]])


def _support_of(document: Mapping, arm: Mapping, name: str) -> FeatureSupport:
    """Return how an arm takes a parameter; unknown where what it answers says nothing of that."""
    repeats = all(held["outcome"] != "broken" for held in arm["clauses"] if held["name"] == _REPEATS)
    support = FeatureSupport((arm["survey"] or {}).get("support", {}).get(name, "unknown")) if repeats else FeatureSupport.UNKNOWN
    by_double = document["evidence"] == READ and support is FeatureSupport.REFUSED
    return FeatureSupport.UNKNOWN if by_double else support


def _depth(document: Mapping, route: str) -> str:
    return _surveyed(document, lambda survey: str(survey["depths"][route]))


def _raw(document: Mapping) -> str:
    return _surveyed(document, lambda survey: "yes" if survey["raw_logprobs"] else "no")


def _deadly(document: Mapping) -> str:
    return _surveyed(document, lambda survey: ", ".join(survey["deadly"]) or "nothing")


def _surveyed(document: Mapping, cell: Callable[[Mapping], str]) -> str:
    return _arms(["?" if arm["survey"] is None else cell(arm["survey"]) for arm in document["arms"]])


def _arms(cells: Sequence[str]) -> str:
    """Return one cell of baseline and variant: one word where both agree or one has none."""
    said = [cell for cell in cells if cell]
    return said[0] if len(set(said)) == 1 else " / ".join(said)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(["| " + " | ".join(row) + " |" for row in ([*head], ["---"] * len(head), *rows)]) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capabilities", description=__doc__)
    parser.add_argument("config", nargs="*", help="as --specdec-config: the pair of a real engine on this machine")
    parser.add_argument("--variant", default="", help="of the config, by default the first one")
    parser.add_argument(
        "--outcome", action="append", default=[], type=Path, help="of `doctor --contract --json`, of a real engine elsewhere"
    )
    parser.add_argument("--double", action="append", default=[], choices=list(configs.CONFIGS), help="a double in tests/engines/doubles")
    arguments = parser.parse_args(argv)
    for name in arguments.config:
        print(f"wrote {add(name, SEEN, arguments.variant)}")
    for outcome in arguments.outcome:
        print(f"wrote {store(outcome.read_text(encoding='utf-8'), SEEN)}")
    for name in arguments.double:
        with TemporaryDirectory() as folder:
            print(f"wrote {add(str(configs.write(name, Path(folder))), READ)}")
    PAGE.write_text(page(stored()), encoding="utf-8")
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
