"""Which axis values a finding goes with: said only where they separate its cells exactly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_specdec.report.matrix_axes import describe, find_pattern
from tests.report.matrices import matrix_of

TWO = matrix_of(**{"async": ("on", "off")})
THREE = matrix_of(**{"async": ("on", "off"), "kv": ("auto", "fp8")})


def names(whole, **choices):
    """Return the cells with all of these values; each is a value, or several of one axis."""
    wanted = {axis: values if isinstance(values, tuple) else (values,) for axis, values in choices.items()}
    return {cell.name for cell in whole.cells if all(cell.choices[axis] in values for axis, values in wanted.items())}


def place(whole, red, clean=None):
    every = {cell.name for cell in whole.cells}
    return describe(find_pattern(red, every - red if clean is None else clean, whole.cells))


VARIANT_COUNTS = "variant: eagle3-k3 2 of 4, draft-k3 2 of 4, ngram-k4 0 of 4"
ONE_CELL = {"eagle3-k3--async-on--kv-auto"}
MIXED = names(THREE, variant="eagle3-k3", kv="fp8") | names(THREE, variant="draft-k3", kv="auto")


@pytest.mark.parametrize("whole, red, text", [
    (TWO, names(TWO, **{"async": "on"}), "red in all 3 cells with async=on, in none of the 3 with async=off"),
    (TWO, names(TWO, variant="ngram-k4"), "red in all 2 cells with variant=ngram-k4, in none of the other 4 cells"),
    (TWO, names(TWO, variant=("eagle3-k3", "draft-k3")), "red in none of the 2 cells with variant=ngram-k4, in all the other 4 cells"),
    (THREE, names(THREE, **{"async": "on", "kv": "fp8"}), "red in all 3 cells with async=on and kv=fp8, in none of the other 9 cells"),
    (THREE, ONE_CELL, "red in 1 of 12 cells: async=on, kv=auto, variant=eagle3-k3"),
    (TWO, names(TWO), "red in all 6 cells judged"),
    (THREE, MIXED, "red in 4 of 12 cells; async: on 2 of 6, off 2 of 6; kv: auto 2 of 6, fp8 2 of 6; " + VARIANT_COUNTS),
])  # fmt: skip
def test_where_a_finding_is_red_is_said_in_one_clause(whole, red, text):
    assert place(whole, red) == text


def test_cells_that_say_nothing_separate_nothing_and_are_counted():
    red = names(TWO, **{"async": "on"})
    clean = names(TWO, **{"async": "off"}) - {"draft-k3--async-off"}
    assert place(TWO, red, clean) == "red in all 3 cells with async=on, in none of the 2 with async=off (1 other cell counts neither way)"
    assert place(TWO, red, set()) == "red in all 3 cells judged (3 other cells count neither way)"
    assert place(TWO, red - {"draft-k3--async-on"}, clean).startswith("red in all 2 cells with async=on, ")
    assert place(TWO, {"draft-k3--async-on"}, set()) == "red in the one cell judged (5 other cells count neither way)"
    one = {"draft-k3--async-off"}
    assert place(TWO, red, one) == (
        "red in all 3 cells with async=on, not in the one cell with async=off (2 other cells count neither way)"
    )  # fmt: skip


@pytest.mark.parametrize("red, clean, text", [
    ({"variant": "eagle3-k3"}, {"variant": "draft-k3", "async": "on"},
     "red in all 2 cells with variant=eagle3-k3, not in the one cell with variant=draft-k3 (3 other cells count neither way)"),
    ({"variant": ("eagle3-k3", "draft-k3"), "async": "on"}, {"variant": "ngram-k4", "async": "on"},
     "red not in the one cell with variant=ngram-k4, in all the other 2 cells (3 other cells count neither way)"),
])  # fmt: skip
def test_one_clean_cell_is_said_in_the_singular(red, clean, text):
    assert place(TWO, names(TWO, **red), names(TWO, **clean)) == text


def test_a_pair_of_values_with_a_clean_cell_separates_nothing():
    red = names(THREE, **{"async": "on", "kv": "fp8"}) - {"draft-k3--async-on--kv-fp8"}
    assert place(THREE, red).startswith("red in 2 of 12 cells; async: on 2 of 6, off 0 of 6; ")


def test_axes_that_no_judged_cell_tells_apart_are_all_named():
    """Where only on with fp8 and off with auto are judged, nobody knows which of the two it is."""
    red = names(THREE, **{"async": "on", "kv": "fp8"})
    clean = names(THREE, **{"async": "off", "kv": "auto"})
    assert place(THREE, red, clean) == (
        "red in all 3 cells with async=on, in none of the 3 with async=off; the same cells are those with kv=fp8 "
        "(6 other cells count neither way)"
    )


def test_a_cell_red_by_another_fault_is_not_called_clean():
    pattern = find_pattern(names(TWO, **{"async": "on"}), {"draft-k3--async-off"}, TWO.cells)
    assert (len(pattern.red), pattern.clean, pattern.open) == (3, ("draft-k3--async-off",), 2)


@given(st.data())
def test_what_is_said_of_values_is_true_of_every_cell(data):
    """By counting the cells again, for any red and clean cells."""
    states = [data.draw(st.sampled_from(["red", "clean", "open"])) for _ in THREE.cells]
    cells = {state: [cell for cell, its in zip(THREE.cells, states, strict=True) if its == state] for state in ("red", "clean", "open")}
    pattern = find_pattern({cell.name for cell in cells["red"]}, {cell.name for cell in cells["clean"]}, THREE.cells)
    for separation in pattern.separations:
        for state in ("red", "clean"):
            for cell in cells[state]:
                has_all = all(cell.choices[choice.axis] == choice.value for choice in separation.choices)
                assert has_all == ((state == "red") != separation.is_inverted)
    if 1 < len(pattern.red) < len(pattern.red) + len(pattern.clean):
        by_value = {
            (axis, value): [
                cell.name for cell in THREE.cells if cell.name in {*pattern.red, *pattern.clean} and cell.choices[axis] == value
            ]
            for axis, values in THREE.axes.items()
            for value in values
        }
        exact = {choice for choice, with_it in by_value.items() if tuple(with_it) == pattern.red}
        assert exact == {
            (one.choices[0].axis, one.choices[0].value) for one in pattern.separations if len(one.choices) == 1 and not one.is_inverted
        }, "all of them are found"
    for count in pattern.counts:
        with_value = [cell for state in ("red", "clean") for cell in cells[state] if cell.choices[count.choice.axis] == count.choice.value]
        assert (count.red, count.cells) == (sum(cell in cells["red"] for cell in with_value), len(with_value))
    assert describe(pattern).isprintable()
