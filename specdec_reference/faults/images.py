"""Planted faults of requests with images and of texts beside them, for suites to detect; each wraps the method named by its decorator."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from specdec_reference import rules
from specdec_reference.faults.planted import Place, fault, in_
from specdec_reference.request_fields import Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    from numpy.typing import NDArray

    from specdec_reference.emission import EmittedToken
    from specdec_reference.model import Span
    from specdec_reference.openai_request import EngineRequest
    from specdec_reference.rejection_sampler import DraftProposal
    from specdec_reference.sequence import RunningSequence

_SEVERAL: Final = 3
"""Requests with images in one step that an encoder cache has no room for."""
_TAKEN: Final = {"images": True}
_SHIFT: Final = 8
"""Positions by which a text is misplaced beside an image."""


def _place_early(span: Span, shifts: Rows[int], rotations: NDArray[np.complex64]) -> Span:
    """Return the span with each row's tokens placed ``shifts`` positions early."""
    positions = np.maximum(span.positions - np.array(shifts)[:, None], 0).ravel()
    return replace(span, turns=rotations[positions if span.live is None else positions[span.live]][:, None])


@fault(
    after="batch.place",
    expected=in_(Place.REFERENCE, images="requests with images are answered wrongly"),
    engine=_TAKEN,
    mirrors=("vllm-project/vllm#54498",),
)
def image_as_one_position(span: Span, rows: Rows[RunningSequence], rotations: NDArray[np.complex64]) -> Span:
    """Counts an image as one position in the verify step, so that windows stand too early after it."""
    return _place_early(span, [max(0, len(row.request.patches) - 1) for row in rows], rotations)


@fault(
    after="batch.place",
    expected=in_(Place.REFERENCE, images="texts beside an image are answered wrongly"),
    engine=_TAKEN,
)
def text_beside_image_moved(span: Span, rows: Rows[RunningSequence], rotations: NDArray[np.complex64]) -> Span:
    """Places the window of a text eight positions early in a step that verifies one after an image too."""
    has_image = [bool(row.request.patches) for row in rows]
    return _place_early(span, [_SHIFT * (any(has_image) and not is_image) for is_image in has_image], rotations)


@fault(
    before="engine.sequences",
    expected=in_(Place.REFERENCE, images="an image takes the server down"),
    engine=_TAKEN,
    alone=True,
    mirrors=("ggml-org/llama.cpp#24816",),
)
def die_on_image(request: EngineRequest) -> None:
    """Kills the server when a request brings an image."""
    if request.patches:
        os.kill(os.getpid(), signal.SIGKILL)


@fault(
    before="verify",
    expected=in_(Place.REFERENCE, images="several images in flight take the server down"),
    engine=_TAKEN,
    alone=True,
    mirrors=("vllm-project/vllm#38622",),
)
def die_on_evicted_image(rows: Rows[RunningSequence]) -> None:
    """Kills the server when a step verifies windows after three requests with images or more, as if an encoder cache was full."""
    if sum(bool(row.request.patches) for row in rows) >= _SEVERAL:
        os.kill(os.getpid(), signal.SIGKILL)


@fault(
    after="engine.parse",
    expected=in_(Place.REFERENCE, images="requests with images fail"),
    engine=_TAKEN,
    mirrors=("ggml-org/llama.cpp#25129",),
)
def image_refused(request: EngineRequest) -> EngineRequest:
    """Refuses every image, for positions that do not fit those of the draft."""
    if request.patches:
        raise Refusal(message="inconsistent sequence positions")
    return request


@fault(instead_of="identify", expected=in_(Place.REFERENCE, images="another image gets the answer to an earlier one"), engine=_TAKEN)
def image_cached_by_place(sequence: RunningSequence) -> list[int]:
    """Tells images apart in the prefix cache by their placeholders alone, which are the same for every image."""
    return sequence.tokens


@fault(
    after="drafter.propose",
    expected=in_(Place.REFERENCE, images="no draft is accepted after an image"),
    engine=_TAKEN,
    mirrors=("vllm-project/vllm#54498",),
)
def drafts_dead_after_image(draft: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Drafts nothing but the placeholder after an image."""
    tokens = draft.tokens.copy()
    for slot, row in enumerate(rows):
        if row.request.patches:
            tokens[slot] = 0  # the placeholder's id
    return replace(draft, tokens=tokens, q=None)  # without q, as if certain


@fault(
    instead_of="end",
    expected=in_(Place.REFERENCE, images="answers go on after their end"),
    engine=_TAKEN,
    mirrors=("ggml-org/llama.cpp#22867",),
)
def endless_after_image(request: EngineRequest, token: EmittedToken) -> str | None:
    """Goes on after an image until the context is full."""
    if request.patches:
        return "length" if token.room <= 0 else None
    return rules.end(request, token)
