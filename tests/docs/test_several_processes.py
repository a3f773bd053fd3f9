"""The configs on the page about servers of several processes are configs, but for the variants that some leave out."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from pytest_specdec.config import load

PAGE = Path(__file__).parents[2] / "docs" / "several-processes.md"
BLOCKS = [textwrap.dedent(block) for block in re.findall(r"(?:^    .*\n)+", PAGE.read_text(encoding="utf-8"), re.MULTILINE)]


@pytest.mark.parametrize("block", BLOCKS)
def test_an_example_loads(block, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(block if "variants:" in block else f"{block}variants: {{v: {{}}}}\n")
    config = load.load(path)
    assert config.stack or config.variants[0].metrics_url
