"""The clauses on scores: either route to the baseline's distribution, held against what the server reported when it emitted the tokens."""

from __future__ import annotations

import math
from itertools import cycle, islice
from typing import TYPE_CHECKING

from pytest_specdec.doctor.contract.clause import Clause, broken, kept, not_claimed, unchecked
from pytest_specdec.doctor.contract.visit import TOP, NoAnswerError
from pytest_specdec.model.soundness import ROUNDING, flaw
from pytest_specdec.model.transcript import ScoringRoute

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.doctor.contract.clause import Finding
    from pytest_specdec.doctor.contract.visit import Visit
    from pytest_specdec.model.transcript import Position

_SINGLE = 1e-3
"""Nats at most between a token's log-probability as reported and as scored, in single precision."""
_HALF, _FAR = 0.05, 1.0
"""The same elsewhere: in the median, and at most."""


def _check_prompt_route(visit: Visit) -> Finding:
    return _check_route(visit, ScoringRoute.PROMPT_LOGPROBS)


def _check_continuations_route(visit: Visit) -> Finding:
    return _check_route(visit, ScoringRoute.CONTINUATIONS)


def _check_route(visit: Visit, route: ScoringRoute) -> Finding:
    """Check the scores in the reply of a route.

    The reply lists every token, ranked, with probabilities that sum to 1 at most and agree with the reported ones.
    """
    if not _claims_route(visit, route):
        return not_claimed("no such request")
    timed, choice = visit.reported
    scored = visit.scored(route, timed.answer.prompt_token_ids, choice.token_ids)
    if not scored.positions:
        # the error begins with the status; 4xx is a refusal
        is_refused = scored.error.startswith("4")
        return unchecked(f"refused: {scored.error[:200]}") if is_refused else broken(scored.error.splitlines()[0][:200])
    if fault := _distribution_fault(scored.positions, choice.token_ids, TOP):
        return broken(fault)
    gaps = _logprob_gaps(scored.positions, choice.logprobs or ())
    if not gaps:
        return unchecked("no token has a log-probability both reported and scored")
    return _compare_gaps(visit, gaps, f"{len(gaps)} tokens, reported and scored log-probabilities")


