"""The example reports are what ``python -m pytest_specdec report docs/examples/vllm-* --format md,html,junit`` writes.

After a change of the first screen: ``chromium --headless --no-sandbox --hide-scrollbars --window-size=1000,640
--screenshot=docs/examples/report.png docs/examples/vllm-gpu/report.html``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_specdec.report import html, junit, markdown, run
from pytest_specdec.report.run import RunClass

EXAMPLES = Path(__file__).parents[2] / "docs/examples"
CLASSES = {"vllm-cpu": RunClass.CLEAN, "vllm-gpu": RunClass.FINDING, "vllm-gpu-wide": RunClass.FINDING}


@pytest.mark.parametrize("name", CLASSES)
def test_an_example_is_what_the_command_writes(name):
    stored = run.read((EXAMPLES / name / "run.json").read_text(encoding="utf-8"), name)
    for target, form in (("report.md", markdown), ("report.html", html), ("junit.xml", junit)):
        assert (EXAMPLES / name / target).read_bytes().decode("utf-8") == form.render(stored)
    assert stored.run_class is CLASSES[name]


def test_no_example_is_left_over():
    assert {path.name for path in EXAMPLES.iterdir() if path.is_dir()} == set(CLASSES)
