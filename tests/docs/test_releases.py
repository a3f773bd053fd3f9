"""docs/releases is what the stored runs say, and every red cell there has a finding."""

from __future__ import annotations

import re

import pytest

from benchmarks import release_pages
from benchmarks.release_findings import FINDINGS
from benchmarks.releases import ENGINES, MOST_BYTES

MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|home|root|tmp|opt|Users)/")
"""A folder of the machine that a run was made on."""


def test_the_pages_are_what_the_command_writes():
    written = release_pages.pages(ENGINES)
    assert set(release_pages.FOLDER.glob("*.md")) == set(written)
    stale = [path.name for path, text in written.items() if path.read_text(encoding="utf-8") != text]
    assert not stale, "run: python -m benchmarks.releases --pages"


@pytest.mark.parametrize("name", ENGINES)
def test_a_finding_explains_every_red_judgement(name):
    assert release_pages.list_unexplained(release_pages.read_releases(name, ENGINES[name]), FINDINGS[name]) == []


def test_the_evidence_of_every_finding_is_a_page():
    docs = release_pages.FOLDER.parent
    named = [finding.page.partition("#")[0] for findings in FINDINGS.values() for finding in findings if finding.page]
    assert [page for page in named if not (docs / page).is_file()] == []


def test_a_stored_run_is_small_names_no_folder_of_a_machine_and_is_of_a_listed_release():
    paths = {
        release_pages.stored_path(name, version, variant)
        for name, engine in ENGINES.items()
        for version in engine.releases
        for variant in engine.variants
    }
    paths |= {release_pages.reason_path(name, version) for name, engine in ENGINES.items() for version in engine.releases}
    stored = list(release_pages.RUNS.iterdir())
    assert [path.name for path in stored if path not in paths] == []
    assert [path.name for path in stored if path.stat().st_size > MOST_BYTES] == []
    assert [path.name for path in stored if MACHINE_PATH.search(path.read_text(encoding="utf-8"))] == []
