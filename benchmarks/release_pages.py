"""docs/releases: what the stored runs of released engines say, a page per engine, and since when each finding is there.

Written from the run.json files under docs/releases/runs and the findings of ``release_findings``; the same input gives the same pages.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.release_findings import FINDINGS, ReleaseFinding
from pytest_specdec.files import yaml
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.report import run as run_document
from pytest_specdec.report.run import PytestOutcome
from pytest_specdec.report.table import families

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from pytest_specdec.report.run import JudgementResult, Run

__all__ = [
    "FOLDER",
    "RUNS",
    "Release",
    "ReleasedEngine",
    "is_red",
    "list_unexplained",
    "page",
    "pages",
    "read_releases",
    "reason_path",
    "stored_path",
]

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "releases"
RUNS = FOLDER / "runs"
_HEAD = """\
# Releases of {title}, judged

Written by `python -m benchmarks.releases --engine {name}`, no part of it by hand. {about}

Each release and variant is a run of its own of `suites/configs/{config}.yaml`, at {depth} depth, {dates}, on {machine}.
A cell links to the run.json of its run, which `python -m pytest_specdec report` renders in any format.

- *ok*: all judgements of the family passed, or all but those that were refused; *ok in part*: others are open
- **wrong**, **not speculating**: the engine's fault. A letter names the finding below
- *refused*: such requests are answered with an error by design
- *open*: not decided, by too few answers at this depth or because the request has no effect on the baseline either
- *invalid*: the baseline itself fails, and no variant can be judged by it; *not captured*: the answers are missing

Neither speed nor a full cache is judged: of models of 4 M parameters a speed says nothing.
"""
_INDEX = """\
# Releases, judged

Released versions of real engines, each in an environment of its own, as released, without a GPU, serving the models of this repository.
Every red cell of the tables is explained by a finding, and every finding has the oldest and the newest release that shows it.
`python -m benchmarks.releases` makes the environments, runs the suites, stores every run.json, and writes these pages.

