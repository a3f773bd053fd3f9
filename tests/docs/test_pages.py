"""What docs/ shows of the judges is what they compute today."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from benchmarks import example
from benchmarks.pages import FOLDER, PAGES, computed

PICTURES = sorted((FOLDER / "pictures").glob("*.svg"))


def test_pictures_and_tables_are_what_the_command_writes():
    stale = [str(path.relative_to(FOLDER)) for path, text in computed().items() if path.read_text(encoding="utf-8") != text]
    assert not stale, "run: python -m benchmarks.pages"


def test_every_picture_is_shown_and_every_shown_one_exists():
    shown = {name for page in PAGES for name in re.findall(r"\(pictures/([^)]+)\)", (FOLDER / page).read_text(encoding="utf-8"))}
    assert shown == {path.name for path in PICTURES}


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_a_picture_is_plain_svg_with_a_title_and_text_as_text(path):
    root = ET.fromstring(path.read_text(encoding="utf-8"))
    marks = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert {"title", "text"} <= marks <= {"svg", "title", "style", "rect", "text", "polyline", "circle"}
    assert "prefers-color-scheme: dark" in root.findtext("{*}style", "")


@pytest.mark.parametrize("name", example.BETTORS)
def test_no_bettor_of_the_example_earns_anything_on_a_correct_server(name):
    assert example.fair(name) == pytest.approx(1.0)
