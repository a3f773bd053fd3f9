from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.judge.prerequisites import speculating
from pytest_specdec.model.pair import DraftKind
from pytest_specdec.model.transcript import SpecCounters
from pytest_specdec.model.verdict import Outcome
from tests.judge.captured_values import a_pair, answer, captured


def seen(counters, windows=None, pair=None):
    return captured("greedy", [answer("chat-00", (1,), windows=windows)], [answer("chat-00", (1,))], counters=counters, pair=pair)


@pytest.mark.parametrize(
    "drafts, drafted, accepted, said",
    [
        (0, 0, 0, "nothing drafted"),
        (9, 27, 0, "no draft token accepted"),
        (9, 27, 27, "no draft token rejected"),
        (9, 27, 26, None),
    ],
)
def test_counters_must_show_drafts_acceptances_and_rejections(drafts, drafted, accepted, said):
    verdict = speculating(seen(SpecCounters(drafts=drafts, draft_tokens=drafted, accepted_tokens=accepted)))
    if said is None:
        assert verdict is None
        return
    assert verdict.outcome is Outcome.NOT_SPECULATING
    assert verdict.headline.startswith(said)
    assert f"{drafts} drafts, {accepted} draft tokens accepted, {drafted - accepted} rejected" in verdict.headline
    assert verdict.short[0].startswith("likely: ")
    assert verdict.red


@pytest.mark.parametrize(
    "windows, kind, said",
    [
        (None, DraftKind.MODEL, "speculation unknown"),
        ((1, 4, 2, 1), DraftKind.MODEL, None),
        ((1, 4, 4, 1), DraftKind.MODEL, "no draft token rejected"),
        ((1, 1, 1, 4), DraftKind.MODEL, "no draft token accepted"),
        ((1, 4, 1, 1), DraftKind.MODEL, None),
        ((1, 4, 1, 1), DraftKind.NGRAM, "no draft token rejected"),
        ((1, 4, 2, 1), DraftKind.NGRAM, None),
        ((1,), DraftKind.MODEL, "no draft token accepted"),
    ],
)
def test_without_counters_the_windows_tell(windows, kind, said):
    """The first entry is the prefill's, the last may be cut, and prompt lookup drafts nothing for a window of one."""
    verdict = speculating(seen(None, windows, a_pair(kind)))
    assert (verdict is None) == (said is None)
    assert verdict is None or verdict.headline.startswith(said)


def test_the_control_is_not_asked():
    assert speculating(replace(seen(SpecCounters()), is_control=True)) is None


def test_a_finding_that_does_not_hang_on_rejections_is_not_held_up_by_their_absence():
    counters = SpecCounters(drafts=9, draft_tokens=27, accepted_tokens=27)
    assert speculating(seen(counters), rejecting=False) is None
    assert speculating(seen(SpecCounters(drafts=9, draft_tokens=27)), rejecting=False) is not None
