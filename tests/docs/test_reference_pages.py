"""The reference pages name everything there is: options, commands, fixtures, families, engines and exit codes."""

from __future__ import annotations

import re

import pytest

from benchmarks import reference_pages
from benchmarks.pages import FOLDER, ROOT
from pytest_specdec import plugin
from pytest_specdec.__main__ import main
from pytest_specdec.engines.registry import kinds
from pytest_specdec.model.families import FAMILIES
from pytest_specdec.report.run import RunClass

TABLES = reference_pages.tables()


def names(table: str) -> list[str]:
    """The first word in code of each row."""
    return re.findall(r"^\| \**`([^` ]+)", table, re.MULTILINE)


def page(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def test_every_option_that_pytest_knows_of_this_plugin_is_listed(pytestconfig):
    registered = {f"--{name.replace('_', '-')}" for name in vars(pytestconfig.option) if name.startswith("specdec_")}
    assert len(registered) > 10
    assert set(names(TABLES["options"])) == registered
    assert [pytestconfig.getini(name) for name in names(TABLES["ini"])] == ["reference", ""]


def test_every_command_is_listed_with_its_arguments(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    commands = re.findall(r"^    ([a-z]+) ", capsys.readouterr().out, re.MULTILINE)
    listed = names(TABLES["commands"])
    assert len(commands) > 5
    assert [name for name in listed if name in commands] == commands
    assert listed[listed.index("show") : listed.index("compare")] == ["show", "RUN", "TEST"]
    assert {"--engine", "--contract", "--shrink"} <= set(listed)
    codes = page("exit-codes.md").partition("## Commands")[2]
    assert set(re.findall(r"`([a-z]+)`", codes)) == set(commands)


def test_every_fixture_family_and_class_is_listed():
    assert names(TABLES["fixtures"]) == [name for name in vars(plugin) if name.startswith("specdec_")]
    assert names(TABLES["families"]) == list(FAMILIES)
    assert re.findall(r"`RESULT: ([a-z ]+)` \| (\d+)", TABLES["exit codes"]) == [
        (str(one), str(one.exit_code)) for one in sorted(RunClass, key=lambda one: one.exit_code)
    ]


def test_no_cell_is_empty_and_none_opens_a_tag():
    for name in TABLES.keys() - {"families"}:
        assert not re.search(r"\| +\|", TABLES[name]), name
        assert not re.search(r"<(?![^`|]*`)", TABLES[name]), name


def test_the_tables_that_are_written_by_hand_have_every_family_and_every_engine():
    assert re.findall(r"^\| (\w+) \|", page("families.md").partition("## How")[0], re.MULTILINE)[1:] == list(FAMILIES)
    assert set(names(page("engines.md"))) == {"kind", *kinds()} - {"attach", "reference"}


def test_the_readme_fits_three_screens_and_begins_with_the_install():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= 150
    assert readme.index("pip install") < 1500
