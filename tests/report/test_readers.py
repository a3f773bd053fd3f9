"""Reports, gates and the plugin ask a verdict for types, never for keys of its figures or words of its headline."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import pytest_specdec

ROOMS = ("report", "gates", "plugin")
WAIVED = "waiver.words"
"""A user's own words, which a waiver matches against names and headline."""
LISTED = "verdict.figures.items()"
"""All figures alike, by no name."""


def offences(source):
    """Return where figures are read by name, and where a text is looked for in a headline or names."""
    tree = ast.parse(source)
    listed = {id(node.func.value) for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node) == LISTED}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "figures" and id(node) not in listed:
            yield f"line {node.lineno}: {ast.unparse(node)}"
        if isinstance(node, ast.Compare) and ast.unparse(node.left) != WAIVED:
            words = [one for one in ast.walk(node) if isinstance(one, ast.Attribute) and one.attr in {"headline", "names"}]
            if words and any(isinstance(operator, (ast.In, ast.NotIn, ast.Eq, ast.NotEq)) for operator in node.ops):
                yield f"line {node.lineno}: {ast.unparse(node)}"


def test_no_reader_decides_by_a_figure_or_a_sentence():
    package = Path(pytest_specdec.__file__).parent
    paths = [path for room in ROOMS for path in sorted((package / room).glob("*.py"))]
    found = {str(path.relative_to(package)): list(offences(path.read_text(encoding="utf-8"))) for path in paths}
    assert not {path: lines for path, lines in found.items() if lines}


@pytest.mark.parametrize("line", [
    "if 'kinds' in verdict.figures: pass",
    "total = verdict.figures['tokens']",
    "total = verdict.figures.get('tokens', 0.0)",
    "figures = verdict.figures if verdict else {}",
    "is_worse = 'the drafter got worse' in verdict.headline",
    "is_worse = any(finding in verdict.headline for finding in findings)",
    "is_noisy = verdict.names == TOO_NOISY",
])  # fmt: skip
def test_the_rule_itself_can_fail(line):
    assert list(offences(line))
