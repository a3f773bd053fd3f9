"""The site of docs/ builds strictly, shows every page in its navigation, and loads nothing over the network."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib

import pytest

from benchmarks.pages import FOLDER, ROOT

CONFIG = "zensical.toml"
LOADING = re.compile(
    r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=[\"']?((?:https?:)?//[^\"'\s>]+)|url\([\"']?((?:https?:)?//[^\"')]+)"
)
"""What a browser asks for by itself; a link that a reader may follow is none of it."""


def build(folder) -> subprocess.CompletedProcess[str]:
    """Build the site of the pages in ``folder`` as ``make docs`` does."""
    shutil.copy(ROOT / CONFIG, folder)
    argv = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    done.stderr = re.sub(r"\x1b\[[0-9;]*m", "", done.stderr)
    return done


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(FOLDER, folder / "docs")
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def test_every_page_is_in_the_navigation_once():
    pages = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.md") if "examples" not in path.parts)
    nav = tomllib.loads((ROOT / CONFIG).read_text(encoding="utf-8"))["project"]["nav"]
    assert sorted(targets(nav)) == pages, f"add a new page to nav in {CONFIG}"


def targets(entries) -> list[str]:
    values = [value for entry in entries for value in entry.values()]
    return [page for value in values for page in ([value] if isinstance(value, str) else targets(value))]


def test_it_builds_strictly_and_a_page_loads_nothing_over_the_network(site):
    files = [path for path in site.rglob("*") if path.suffix in {".html", ".css"}]
    assert len(files) > 40
    loaded = {path.name: LOADING.findall(path.read_text(encoding="utf-8")) for path in files}
    assert {name: found for name, found in loaded.items() if found} == {}


def test_lists_and_tables_within_lists_are_read_as_such(site):
    """A dialect that wants four spaces ends the list at three, and counts the next item as the first."""
    page = (site / "adding-a-fault.html").read_text(encoding="utf-8")
    (article,) = re.findall(r"<article.*?</article>", page, re.DOTALL)
    assert article.count("<ol>") == 1


def test_a_link_and_an_anchor_that_lead_nowhere_fail_the_build(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/words.md").write_text("# Words\n\n[a page](no-such-page.md), [an anchor](words.md#no-such-anchor)\n")
    done = build(tmp_path)
    assert done.returncode == 1
    assert ("page does not exist" in done.stderr, "anchor does not exist" in done.stderr) == (True, True)
