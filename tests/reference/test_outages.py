"""Outages come at the traffic that their row names, and at no other."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest

from specdec_reference.emission import EmittedToken
from specdec_reference.faults import catalogue, outages
from specdec_reference.openai_request import EngineRequest
from specdec_reference.rejection_sampler import DraftProposal, VerifyWindows
from tests.reference.faulty_methods import verified, with_fault

WINDOWS = VerifyWindows(accepted=np.array([3, 0]), last=np.array([5, 6]))


@pytest.fixture(autouse=True)
def ends(monkeypatch):
    """Every death and silence, in order."""
    seen = []
    monkeypatch.setattr("os.kill", lambda *_: seen.append("died"))
    monkeypatch.setattr(outages, "_hang_forever", lambda: seen.append("hung"))
    monkeypatch.setattr(outages, "_admitted", count(1))
    return seen


class Row(SimpleNamespace):
    """A sequence that a weak dictionary can hold."""

    __hash__ = object.__hash__


def row(tokens=1, *, grammar=None, **fields):
    request = EngineRequest(**{"prompt": (1,), "max_tokens": 9, "temperature": 1.0, **fields})
    return Row(request=request, emitted=[7] * tokens, grammar=grammar)


def planted(fault):
    return catalogue.rules(fault, speculating=True)


def step(fault, *rows):
    assert verified(fault, rows, None, WINDOWS) is WINDOWS


def test_a_server_dies_at_the_number_of_a_request(ends):
    for number in range(1, 2 * outages._REQUESTS):
        with_fault("die-after-requests", "engine.sequences", lambda request, tell: None)(row().request, None)
        assert bool(ends) is (number >= outages._REQUESTS)
    assert ends == ["died"]


@pytest.mark.parametrize("fault, ending", [("die-in-long-answer", "died"), ("hang-in-long-answer", "hung")])
def test_only_long_answers_end_it(fault, ending, ends):
    step(fault, row(outages._LONG - 1))
    assert not ends
    step(fault, row(), row(outages._LONG))
    assert ends == [ending]


def test_greedy_requests_alone_hang(ends):
    step("hang-on-first-greedy", row())
    assert not ends
    step("hang-on-first-greedy", row(), row(temperature=0.0))
    assert ends == ["hung"]


def test_two_documents_at_once_kill_and_one_does_not(ends):
    step("die-on-documents-together", row(grammar=object()), row())
    assert not ends
    step("die-on-documents-together", row(grammar=object()), row(grammar=object()))
    assert ends == ["died"]


@pytest.mark.parametrize(
    "grammar, eos, left, dies", [("g", True, 2, True), ("g", True, 1, False), ("g", False, 2, False), (None, True, 2, False)]
)
def test_drafts_behind_the_end_of_a_document_kill(grammar, eos, left, dies, ends):
    token = EmittedToken(count=3, position=0, window_tokens=1 + left, room=9, eos=eos, stop_id=False)
    assert planted("die-behind-document").end(replace(row().request, grammar=grammar), token) == ("stop" if eos else None)
    assert bool(ends) is dies


def test_whole_drafts_in_a_row_raise_and_others_begin_again():
    draft = DraftProposal(tokens=np.zeros((1, 3), np.intp), counts=np.array([3]))
    given = [row()]

    def accept(accepted):
        windows = VerifyWindows(accepted=np.array([accepted]), last=np.array([5]))
        assert verified("fail-on-full-drafts", given, draft, windows) is windows

    for accepted in (*[3] * (outages._IN_A_ROW - 1), 2, *[3] * (outages._IN_A_ROW - 1)):
        accept(accepted)
    with pytest.raises(RuntimeError, match="decode"):
        accept(3)
