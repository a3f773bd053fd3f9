"""Laws of a draft slot at which a random number serves twice, against servers that draw so."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_specdec.stats.alternatives import ratio, residual
from pytest_specdec.stats.draws import Reuse, draw, id_order
from pytest_specdec.stats.panel import REUSED
from pytest_specdec.stats.reused import decided_by_the_draft, recovered_by_the_rejection

P = np.array([[0.4, 0.25, 0.2, 0.15, 0.0]])
Q = np.array([[0.1, 0.45, 0.05, 0.4, 0.0]])
IDS = np.array([[30, 10, 40, 20]])


@pytest.mark.parametrize("reuse, law", [(Reuse.DRAFT, decided_by_the_draft), (Reuse.RECOVERY, recovered_by_the_rejection)])
def test_the_law_is_that_of_a_server_that_draws_so(reuse, law):
    assert REUSED[reuse.value] is law
    servers = 200_000
    order = np.array([[1, 3, 0, 2, 4]])
    wide = [np.repeat(each, servers, axis=0) for each in (Q, ratio(P, Q), residual(P, Q), order)]
    drawn = draw(
        np.random.default_rng(1),
        reuse,
        q=wide[0],
        accept=wide[1],
        otherwise=wide[2],
        verify=np.ones(servers, dtype=np.bool_),
        order=wide[3],
        shared=np.zeros(servers),
    )
    seen = np.bincount(drawn.token, minlength=5) / servers
    m = law(P, Q, IDS, 64)[0]
    assert np.abs(seen - m).max() < 4 * 0.5 / np.sqrt(servers)
    assert np.abs(m - P[0]).max() > 0.03


def test_the_order_is_that_of_the_simulation():
    assert id_order(IDS)[0, :4].tolist() == [1, 3, 0, 2]


@pytest.mark.parametrize("law", REUSED.values(), ids=REUSED)
@pytest.mark.parametrize("seed", range(8))
def test_laws_are_laws_whatever_the_tail(law, seed):
    random = np.random.default_rng(seed)
    p, q = random.dirichlet(np.full(7, 0.4), size=(2, 50))
    ids = np.argsort(random.random((50, 40)), axis=1)[:, :6]
    m = law(p, q, ids, 40)
    assert m.sum(axis=1) == pytest.approx(1.0)
    assert (m >= 0).all()


@pytest.mark.parametrize("law", REUSED.values(), ids=REUSED)
def test_without_a_rejection_there_is_nothing_to_reuse(law):
    p = np.array([[0.0, 1.0, 0.0]])
    assert law(p, p, np.array([[7, 3]]), 10)[0] == pytest.approx(p[0])
