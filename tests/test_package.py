from __future__ import annotations

import pytest

import pytest_specdec
from pytest_specdec import errors
from pytest_specdec.errors import ConfigError, SpecdecError


def test_public_names_load_on_first_use():
    for name in pytest_specdec.__all__:
        assert getattr(pytest_specdec, name).__name__ == f"pytest_specdec.{name}"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'judges'"):
        pytest_specdec.judges  # noqa: B018 - the access is the test


@pytest.mark.parametrize("module", [pytest_specdec, errors], ids=lambda m: m.__name__)
def test_exports_are_sorted(module):
    assert module.__all__ == sorted(module.__all__)


def test_every_error_is_one_of_ours_and_drawn_in_the_tree():
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), SpecdecError)
        assert name in errors.__doc__


def test_an_error_says_what_where_found_expected_and_remedy():
    error = ConfigError("the config is wrong", where="a.yaml:3", found="'modle'", expected="'model'", remedy="rename it\nand try again")
    assert str(error).splitlines() == [
        "the config is wrong",
        "  where:    a.yaml:3",
        "  found:    'modle'",
        "  expected: 'model'",
        "  remedy:   rename it",
        "            and try again",
    ]
