"""Rules with a fault of how answers end."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from specdec_reference import rules
from specdec_reference.faulty_rules.registry import instead_of

if TYPE_CHECKING:
    from specdec_reference.emission import EmittedToken
    from specdec_reference.openai_request import EngineRequest


@instead_of("end")
def cut_short(request: EngineRequest, token: EmittedToken) -> str | None:
    """End by length at a tenth of the limit."""
    return rules.end(request, token) or ("length" if token.count >= _tenth(request) else None)


@instead_of("end")
def stop_short(request: EngineRequest, token: EmittedToken) -> str | None:
    """End by stop at a tenth of the limit."""
    return rules.end(request, token) or ("stop" if token.count >= _tenth(request) else None)


def _tenth(request: EngineRequest) -> int:
    return -(-request.max_tokens // 10)


@instead_of("end")
def past_the_end(request: EngineRequest, token: EmittedToken) -> str | None:
    """Take no token for an end of sequence."""
    return rules.end(request, replace(token, eos=False))


@instead_of("end")
def wrong_finish(request: EngineRequest, token: EmittedToken) -> str | None:
    """Report every end as the limit's."""
    return "length" if rules.end(request, token) else None
