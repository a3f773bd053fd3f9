"""The contract on scores: either route to the baseline's distribution, held against what the server reported when it emitted the tokens."""

from __future__ import annotations

import math
from contextlib import suppress
from itertools import cycle, islice
from typing import TYPE_CHECKING

from pytest_specdec.model.score_flaws import ROUNDING, flaw
from pytest_specdec.model.transcript import ScoringRoute

from .claims import claims, not_claimed, unchecked
from .visit import TOP, NoAnswerError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.model.transcript import Position

    from .claims import Note
    from .visit import Visit

_SINGLE = 1e-3
"""Nats at most between a token's log-probability as reported and as scored, in single precision."""
_HALF, _FAR = 0.05, 1.0
"""The same elsewhere: in the median, and at most."""
_ROUTES = (ScoringRoute.PROMPT_LOGPROBS, ScoringRoute.CONTINUATIONS)


class Scores:
    """The claims on the scores of the baseline's server."""

    @claims("scoring", "positions")
    def test_prompt_scores(self, visit: Visit, note: Note) -> None:
        """The log-probabilities of a prompt are those of a distribution, as reported."""
        note(_check_route(visit, ScoringRoute.PROMPT_LOGPROBS))

    @claims("continuations", "continued")
    def test_continuations(self, visit: Visit, note: Note) -> None:
        """The log-probabilities of one more token are those of a distribution, as reported."""
        note(_check_route(visit, ScoringRoute.CONTINUATIONS))

    @claims("positions", "continued")
    def test_routes_agree(self, visit: Visit, note: Note) -> None:
        """Both routes give the same distribution."""
        if not all(map(visit.claims_route, _ROUTES)):
            not_claimed("there are no two routes")
        scored_by_route = [visit.score_reported(route) for route in _ROUTES]
        for route, scored in zip(_ROUTES, scored_by_route, strict=True):
            if not scored.positions:
                unchecked(f"{route.value}: {scored.error[:150]}")
        position_pairs = zip(scored_by_route[0].positions, scored_by_route[1].positions, strict=True)
        gaps = [abs(a.top_logprobs[0] - b.top_logprobs[0]) for a, b in position_pairs]
        note(_check_gaps(visit, gaps, f"the best token of {len(gaps)} positions by both routes"))

    @claims("prefixes_per_request")
    def test_prefixes_per_request(self, visit: Visit, note: Note) -> None:
        """As many prefixes fit into one request as the dialect says, one more goes into the next."""
        count = visit.dialect.prefixes_per_request
        assert count >= 1, f"{count} prefixes in a request"
        if not visit.claims_route(ScoringRoute.CONTINUATIONS):
            not_claimed("no continuations")
        timed, choice = visit.reported
        ids = tuple(islice(cycle(choice.token_ids), count + 1))
        scored = visit.score(ScoringRoute.CONTINUATIONS, timed.answer.prompt_token_ids, ids)
        if len(scored.positions) != len(ids):
            single = visit.score(ScoringRoute.CONTINUATIONS, timed.answer.prompt_token_ids, ids[:1])
            assert not single.positions, f"{count} prefixes: {scored.error[:200]}"
            unchecked(f"not even one: {single.error[:200]}")
        note(f"{count} in a request, {len(ids)} in two")

    @claims("route")
    def test_planned_route(self, visit: Visit, note: Note) -> None:
        """The route that the engine plans serves."""
        route = visit.engine.route(visit.config)
        if route is None or not visit.claims_route(route):
            not_claimed("no request that scores given tokens: a `scorer:` is needed")
        scored = visit.score_reported(route)
        assert scored.positions, f"planned are {route.value}: {scored.error[:200]}"
        note(route.value)

    @claims("single_precision")
    def test_single_precision(self, visit: Visit, note: Note) -> None:
        """A server in single precision scores as it reported, but for rounding in the last digits."""
        if not visit.engine.single_precision(visit.config):
            not_claimed("not single precision, or unknown")
        for route in filter(visit.claims_route, _ROUTES):
            gaps = _logprob_gaps(visit, visit.score_reported(route).positions)
            if gaps:
                evidence = f"{len(gaps)} tokens, reported and scored at most {max(gaps):.2g} nats apart"
                assert max(gaps) <= _SINGLE, evidence
                note(evidence)
                return
        unchecked("no route gives the scores of reported tokens")


