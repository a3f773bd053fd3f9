"""The pair of a test, read off its parameters."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytest_specdec.plugin.marker import pair_name


@pytest.mark.parametrize("params, name", [({"specdec_pair": "draft-k3"}, "draft-k3"), ({"n": 1}, ""), (None, "")])
def test_a_test_with_parameters_of_its_own_alone_has_no_pair(params, name):
    """Such as one of the baseline's live server."""
    assert pair_name(SimpleNamespace() if params is None else SimpleNamespace(callspec=SimpleNamespace(params=params))) == name
