"""The matrix of parameters: the worst that a workload shows, by arm, in every report."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pytest_specdec.report import markdown, parameter_table, terminal
from pytest_specdec.report.run import document


@pytest.fixture
def run(make_run, verdicts, judged):
    def with_parameters(*parameters, **fields):
        return make_run(*(judged(replace(verdicts["greedy"], parameters=each)) for each in parameters), **fields)

    return with_parameters


HONOURED = {"baseline": {"top_k": "honoured", "min_p": "honoured"}, "draft-k3": {"top_k": "honoured", "min_p": "refused"}}


def test_the_worst_of_several_workloads_stands(run):
    other = {"baseline": {"top_k": "did not bind", "min_p": "not asked"}, "draft-k3": {"top_k": "ignored", "seed": "not asked"}}
    shown = run(other, HONOURED)
    assert parameter_table.effects(shown) == {
        "baseline": {"top_k": "honoured", "min_p": "honoured"},
        "draft-k3": {"top_k": "ignored", "min_p": "refused", "seed": "not asked"},
    }
    assert parameter_table.rows(shown) == (
        ("parameter", "baseline", "draft-k3"),
        ("top_k", "honoured", "ignored"),
        ("min_p", "honoured", "refused"),
    )


def test_a_word_of_another_release_is_shown_where_nothing_else_is_known(run):
    assert parameter_table.effects(run({"baseline": {"top_k": "bent"}})) == {"baseline": {"top_k": "bent"}}


def test_without_parameters_there_is_no_matrix(run):
    shown = run({}, {"baseline": {"top_k": "not asked"}})
    assert (parameter_table.rows(shown), parameter_table.not_honoured_line(parameter_table.effects(run({})))) == ((), "")


def test_every_document_has_it(run):
    shown = run(HONOURED)
    assert r"| min\_p | honoured | refused |" in markdown.render(shown)
    assert json.loads(json.dumps(document(shown)))["parameters"] == HONOURED


def test_it_comes_without_probed_features_too(run):
    text = markdown.render(run(HONOURED, capabilities={}))
    assert text.count("### Capabilities") == 1
    assert r"| min\_p |" in text


def text_of(shown):
    return "\n".join("".join(piece.text for piece in line) for line in terminal.lines(shown))


def test_the_terminal_says_in_one_line_what_is_not_honoured(run):
    assert "parameters not honoured: min_p refused by draft-k3" in text_of(run(HONOURED)).splitlines()
    assert "parameters not honoured" not in text_of(run({"baseline": {"top_k": "honoured"}}))


def test_the_terminal_shows_the_matrix_where_all_is_asked_for(run):
    lines = [line.split() for line in text_of(replace(run(HONOURED), verbose=True)).splitlines()]
    assert ["parameter", "baseline", "draft-k3"] in lines
    assert ["min_p", "honoured", "refused"] in lines