class Vocabulary:
    """The claim on the size of the vocabulary."""

    @claims("vocabulary")
    def test_vocabulary(self, visit: Visit, note: Note) -> None:
        """No id of a token reaches the size of the vocabulary."""
        size = visit.engine.vocabulary(visit.config)
        if size == 0:
            not_claimed("unknown")
        answers = [visit.greedy.answer, visit.chat.answer]
        seen_ids = {token for answer in answers for token in (*answer.prompt_token_ids, *(i for c in answer.choices for i in c.token_ids))}
        seen_ids |= _scored_ids(visit)
        if not seen_ids:
            unchecked("no ids were seen")
        evidence = f"ids up to {max(seen_ids)}, {size} tokens"
        assert max(seen_ids) < size, evidence
        note(evidence)


def _check_route(visit: Visit, route: ScoringRoute) -> str:
    """Return how near the scores by a route are to the reported ones, as evidence.

    Raises AssertionError unless the reply lists every token, ranked, with probabilities that sum to 1 at most and agree
    with the reported ones.
    """
    if not visit.claims_route(route):
        not_claimed("no such request")
    scored = visit.score_reported(route)
    if not scored.positions and scored.error.startswith("4"):  # the error begins with the status; 4xx is a refusal
        unchecked(f"refused: {scored.error[:200]}")
    assert scored.positions, scored.error.splitlines()[0][:200]
    _check_distribution(scored.positions, visit.reported[1].token_ids)
    gaps = _logprob_gaps(visit, scored.positions)
    if not gaps:
        unchecked("no token has a log-probability both reported and scored")
    return _check_gaps(visit, gaps, f"{len(gaps)} tokens, reported and scored log-probabilities")


def _check_gaps(visit: Visit, gaps: Sequence[float], what: str) -> str:
    """Return the largest and the median of some distances in nats, as evidence.

    Raises AssertionError if they are not small. ``what`` names them.
    """
    worst, median = max(gaps), sorted(gaps)[len(gaps) // 2]
    is_close = worst <= _SINGLE if visit.engine.single_precision(visit.config) else median <= _HALF and worst <= _FAR
    evidence = f"{what} at most {worst:.2g} nats apart, {median:.2g} in the median"
    assert is_close, evidence
    return evidence


def _scored_ids(visit: Visit) -> set[int]:
    """Return the ids listed in scores, empty without any."""
    ids: set[int] = set()
    with suppress(NoAnswerError):
        for route in filter(visit.claims_route, _ROUTES):
            ids |= {token for position in visit.score_reported(route).positions for token in position.top_ids}
    return ids


def _check_distribution(positions: Sequence[Position], ids: Sequence[int]) -> None:
    """Raise AssertionError for distributions at ``ids`` in another form."""
    seen_ids = [position.token_id for position in positions]
    assert seen_ids == list(ids), f"{len(positions)} positions of tokens {seen_ids[:5]}, expected {len(ids)} of {ids[:5]}"
    for number, position in enumerate(positions):
        logprobs, total = position.top_logprobs, math.fsum(math.exp(min(logprob, 0.0)) for logprob in position.top_logprobs)
        assert len(logprobs) <= TOP, f"position {number} lists {len(logprobs)} tokens, asked for {TOP}"
        assert total <= 1 + ROUNDING, f"position {number} has probabilities that sum to {total:.4f}"
        fault = flaw(position, top_tokens=TOP)
        assert not fault, f"position {number} {fault}"


def _logprob_gaps(visit: Visit, positions: Sequence[Position]) -> list[float]:
    """Return the distances of scored from reported log-probabilities, in nats."""
    pairs = zip(positions, visit.reported[1].logprobs or (), strict=False)
    return [abs(position.logprob - logprob) for position, logprob in pairs if math.isfinite(position.logprob) and math.isfinite(logprob)]
