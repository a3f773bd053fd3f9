"""Planted faults of tokens, drafts and servers after long prompts, for suites to detect; each wraps the method named by its decorator."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_specdec.model.workload import Family
from specdec_reference.faults.drafting import draft_at_random
from specdec_reference.faults.planted import Place, fault, in_

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Sequence as Rows

    from pytest_specdec.model.workload import JSON
    from specdec_reference.rejection_sampler import DraftProposal, VerifyWindows
    from specdec_reference.sequence import RunningSequence

_LONG: Final = 1200
"""Tokens of a prompt: between a quarter and a half of the context below."""
_MIDDLE: Final = 600
"""The same between an eighth and a quarter: after more tokens the small model repeats nothing, however often a prompt does."""
_SEVERAL: Final = 2
_VERY_LONG: Final = 2000
_EVERY: Final = 6
"""Verify steps, of which one goes wrong."""
_CONTEXT: Mapping[str, JSON] = {"max-model-len": 4096, "hf-overrides": {"max_position_embeddings": 4096}}
_MAY: dict[Family, str] = dict.fromkeys((Family.CONTEXT, Family.LIVENESS), "Some of its prompts are as long.")
_MAY_DIE: dict[Family, str] = {
    family: "What is asked after a long prompt has no drafts." for family in Family if family is not Family.SPEED
} | {Family.SPEED: "Its requests come after a long prompt."}


def _spoil(windows: VerifyWindows, spoilt: list[bool]) -> VerifyWindows:
    """Return the windows with another last token in the rows ``spoilt``."""
    return replace(windows, last=np.where(spoilt, np.maximum(windows.last - 7, 3), windows.last))


@fault(
    after="verify",
    expected=in_(Place.REFERENCE, may=_MAY, long="tokens are wrong after"),
    engine=_CONTEXT,
    mirrors=("LMCache/LMCache#4345",),
)
def wrong_behind_long(windows: VerifyWindows, rows: Rows[RunningSequence]) -> VerifyWindows:
    """Emits another token now and then after prompts of more than 1,200 tokens."""
    return _spoil(windows, [len(row.request.prompt) > _LONG and len(row.drafted) % _EVERY == _EVERY - 1 for row in rows])


@fault(
    after="verify",
    expected=in_(Place.REFERENCE, may=_MAY, long="tokens of several long prompts together are wrong"),
    engine=_CONTEXT,
    mirrors=("weicj/vLLM-2080Ti-Definitive#41",),
)
def wrong_with_two_long(windows: VerifyWindows, rows: Rows[RunningSequence]) -> VerifyWindows:
    """Emits other tokens while two prompts of more than 600 tokens are answered together."""
    are_long = [len(row.request.prompt) > _MIDDLE for row in rows]
    # ``drafted`` has an entry for each verify step of the row: one step in six goes wrong.
    return _spoil(
        windows,
        [is_long and sum(are_long) >= _SEVERAL and len(row.drafted) % _EVERY == 1 for is_long, row in zip(are_long, rows, strict=True)],
    )


@fault(
    after="drafter.propose",
    expected=in_(Place.REFERENCE, may=_MAY, long="drafts are no longer accepted after"),
    engine=_CONTEXT,
    mirrors=("lightseekorg/tokenspeed#1132",),
)
def drafts_dead_behind_long(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Drafts tokens at random after prompts of more than 600 tokens."""
    return draft_at_random(rows, proposal, lambda row: len(row.request.prompt) > _MIDDLE)


_long_seen = threading.Event()
"""Set by the first long prompt, for good: a server has one engine."""


@fault(
    after="drafter.propose",
    expected=in_(Place.REFERENCE, may=_MAY_DIE, long="drafts are no longer accepted after long requests"),
    engine=_CONTEXT,
    mirrors=("vllm-project/vllm-ascend#10495",),
)
def drafts_dead_after_thousands(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Drafts tokens at random for good after the first prompt of more than 1,200 tokens."""
    if any(len(row.request.prompt) > _LONG for row in rows):
        _long_seen.set()
    return draft_at_random(rows, proposal, lambda _: _long_seen.is_set())


@fault(
    before="verify",
    expected=in_(Place.REFERENCE, may=_MAY, long="the server dies on"),
    engine=_CONTEXT,
    alone=True,
    mirrors=("vllm-project/vllm#40756", "vllm-project/vllm#49230"),
)
def die_behind_long(rows: Rows[RunningSequence]) -> None:
    """Kills the server when it verifies drafts after a prompt of more than 1,200 tokens."""
    if any(len(row.request.prompt) > _LONG for row in rows):
        os.kill(os.getpid(), signal.SIGKILL)


@fault(
    before="verify",
    expected=in_(Place.REFERENCE, may=_MAY, long="the server hangs on"),
    engine=_CONTEXT,
    alone=True,
    mirrors=("sgl-project/sglang#33549",),
)
def hang_behind_long(rows: Rows[RunningSequence]) -> None:
    """Never answers again once a sequence is longer than 2,000 tokens."""
    if any(len(row.tokens) > _VERY_LONG for row in rows):
        threading.Event().wait()