def _compare_gaps(visit: Visit, gaps: Sequence[float], what: str) -> Finding:
    """Return the finding on distances in nats: close, or too far."""
    worst, median = max(gaps), sorted(gaps)[len(gaps) // 2]
    is_close = worst <= _SINGLE if visit.engine.single_precision(visit.config) else median <= _HALF and worst <= _FAR
    evidence = f"{what} at most {worst:.2g} nats apart, {median:.2g} in the median"
    return kept(evidence) if is_close else broken(evidence)


def _claims_route(visit: Visit, route: ScoringRoute) -> bool:
    """Return True if the dialect can ask by a route."""
    if route is ScoringRoute.PROMPT_LOGPROBS:
        return visit.dialect.scoring([1], [1], TOP) is not None
    return visit.dialect.continuations([[1]], TOP) is not None


def _distribution_fault(positions: Sequence[Position], ids: Sequence[int], top: int) -> str:
    """Return the fault in the form of a distribution at ``ids``.

    Empty if there is none.
    """
    if [position.token_id for position in positions] != list(ids):
        return f"{len(positions)} positions of tokens {[position.token_id for position in positions][:5]}, expected {len(ids)} of {ids[:5]}"
    faults = ((number, _position_fault(position, top)) for number, position in enumerate(positions))
    return next((f"position {number} {fault}" for number, fault in faults if fault), "")


def _position_fault(position: Position, top: int) -> str:
    """Return the fault of one position, empty if there is none."""
    logprobs = position.top_logprobs
    if len(logprobs) > top:
        return f"lists {len(logprobs)} tokens, asked for {top}"
    if (total := math.fsum(math.exp(min(logprob, 0.0)) for logprob in logprobs)) > 1 + ROUNDING:
        return f"has probabilities that sum to {total:.4f}"
    return flaw(position, top_tokens=top)


def _logprob_gaps(positions: Sequence[Position], reported: Sequence[float]) -> list[float]:
    """Return the distances of scored from reported log-probabilities, in nats."""
    pairs = zip(positions, reported, strict=False)
    return [abs(position.logprob - logprob) for position, logprob in pairs if math.isfinite(position.logprob) and math.isfinite(logprob)]


def _check_agreement(visit: Visit) -> Finding:
    """Check both routes for the same distribution."""
    routes = (ScoringRoute.PROMPT_LOGPROBS, ScoringRoute.CONTINUATIONS)
    if not all(_claims_route(visit, route) for route in routes):
        return not_claimed("there are no two routes")
    timed, choice = visit.reported
    scored_by_route = [visit.scored(route, timed.answer.prompt_token_ids, choice.token_ids) for route in routes]
    missing = next(
        (f"{route.value}: {scored.error[:150]}" for route, scored in zip(routes, scored_by_route, strict=True) if not scored.positions), ""
    )
    if missing:
        return unchecked(missing)
    gaps = [
        abs(a.top_logprobs[0] - b.top_logprobs[0]) for a, b in zip(scored_by_route[0].positions, scored_by_route[1].positions, strict=True)
    ]
    return _compare_gaps(visit, gaps, f"the best token of {len(gaps)} positions by both routes")


def _check_prefixes(visit: Visit) -> Finding:
    """Check the number of prefixes taken in one request.

    One more goes into the next request.
    """
    count = visit.dialect.prefixes_per_request
    if count < 1:
        return broken(f"{count} prefixes in a request")
    if not _claims_route(visit, ScoringRoute.CONTINUATIONS):
        return not_claimed("no continuations")
    timed, choice = visit.reported
    ids = tuple(islice(cycle(choice.token_ids), count + 1))
    scored = visit.scored(ScoringRoute.CONTINUATIONS, timed.answer.prompt_token_ids, ids)
    if len(scored.positions) == len(ids):
        return kept(f"{count} in a request, {len(ids)} in two")
    single = visit.scored(ScoringRoute.CONTINUATIONS, timed.answer.prompt_token_ids, ids[:1])
    return broken(f"{count} prefixes: {scored.error[:200]}") if single.positions else unchecked(f"not even one: {single.error[:200]}")


def _check_expected_route(visit: Visit) -> Finding:
    """Check the planned route: it serves."""
    route = visit.engine.route(visit.config)
    if not _claims_route(visit, route):
        return not_claimed(f"{route.value}: the dialect has no such request, a `scorer:` is needed")
    timed, choice = visit.reported
    scored = visit.scored(route, timed.answer.prompt_token_ids, choice.token_ids)
    return kept(route.value) if scored.positions else broken(f"planned are {route.value}: {scored.error[:200]}")


def _check_precision(visit: Visit) -> Finding:
    """Check the scores of a server in single precision.

    They are as it reported them, but for rounding in the last digits.
    """
    if not visit.engine.single_precision(visit.config):
        return not_claimed("not single precision, or unknown")
    for route in (ScoringRoute.PROMPT_LOGPROBS, ScoringRoute.CONTINUATIONS):
        if _claims_route(visit, route):
            timed, choice = visit.reported
            gaps = _logprob_gaps(visit.scored(route, timed.answer.prompt_token_ids, choice.token_ids).positions, choice.logprobs or ())
            if gaps:
                evidence = f"{len(gaps)} tokens, reported and scored at most {max(gaps):.2g} nats apart"
                return kept(evidence) if max(gaps) <= _SINGLE else broken(evidence)
    return unchecked("no route gives the scores of reported tokens")


def _check_vocabulary(visit: Visit) -> Finding:
    """Check all ids against the size of the vocabulary.

    No id reaches it.
    """
    size = visit.engine.vocabulary(visit.config)
    if size == 0:
        return not_claimed("unknown")
    answers = [visit.greedy.answer, visit.chat.answer]
    seen_ids = {token for answer in answers for token in (*answer.prompt_token_ids, *(i for c in answer.choices for i in c.token_ids))}
    try:
        timed, choice = visit.reported
        for route in (ScoringRoute.PROMPT_LOGPROBS, ScoringRoute.CONTINUATIONS):
            if _claims_route(visit, route):
                positions = visit.scored(route, timed.answer.prompt_token_ids, choice.token_ids).positions
                seen_ids |= {token for position in positions for token in position.top_ids}
    except NoAnswerError:
        pass
    if not seen_ids:
        return unchecked("no ids were seen")
    evidence = f"ids up to {max(seen_ids)}, {size} tokens"
    return kept(evidence) if max(seen_ids) < size else broken(evidence)


CLAUSES = (
    Clause(name="prompt scores", members=("scoring", "positions"), check=_check_prompt_route, variant=False),
    Clause(name="continuations", members=("continuations", "continued"), check=_check_continuations_route, variant=False),
    Clause(name="routes agree", members=("positions", "continued"), check=_check_agreement, variant=False),
    Clause(name="prefixes per request", members=("prefixes_per_request",), check=_check_prefixes, variant=False),
    Clause(name="planned route", members=("route",), check=_check_expected_route, variant=False),
    Clause(name="single precision", members=("single_precision",), check=_check_precision, variant=False),
    Clause(name="vocabulary", members=("vocabulary",), check=_check_vocabulary),
)
