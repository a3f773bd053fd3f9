"""The page in a real, headless Chromium: what a reader, a keyboard, a narrow screen, a printer and a screen reader get of it."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_specdec.report import html, html_page
from pytest_specdec.report.run import PytestOutcome
from tests.report.runs import FAILED, HOSTILE, MIXED, judgement

ROOT = Path(__file__).parents[2]
MODULES, SCRIPT = ROOT / ".browser", Path(__file__).parent / "browser/inspect.mjs"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is here: apt-get install chromium"),
    pytest.mark.skipif(not MODULES.exists(), reason="what drives Chromium is not here: make browser-env"),
    pytest.mark.skipif(shutil.which("node") is None, reason="node is not here: apt-get install nodejs"),
]
ATTACK = (
    f'{HOSTILE}</pre></style><img src="https://example.invalid/x" onerror="console.error(1)"><script>console.error(2)</script>{"x" * 400}'
)
EXAMPLES = ("vllm-gpu", "vllm-gpu-wide", "vllm-cpu")
FAULTS = {
    "console": ("<h1>", "<script>console.error('planted')</script><h1>"),
    "requests": ("<h1>", '<img src="https://example.invalid/planted.png" alt=""><h1>'),
    "overflow": ("<h1>", '<div style="width: 500px">planted</div><h1>'),
    "cut": ("<h1>", '<div style="width: 900px">planted</div><h1>'),
    "accessibility": ("<h1>", '<p style="color: #999; background: #bbb">planted</p><h1>'),
    "unmarked": (":focus-visible { outline: 2px", ":focus-visible { outline: 0px"),
    "unreached": ("<h1>", '<button tabindex="-1">planted</button><h1>'),
    "opens_by_key": ("<summary>", "<summary hidden>planted</summary><summary>"),
    "readable_without_script": ("<h1>", "<noscript>planted</noscript><h1>"),
}
"""What each field of the script's answer is there to find, put into a page."""


def hostile_page():
    fields = {"headline": ATTACK, "short": (ATTACK,), "evidence": (ATTACK,), "names": ATTACK, "cell": ATTACK}
    attacked = replace(MIXED, judgements=(*MIXED.judgements, judgement(replace(FAILED, **fields), PytestOutcome.FAILED)), notes=(ATTACK,))
    return html.render(attacked)


def inspect(pages):
    """Return what the script found in each of the pages, by path."""
    argv = ["node", SCRIPT, MODULES, CHROMIUM, *pages]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def inspected(tmp_path_factory):
    hostile = tmp_path_factory.mktemp("page") / "hostile.html"
    hostile.write_text(hostile_page(), encoding="utf-8")
    found = inspect([*(ROOT / "docs/examples" / name / "report.html" for name in EXAMPLES), hostile])
    return dict(zip((*EXAMPLES, "hostile"), found.values(), strict=True))


@pytest.mark.parametrize("name", [*EXAMPLES, "hostile"])
@pytest.mark.parametrize("claim", ["console", "requests", "overflow", "cut", "accessibility", "unreached", "unmarked"])
def test_a_page_has_nothing_wrong(inspected, name, claim):
    assert inspected[name][claim] == []


@pytest.mark.parametrize("name", [*EXAMPLES, "hostile"])
def test_a_page_is_read_without_script_by_keyboard_and_on_paper(inspected, name):
    page = inspected[name]
    assert page["readable_without_script"]
    assert page["opens_by_key"]
    assert page["reached"] >= 5
    assert page["scripts"] == 0
    assert page["pdf_is_pdf"]
    assert page["pdf_bytes"] > 10_000


def test_the_inspection_finds_what_is_planted(tmp_path):
    """Without the page's own policy, which would stop the first two."""
    text = (ROOT / "docs/examples/vllm-gpu/report.html").read_text(encoding="utf-8").replace(html_page.POLICY, "")
    for name, (old, new) in FAULTS.items():
        assert old in text
        (tmp_path / f"{name}.html").write_text(text.replace(old, new, 1), encoding="utf-8")
    found = inspect([tmp_path / f"{name}.html" for name in FAULTS])
    by_name = {Path(path).stem: page for path, page in found.items()}
    clean = {"opens_by_key": True, "readable_without_script": True}
    assert [name for name in FAULTS if by_name[name][name] == clean.get(name, [])] == []
