"""What docs/ shows of the judges, and the schemas of the families, is what the package has today."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from benchmarks import example
from benchmarks.pages import FOLDER, PAGES, ROOT, computed, with_families

PICTURES = sorted((FOLDER / "pictures").glob("*.svg"))


def test_pictures_tables_and_schemas_are_what_the_command_writes():
    stale = [str(path.relative_to(ROOT)) for path, text in computed().items() if path.read_text(encoding="utf-8") != text]
    assert not stale, "run: python -m benchmarks.pages"


@pytest.mark.parametrize("gap, stale", [("", '"greedy", "tools"'), ("\n  ", '"greedy",\n  "tools"')], ids=["one line", "lines"])
def test_the_families_of_a_schema_are_written_anew_in_its_own_layout(gap, stale):
    text = with_families(f'{{"anyOf": [{{"enum": [{gap}{stale}]}}], "enum": ["greedy", "probabilistic"]}}')
    assert f'"greedy",{gap or " "}"sampling",{gap or " "}"parameters"' in text
    assert text.endswith('"enum": ["greedy", "probabilistic"]}')
    assert with_families(text) == text
    with pytest.raises(ValueError, match="begins with greedy"):
        with_families('{"enum": ["tools"]}')


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
