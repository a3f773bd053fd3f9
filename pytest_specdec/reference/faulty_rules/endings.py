"""Rules with a fault of how answers end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.reference import rules
from pytest_specdec.reference.faulty_rules.registry import instead_of

if TYPE_CHECKING:
    from pytest_specdec.reference.openai_request import EngineRequest


@instead_of("end")
def cut_short(request: EngineRequest, emitted: int, eos: bool) -> str | None:  # noqa: FBT001 - a rule's signature
    """End by length at a tenth of the limit."""
    return rules.end(request, emitted, eos) or ("length" if emitted >= _tenth(request) else None)


@instead_of("end")
def stop_short(request: EngineRequest, emitted: int, eos: bool) -> str | None:  # noqa: FBT001 - a rule's signature
    """End by stop at a tenth of the limit."""
    return rules.end(request, emitted, eos) or ("stop" if emitted >= _tenth(request) else None)


def _tenth(request: EngineRequest) -> int:
    return -(-request.max_tokens // 10)


@instead_of("end")
def past_the_end(request: EngineRequest, emitted: int, eos: bool) -> str | None:  # noqa: ARG001, FBT001 - a rule's signature
    """Take no token for an end of sequence."""
    return rules.end(request, emitted, False)  # noqa: FBT003 - a rule's signature


@instead_of("end")
def wrong_finish(request: EngineRequest, emitted: int, eos: bool) -> str | None:  # noqa: FBT001 - a rule's signature
    """Report every end as the limit's."""
    return "length" if rules.end(request, emitted, eos) else None