"""
_SINCE = """
*since* and *until* are the oldest and the newest of these releases with a run that shows it, *or before* where no older one
could show it. Another finding can hide one, and at smoke depth a rare one can be missed: *shown by* counts the releases that show it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedEngine:
    """What the page of an engine says beside its runs."""

    title: str
    config: str
    """Its name in suites/configs."""
    releases: tuple[str, ...]
    """The newest first."""
    about: str
    """What was installed, and how; whole sentences."""
    causes: Mapping[str, str] = field(default_factory=dict)
    """By release without a verdict, why it has none, where that was looked into."""

    @property
    def variants(self) -> tuple[str, ...]:
        """The variants of the config."""
        path = ROOT / "suites" / "configs" / f"{self.config}.yaml"
        read = yaml.load(path.read_text(encoding="utf-8"), str(path)).data
        assert isinstance(read, dict)
        assert isinstance(read["variants"], dict)
        return tuple(read["variants"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One release with the runs of its variants, or with the reason why it has none."""

    version: str
    runs: Mapping[str, Run]
    """By variant; those that came to a verdict."""
    reason: str = ""
    """The end of the log of a run that did not."""

    @property
    def red_judgements(self) -> tuple[JudgementResult, ...]:
        """The judgements that the page has to explain."""
        return tuple(judgement for run in self.runs.values() for judgement in run.judgements if is_red(judgement))


def stored_path(name: str, version: str, variant: str) -> Path:
    """Return where the run.json of one variant of a release is stored."""
    return RUNS / f"{name}-{version}-{variant}.json"


def reason_path(name: str, version: str) -> Path:
    """Return where the end of the log of a release without a verdict is stored."""
    return RUNS / f"{name}-{version}.txt"


def read_releases(name: str, engine: ReleasedEngine) -> tuple[Release, ...]:
    """Return the releases of which anything is stored, the newest first."""
    releases = [_read(name, version, engine.variants) for version in engine.releases]
    return tuple(release for release in releases if release.runs or release.reason)


def _read(name: str, version: str, variants: Iterable[str]) -> Release:
    paths = {variant: stored_path(name, version, variant) for variant in variants}
    runs = {variant: run_document.read(path.read_text(encoding="utf-8"), path.name) for variant, path in paths.items() if path.exists()}
    reason = reason_path(name, version)
    return Release(version=version, runs=runs, reason=reason.read_text(encoding="utf-8") if reason.exists() else "")


def pages(engines: Mapping[str, ReleasedEngine]) -> dict[Path, str]:
    """Return every page of docs/releases: one per engine with a stored run, and the index."""
    read = {name: read_releases(name, engine) for name, engine in engines.items()}
    read = {name: releases for name, releases in read.items() if any(release.runs for release in releases)}
    written = {FOLDER / f"{name}.md": page(name, engines[name], releases, FINDINGS[name]) for name, releases in read.items()}
    return written | {FOLDER / "index.md": _index(engines, read)}


def page(name: str, engine: ReleasedEngine, releases: Sequence[Release], findings: Sequence[ReleaseFinding]) -> str:
    """Return the page of one engine: a table per variant, the findings, and the runs without a verdict."""
    letters = {finding: chr(ord("a") + index) for index, finding in enumerate(f for f in findings if _showing(f, releases))}
    head = _HEAD.format(title=engine.title, name=name, about=engine.about, config=engine.config, **_conditions(releases))
    links = [
        f"[{release.version}-{variant}]: runs/{name}-{release.version}-{variant}.json" for release in releases for variant in release.runs
    ]
    parts = [
        head,
        *_variant_tables(releases, letters),
        *_finding_table(releases, letters),
        *_missing(name, engine, releases),
        *_list_not_run(engine, releases),
    ]
    return "\n".join([*parts, *links]) + "\n"


def _conditions(releases: Iterable[Release]) -> dict[str, str]:
    runs = [run for release in releases for run in release.runs.values()]
    environments = [run.environment for run in runs if run.environment]
    days = sorted({run.made_at[:10] for run in runs})
    machines = sorted({f"{each.cores} cores of an {each.processor} without a GPU" for each in environments})
    return {
        "depth": " and ".join(sorted({run.plan.depth.value for run in runs})),
        "machine": " and on ".join(machines),
        "dates": days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}",
    }


def _variant_tables(releases: Sequence[Release], letters: Mapping[ReleaseFinding, str]) -> Iterator[str]:
    runs = [run for release in releases for run in release.runs.values()]
    columns = [family for family in runs[0].plan.rows if any(family in families(run) for run in runs)]
    for variant in dict.fromkeys(variant for release in releases for variant in release.runs):
        rows = [_row(release.version, variant, release.runs[variant], columns, letters) for release in releases if variant in release.runs]
        yield f"## {variant}\n\n" + table(["release", *columns], rows)


def _row(version: str, variant: str, run: Run, columns: Iterable[str], letters: Mapping[ReleaseFinding, str]) -> list[str]:
    by_family = {family: [judgement for judgement in run.judgements if judgement.family == family] for family in columns}
    return [version, *(_cell(f"{version}-{variant}", judgements, letters) if judgements else "" for judgements in by_family.values())]


def _cell(link: str, judgements: Collection[JudgementResult], letters: Mapping[ReleaseFinding, str]) -> str:
    red = [judgement for judgement in judgements if is_red(judgement)]
    causes = [letter for finding, letter in letters.items() if any(map(finding.explains, red))]
    return " ".join([f"[{_word(judgements)}][{link}]", *causes])


_WORDS = {
    Outcome.FAIL: "**wrong**",
    Outcome.NOT_SPECULATING: "**not speculating**",
    Outcome.INVALID: "invalid",
    Outcome.SUSPICIOUS: "suspicious",
    Outcome.PASS: "ok",
    Outcome.INCONCLUSIVE: "open",
    Outcome.NOT_DECIDED: "open",
    Outcome.REFUSED: "refused",
}
"""Of each outcome; the first that a family has is that of its cell."""


_OPEN = frozenset({Outcome.INCONCLUSIVE, Outcome.NOT_DECIDED})


def _word(judgements: Collection[JudgementResult]) -> str:
    """Return the word for a family's judgements. Answers that are missing count before what passed, and after what is wrong."""
    outcomes = {judgement.verdict.outcome for judgement in judgements if judgement.verdict}
    worst = next((outcome for outcome in _WORDS if outcome in outcomes), None)
    errors = [judgement for judgement in judgements if judgement.verdict is None and judgement.result is PytestOutcome.ERROR]
    if worst is None or (errors and worst not in {Outcome.FAIL, Outcome.NOT_SPECULATING}):
        return _WORDS[Outcome.INVALID] if any(judgement.is_invalid for judgement in errors) else "not captured"
    return "ok in part" if worst is Outcome.PASS and outcomes & _OPEN else _WORDS[worst]


def is_red(judgement: JudgementResult) -> bool:
    """Return True if a judgement failed, or could not be made."""
    is_invalid = judgement.verdict is not None and judgement.verdict.outcome is Outcome.INVALID
    return judgement.has_fault or is_invalid or judgement.result is PytestOutcome.ERROR


def list_unexplained(releases: Iterable[Release], findings: Sequence[ReleaseFinding]) -> list[str]:
    """Return a line for each red judgement that no finding explains."""
    return [
        f"{release.version} {judgement.nodeid}: {_headline(judgement)}"
        for release in releases
        for judgement in release.red_judgements
        if not any(finding.explains(judgement) for finding in findings)
    ]


def _headline(judgement: JudgementResult) -> str:
    return judgement.verdict.headline if judgement.verdict else judgement.error.partition("\n")[0]


def _finding_table(releases: Sequence[Release], letters: Mapping[ReleaseFinding, str]) -> Iterator[str]:
    rows = [[letter, *_finding_row(finding, releases)] for finding, letter in letters.items()]
    if rows:
        yield "## Findings\n\n" + table(["", "finding", "variants", "since", "until", "shown by"], rows) + _SINCE


def _finding_row(finding: ReleaseFinding, releases: Sequence[Release]) -> list[str]:
    able = [release for release in releases if release.runs]
    judged = [release.version for release in able]
    showing = _showing(finding, releases)
    older = able[judged.index(showing[-1]) + 1 :]
    since = showing[-1] if older and _can_tell(older[0], _families(finding, releases)) else f"{showing[-1]} or before"
    until = f"{showing[0]}, the newest" if showing[0] == judged[0] else showing[0]
    variants = dict.fromkeys(judgement.pair for release in releases for judgement in release.red_judgements if finding.explains(judgement))
    text = f"{finding.title} ([evidence](../{finding.page}))" if finding.page else finding.title
    return [text, ", ".join(variants), since, until, f"{len(showing)} of {len(judged)}"]


def _showing(finding: ReleaseFinding, releases: Iterable[Release]) -> list[str]:
    """Return the releases with a red judgement that ``finding`` explains, in the order of ``releases``."""
    return [release.version for release in releases if any(map(finding.explains, release.red_judgements))]


def _families(finding: ReleaseFinding, releases: Iterable[Release]) -> frozenset[str]:
    """Return the families that show ``finding``."""
    return frozenset(str(judgement.family) for release in releases for judgement in release.red_judgements if finding.explains(judgement))


def _can_tell(release: Release, families_showing: frozenset[str]) -> bool:
    """Return True if a finding that these families show would show in the release: each of them was judged there."""
    judged = {str(judgement.family) for run in release.runs.values() for judgement in run.judgements if judgement.judged}
    return families_showing <= judged


def _missing(name: str, engine: ReleasedEngine, releases: Iterable[Release]) -> Iterator[str]:
    rows = [
        [
            release.version,
            f"[{engine.causes.get(release.version) or release.reason.strip().splitlines()[-1]}](runs/{name}-{release.version}.txt)",
        ]
        for release in releases
        if release.reason
    ]
    if rows:
        yield "## Releases without a verdict\n\n" + table(["release", "why, or the last line of its log"], rows)


def _list_not_run(engine: ReleasedEngine, releases: Iterable[Release]) -> Iterator[str]:
    stored = {release.version for release in releases}
    if versions := [version for version in engine.releases if version not in stored]:
        yield f"Not run yet: {', '.join(versions)}.\n"


def _index(engines: Mapping[str, ReleasedEngine], read: Mapping[str, Sequence[Release]]) -> str:
    rows = [_index_row(name, engines[name], releases) for name, releases in read.items()]
    return _INDEX + table(["engine", "releases judged", "variants", "findings", "in the newest", "last judged"], rows)


def _index_row(name: str, engine: ReleasedEngine, releases: Sequence[Release]) -> list[str]:
    judged = [release for release in releases if release.runs]
    showing = [versions for finding in FINDINGS[name] if (versions := _showing(finding, judged))]
    in_newest = sum(versions[0] == judged[0].version for versions in showing)
    variants = {variant for release in judged for variant in release.runs}
    date = max(run.made_at[:10] for release in judged for run in release.runs.values())
    span = f"{len(judged)}: {judged[-1].version} to {judged[0].version}"
    return [f"[{engine.title}]({name}.md)", span, str(len(variants)), str(len(showing)), str(in_newest), date]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)) + "\n"
