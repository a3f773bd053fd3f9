"""Planted faults of LoRA adapters under speculation, for suites to detect.

Each wraps the rule or method named by its decorator. The rule ``adapt`` names the adapter of each token fed, row after row; empty for none.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Final

import numpy as np

from specdec_reference.faults.drafts import propose_rejected
from specdec_reference.faults.planted import Place, fault, in_
from specdec_reference.request_fields import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Sequence as Rows

    from pytest_specdec.model.workload import JSON
    from specdec_reference.openai_request import EngineRequest
    from specdec_reference.rejection_sampler import DraftProposal
    from specdec_reference.sequence import RunningSequence

_LOADED: Final[Mapping[str, JSON]] = {"enable-lora": True, "lora-modules": ["first=random:1", "second=random:2"]}


@fault(
    after="adapt",
    expected=in_(Place.REFERENCE, adapters="answers of adapter requests are wrong"),
    engine=_LOADED,
    mirrors=("vllm-project/vllm#26679",),
)
def adapter_dropped_at_drafts(names: list[str], rows: Rows[RunningSequence], counts: Rows[int]) -> list[str]:
    """Verifies draft tokens without the adapter of their request: only the first token of a window has it."""
    if not all(row.emitted for row in rows):  # a prefill, which has no draft tokens
        return names
    first_lines = set(np.cumsum([0, *counts[:-1]]).tolist())  # row i has counts[i] tokens, the last emitted one first
    return [name if line in first_lines else "" for line, name in enumerate(names)]


@fault(
    after="adapt",
    expected=in_(Place.REFERENCE, adapters="an adapter's weights reach a request without it"),
    engine=_LOADED,
    mirrors=("sgl-project/sglang#34337",),
)
def last_adapter_for_all(names: list[str], rows: Rows[RunningSequence]) -> list[str]:
    """Answers a whole batch under the adapter of its last row."""
    return [rows[-1].request.adapter] * len(names)


@fault(
    after="adapt",
    expected=in_(Place.REFERENCE, adapters="answers of adapter requests are wrong, in batches with other adapters alone"),
    engine=_LOADED,
    mirrors=("sgl-project/sglang#34337",),
)
def adapters_counted_by_row(names: list[str], rows: Rows[RunningSequence]) -> list[str]:
    """Gives the lines of adapter requests in a mixed batch their adapters as if each had one token."""
    if len({row.request.adapter for row in rows}) == 1:  # no mixed batch
        return names
    adapters = [row.request.adapter for row in rows if row.request.adapter]
    # The nth token under any adapter gets that of the nth such row, or of the last one.
    numbers = iter(range(len(names)))
    return [adapters[min(next(numbers), len(adapters) - 1)] if name else "" for name in names]


@fault(
    after="adapt",
    expected=in_(Place.REFERENCE, adapters="sampled answers of adapter requests are wrong"),
    engine=_LOADED,
)
def adapter_dropped_when_sampling(names: list[str], rows: Rows[RunningSequence], counts: Rows[int]) -> list[str]:
    """Answers requests above temperature 0 without their adapter."""
    sampled = np.repeat([row.request.temperature > 0 for row in rows], list(counts)).tolist()
    return ["" if is_sampled else name for name, is_sampled in zip(names, sampled, strict=True)]


@fault(
    instead_of="root",
    expected=in_(Place.REFERENCE, adapters="answers of one adapter come from the cache of another"),
    engine=_LOADED,
    mirrors=("vllm-project/vllm#26679",),
)
def prefix_without_adapter() -> int:
    """Knows a block of the prefix cache by its tokens, whatever the adapter under which it was computed."""
    return 0


@fault(
    after="drafter.propose",
    expected=in_(Place.REFERENCE, adapters="drafts are never accepted with an adapter"),
    engine=_LOADED,
)
def drafts_dead_with_adapter(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Drafts tokens that the target does not take for requests with an adapter; the answers are right."""
    return propose_rejected(proposal, np.array([bool(row.request.adapter) for row in rows]))


@fault(
    after="engine.parse",
    expected=in_(Place.REFERENCE, adapters="requests with an adapter are refused"),
    engine=_LOADED,
    mirrors=("sgl-project/sglang#34337",),
)
def adapters_refused(request: EngineRequest) -> EngineRequest:
    """Refuses requests with an adapter while it speculates."""
    if request.adapter:
        raise Refusal(message=f"The model `{request.adapter}` does not exist.", param="model", status=404)
    return request


@fault(
    before="verify",
    expected=in_(Place.REFERENCE, adapters="the server dies on a request with model="),
    engine=_LOADED,
    alone=True,
    mirrors=("sgl-project/sglang#34337",),
)
def die_with_adapter(rows: Rows[RunningSequence]) -> None:
    """Kills the server when a step verifies a draft under an adapter."""
    if any(row.request.adapter for row in rows):
        os.kill(os.getpid(), signal.SIGKILL)
