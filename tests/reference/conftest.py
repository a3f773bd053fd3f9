"""One server of each kind for the whole session."""

from __future__ import annotations

import pytest

from tests.reference.asgi_client import GREEDY, NGRAM, PROBABILISTIC, served


@pytest.fixture(scope="session")
def baseline():
    with served() as client:
        yield client


@pytest.fixture(scope="session")
def probabilistic():
    with served(PROBABILISTIC, spec_decode_metrics="detailed") as client:
        yield client


@pytest.fixture(scope="session")
def greedy_draft():
    with served(GREEDY) as client:
        yield client


@pytest.fixture(scope="session")
def ngram():
    with served(NGRAM, spec_decode_metrics="detailed") as client:
        yield client


@pytest.fixture(params=["baseline", "probabilistic", "greedy_draft", "ngram"])
def server(request):
    """Every kind of server in turn."""
    return request.getfixturevalue(request.param)
