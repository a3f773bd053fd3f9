"""``matrix.json``: what a run of a matrix holds, and what is no such run."""

from __future__ import annotations

import json

import pytest

from pytest_specdec.errors import RunError
from pytest_specdec.files import matrix_run
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.matrix import Cell, Group, Matrix
from pytest_specdec.model.matrix_run import GroupRun
from pytest_specdec.model.workload import Depth


def group(name, *variants):
    cells = (Cell(name=f"{variant}--{name}", variant=variant, choices={"async": name, "variant": variant}) for variant in variants)
    return Group(name=name, cells=tuple(cells))


MATRIX = Matrix(axes={"async": ("on", "off"), "variant": ("a", "b")}, groups=(group("on", "a", "b"), group("off", "a", "b")))
TEXT = "engine: vllm\nheaders: {x: ${KEY}, y: hunter2000}\n"
RUN = matrix_run.new_run(config="c", text=TEXT, matrix=MATRIX, cells=("b--on", "a--off"), depth=Depth.SMOKE, workloads={"chat": "0a"})


def test_a_session_has_a_directory_for_each_group_with_a_chosen_cell():
    assert RUN.groups == {"on": GroupRun(group="on", cells=("b--on",)), "off": GroupRun(group="off", cells=("a--off",))}
    assert RUN.captured == ("b--on", "a--off")
    assert RUN.missing == ("a--on", "b--off")
    chosen = matrix_run.new_run(config="c", text=TEXT, matrix=MATRIX, cells=["a--off"], depth=Depth.SMOKE, workloads={})
    assert [*chosen.groups] == ["off"]


def test_a_run_of_a_matrix_survives(tmp_path):
    assert not matrix_run.is_matrix_run(tmp_path)
    matrix_run.write(tmp_path, RUN)
    assert matrix_run.is_matrix_run(tmp_path)
    assert matrix_run.read(tmp_path) == RUN
    assert matrix_run.group_directory(tmp_path, "on") == tmp_path / "groups" / "on"


def test_the_folder_of_the_runs_is_outside_of_a_matrix_and_of_a_run_of_two_engines(tmp_path):
    matrix_run.write(tmp_path / "whole", RUN)
    (tmp_path / "two").mkdir()
    (tmp_path / "two/plan.json").touch()
    for place in ("run", "whole/groups/on", "two/old"):
        assert matrix_run.runs_folder(tmp_path / place) == tmp_path
    assert matrix_run.runs_folder(tmp_path / "none/groups/on") == tmp_path / "none/groups"


def test_secrets_are_masked_in_the_text_and_the_names_stay(tmp_path):
    matrix_run.write(tmp_path, RUN, Secrets(values=("hunter2000", "b--on")))
    stored = matrix_run.read(tmp_path)
    assert "hunter2000" not in (tmp_path / "matrix.json").read_text()
    assert stored.captured == RUN.captured
    assert stored.config_digest == RUN.config_digest, "equal on machines with other secrets"


@pytest.mark.parametrize("groups, found", [
    ({"../../etc": GroupRun(group="on", cells=("a--on",))}, "a directory called '../../etc'"),
    ({"on.x": GroupRun(group="on", cells=("a--on",))}, "a directory called 'on.x'"),
    ({"on": GroupRun(group="in", cells=("a--on",))}, "on is of a group 'in'"),
    ({"on": GroupRun(group="on", cells=("a--off",))}, "on has a cell 'a--off'"),
    ({"on": GroupRun(group="on", cells=())}, "on has no cell"),
    ({"on": GroupRun(group="on", cells=("a--on",)), "on.2": GroupRun(group="on", cells=("a--on",))}, "the cell a--on stands 2 times"),
])  # fmt: skip
def test_a_document_that_contradicts_its_matrix_is_refused(tmp_path, groups, found):
    matrix_run.write(tmp_path, RUN)
    document = json.loads((tmp_path / "matrix.json").read_text())
    document["groups"] = {name: {"group": part.group, "cells": list(part.cells)} for name, part in groups.items()}
    (tmp_path / "matrix.json").write_text(json.dumps(document))
    with pytest.raises(RunError) as caught:
        matrix_run.read(tmp_path)
    assert (caught.value.found, caught.value.where) == (found, str(tmp_path / "matrix.json"))


def test_what_is_no_run_of_a_matrix_is_named(tmp_path):
    matrix_run.write(tmp_path / "shard", RUN)
    one_group, ordinary = tmp_path / "shard/groups/on", tmp_path / "ordinary"
    for folder in (one_group, ordinary):
        folder.mkdir(parents=True)
        (folder / "plan.json").write_text("{}")
    (tmp_path / "file").touch()
    for path, found in {
        one_group: "the run of one group",
        ordinary: "an ordinary run, without matrix.json",
        tmp_path: "no matrix.json",
        tmp_path / "gone": "no such folder",
        tmp_path / "file": "a file",
    }.items():
        with pytest.raises(RunError, match="no run of a matrix") as caught:
            matrix_run.read(path)
        assert caught.value.found == found
    with pytest.raises(RunError, match=r"shard$"):
        matrix_run.read(one_group)


def test_a_newer_release_is_named(tmp_path):
    matrix_run.write(tmp_path, RUN)
    text = (tmp_path / "matrix.json").read_text()
    (tmp_path / "matrix.json").write_text(text.replace("matrix:1", "matrix:2"))
    with pytest.raises(RunError, match="a newer release wrote this run"):
        matrix_run.read(tmp_path)
