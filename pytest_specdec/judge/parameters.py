"""Parameters: what a request's fields ask for is what the server does, at draft positions as elsewhere.

Parameters are judged by their rules (judge/parameter_rules.py), each answer by its own request's. A parameter binds at a token where it
changes which token comes; it counts only if it binds on the baseline. ``peers`` are the baseline's boots, the first of which stands for it.
The matrix has the effect of each parameter on the baseline and on the judged arm. Tokens are unmeasured if only the baseline's own show
how often a correct server breaks their rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, TypeAlias

from pytest_specdec.judge import greedy, thinking_budget
from pytest_specdec.judge.ending import check_endings
from pytest_specdec.judge.liveness import server_failure
from pytest_specdec.judge.parameter_effects import (
    ArmEffects,
    ParameterEffect,
    arm_effects,
    describe_detectable,
    describe_first_differences,
    parameters_of,
    split_names,
)
from pytest_specdec.judge.parameter_rules import PARAMETERS, CheckedToken, set_parameters
from pytest_specdec.judge.prerequisites import describe_refusals, is_refusal, refusal, speculating, unscorable
from pytest_specdec.judge.sampling.draft_distribution import drafting
from pytest_specdec.judge.tolerance import allowed_gap
from pytest_specdec.judge.verdicts import say
from pytest_specdec.model.pair import BASELINE
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.stats.verify_slots import slots_from_windows

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from pytest_specdec.judge.tolerance import Tolerance
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Answer, Transcript
    from pytest_specdec.model.verdict import Verdict

__all__ = ["judge"]

_PENALTIES: Final = {"temperature", "presence_penalty", "frequency_penalty"}
LEAST_BOUND: Final = 3
"""Parameters that must bind on the baseline for a pass: a third of those with a rule."""
_HALF: Final = 0.5
"""Share of broken tokens that must be an alarm where only the baseline's choices tell what is too many: else nothing is decided."""
_JUMPS: Final = 5e-3
"""Share of broken tokens that jumps of a baseline may bring that repeats itself."""
_SEVERAL: Final = 3
"""Parameters broken at once from which the fault is not one of a single parameter."""
_CHANCE: Final = 0.01
_SHOWN: Final = 30
_NAMED: Final = 2
"""Refused parameters that a cell of the table names; more are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _EffectPair:
    """What two arms do with one parameter."""

    baseline: ParameterEffect
    judged: ParameterEffect

    def leave_open(self, *, baseline: bool, judged: bool) -> _EffectPair:
        """Return the effects with UNDECIDED for HONOURED on the given arms."""
        open_baseline = baseline and self.baseline is ParameterEffect.HONOURED
        open_judged = judged and self.judged is ParameterEffect.HONOURED
        return _EffectPair(
            baseline=ParameterEffect.UNDECIDED if open_baseline else self.baseline,
            judged=ParameterEffect.UNDECIDED if open_judged else self.judged,
        )


_Matrix: TypeAlias = Mapping[str, _EffectPair]
"""The effects by parameter."""


def judge(captured: Captured) -> Verdict:
    """Return the verdict on tokens by their requests' sampling parameters.

    Workloads with budgets for reasoning are judged by :mod:`~pytest_specdec.judge.thinking_budget`, those with penalties at temperature 0
    alone by greedy. For others, FAIL for parameters that explain all failures of the server comes first. The baseline's distribution after
    the answer's own prefix tells which tokens are allowed. A rule broken beyond chance is a FAIL, unless a boot of the baseline breaks it
    beyond chance or as often. REFUSED, by name, if parameters are refused that the baseline accepts. INCONCLUSIVE if too few parameters
    have an effect on the baseline.
    """
    if any(map(thinking_budget.limits_reasoning, captured.workload.requests)):
        return thinking_budget.judge(captured)
    if all(set(set_parameters(request.body)) <= _PENALTIES and request.greedy for request in captured.workload.requests):
        return greedy.judge(captured)
    return _check_harm(captured) or server_failure(captured) or refusal(captured) or check_endings(captured) or _judge_effects(captured)


def _judge_effects(captured: Captured) -> Verdict:
    """Return the first verdict on all tokens under their rules.

    INVALID comes first, if ids of a prompt are missing that a penalty counts, or if the baseline is too noisy. Then comes FAIL for broken
    rules, and then missing scores, missing drafts, refused parameters, and too few parameters with an effect on the baseline. Parameters
    may be undecided if it is unknown how often noise breaks a rule: only the baseline's tokens then show it.
    """
    tolerance = allowed_gap(captured, ())
    try:
        peers = tuple(arm_effects(captured, peer, tolerance) for peer in captured.baseline_boots)
        judged = arm_effects(captured, captured.speculative, tolerance, peers)
    except ValueError as error:
        return say(captured, Outcome.INVALID, str(error))
    undecided = _find_undecided(judged) if tolerance.is_chance_unknown else set[str]()
    matrix = _compare_effects(captured, judged, peers, undecided)
    return (
        _check_noise(captured, tolerance)
        or _fail_parameters(captured, judged, peers, matrix)
        or unscorable(captured)
        or speculating(captured)
        or _refuse_parameters(captured, matrix)
        or _check_parameters_bound(captured, peers[0], matrix)
        or _pass_parameters(captured, judged, peers[0], matrix, tolerance)
    )


def _check_noise(captured: Captured, tolerance: Tolerance) -> Verdict | None:
    if tolerance.trustworthy:
        return None
    noise = tolerance.calibration.noise or 0.0
    return say(captured, Outcome.INVALID, f"the baseline does not repeat itself: logit noise {noise:.3f} nats, so no law can be held")


def _check_harm(captured: Captured) -> Verdict | None:
    """Return FAIL if one parameter explains all server failures, else None.

    Requests that fail again alone on a fresh server must all set it. The baseline must have answered them, and the arm no request with that
    parameter. The temperature is not blamed if the requests have another parameter in common.
    """
    recurring = [failure for failure in captured.speculative.server_failures if failure.recurred]
    failed = {failure.request_id for failure in recurring if not failure.group and not failure.after}
    bodies = {request.id: set(set_parameters(request.body)) for request in captured.workload.requests}
    answered = {answer.request_id for answer in captured.baseline.answers if answer.ok}
    if not failed or not failed <= answered:
        return None
    common = set.intersection(*(bodies.get(request_id, set()) for request_id in failed))
    if len(common) > 1:
        common -= {"temperature"}
    answered_parameters = {name for answer in captured.speculative.answers if answer.ok for name in bodies.get(answer.request_id, ())}
    harmful = [name for name in PARAMETERS if name in common - answered_parameters]
    if not harmful:
        return None
    name = f"{' and '.join(harmful)} is answered with a server error"
    headline = f"{name}: {len(failed)} requests, first {min(failed)}; the baseline answers all of them"
    return say(
        captured,
        Outcome.FAIL,
        headline,
        names=name,
        cell=f"{harmful[0]} harmful",
        figures={"failed_requests": float(len(failed))},
        parameters={captured.arm: dict.fromkeys(harmful, ParameterEffect.HARMFUL.value)},
    )


def _find_undecided(judged: ArmEffects) -> set[str]:
    """Return the parameters with too few tokens, or none, for an alarm.

    A parameter is decided by a measured token, or by unmeasured ones so many that half of them broken would be an alarm beside the
    baseline's. The unmeasured ones of ``bad_words`` decide nothing: they are only those at which an answer first differs from the baseline.
    """
    caught_shares = judged.detectable_unmeasured_shares()
    decided_rules = {rule for rule, share in caught_shares.items() if share < _HALF} - {"bad_words"}
    return set(PARAMETERS) - parameters_of(
        [token for token in judged.tokens if not token.is_unmeasured or token.parameter in decided_rules]
    )


def _find_doubtful(peers: Sequence[ArmEffects], undecided: Collection[str]) -> set[str]:
    """Return the parameters broken by the baseline, maybe by chance.

    Looked at are its unmeasured tokens, and only rules that some of these break. One broken token is enough for a parameter that is
    ``undecided``, since it has few tokens. For others the share of broken ones must surely exceed that of a usable baseline (_JUMPS).
    """
    sure_shares = [(split_names(rule), share) for peer in peers for rule, share in peer.surely_broken_shares().items()]
    return {name for names, share in sure_shares for name in names if share > _JUMPS or name in undecided}


def _compare_effects(captured: Captured, judged: ArmEffects, peers: Sequence[ArmEffects], undecided: Collection[str]) -> _Matrix:
    """Return each parameter's effect on the baseline and the judged arm.

    A parameter counts as honoured on either arm only if it binds on a boot of the baseline: otherwise no token would show its loss.
    HONOURED becomes UNDECIDED on the judged arm for ``undecided`` parameters, which have too few tokens for an alarm, and on both arms for
    doubtful ones, which the baseline itself may break.
    """
    ignored, ignored_here, doubtful = _find_ignored(peers), judged.ignored, _find_doubtful(peers, undecided)
    binding = {name for peer in peers for token in peer.tokens if token.binds for name in split_names(token.parameter)}
    matrix = {
        name: _EffectPair(
            baseline=_classify_effect(captured, name, peers[0], ignored=name in ignored, binds=name in binding),
            judged=_classify_effect(captured, name, judged, ignored=name in ignored_here, binds=name in binding),
        )
        for name in PARAMETERS
    }
    return {name: effects.leave_open(judged=name in {*undecided, *doubtful}, baseline=name in doubtful) for name, effects in matrix.items()}


def _classify_effect(captured: Captured, name: str, effects: ArmEffects, *, ignored: bool, binds: bool) -> ParameterEffect:
    """Return the effect of parameter ``name`` on one arm's answers.

    Answers to requests that set it alone, or with a temperature, are preferred to those that set others as well; ABSENT without any. If all
    are refused, it is REFUSED if a refusal blames it, else UNKNOWN. Then it is HARMFUL if a server failure recurs with a request that sets
    it alone, IGNORED if its rule is broken beyond chance (``ignored``), HONOURED if it shows an effect on the baseline (``binds``), else
    UNKNOWN.
    """
    requested = {request.id: set_parameters(request.body) for request in captured.workload.requests if name in set_parameters(request.body)}
    alone = [request_id for request_id, names in requested.items() if set(names) <= {name, "temperature"}]
    answers = [answer for answer in effects.arm.answers if answer.request_id in (alone or requested)]
    if not answers:
        return ParameterEffect.ABSENT
    if all(map(is_refusal, answers)):
        return (
            ParameterEffect.REFUSED if any(name in _find_blamed(requested[a.request_id], a) for a in answers) else ParameterEffect.UNKNOWN
        )
    if any(failure.recurred and failure.request_id in alone for failure in effects.arm.server_failures):
        return ParameterEffect.HARMFUL
    if ignored:
        return ParameterEffect.IGNORED
    return ParameterEffect.HONOURED if binds else ParameterEffect.UNKNOWN


def _find_blamed(names: Iterable[str], answer: Answer) -> set[str]:
    """Return the parameters named in a refusal's error; all ``names`` if none is."""
    every = set(names)
    return {name for name in every if name in (answer.error or "")} or every


def _fail_parameters(captured: Captured, judged: ArmEffects, peers: Sequence[ArmEffects], matrix: _Matrix) -> Verdict | None:
    """Return FAIL if the judged arm breaks a rule unlike the baseline.

    Each rule has to be broken beyond chance, and by more tokens than on the baseline's boots. Several parameters may share one rule, as
    "top_k, top_p": it is left out if a boot of the baseline ignores any of them. None if no rule is broken so.
    """
    ignored = _find_ignored(peers)
    beyond_chance = judged.broken_beyond_chance
    broken_by_rule = Counter(token.parameter for token in beyond_chance)
    failed_rules = {
        rule for rule, count in broken_by_rule.items() if ignored.isdisjoint(split_names(rule)) and judged.exceeds_boots(rule, count)
    }
    broken = [token for token in beyond_chance if token.parameter in failed_rules]
    if not broken:
        return None
    name = _fault_name(captured, judged, broken)
    counts = Counter(token.parameter for token in broken)
    first, most_broken = min(broken, key=lambda token: (token.index, token.answer.key)), counts.most_common(1)[0][0]
    listed = ", ".join(f"{parameter} {count:,}" for parameter, count in counts.most_common())
    return say(
        captured,
        Outcome.FAIL,
        f"{name}: {len(broken):,} tokens break what their request asks for ({listed}); {_describe_peers(broken, peers)}",
        short=(f"first        request {first.answer.request_id}, token {first.index + 1}: {first.detail} ({first.parameter})",),
        evidence=(*_describe_matrix(matrix, judged.arm), *_list_broken(broken)),
        cell=f"{most_broken} {matrix[split_names(most_broken)[0]].judged}",
        names=name,
        figures={"broken_tokens": float(len(broken)), "law_tokens": float(len(judged.tokens))},  # tokens under a rule
        parameters=_effects_by_arm(captured, matrix),
    )


def _find_ignored(peers: Sequence[ArmEffects]) -> set[str]:
    return set[str]().union(*(peer.ignored for peer in peers))


def _describe_peers(broken: Sequence[CheckedToken], peers: Sequence[ArmEffects]) -> str:
    counts = [sum(token.broken for token in peer.under(name)) for peer in peers for name in {token.parameter for token in broken}]
    return f"the baseline's break {sum(counts):,}" if sum(counts) else "the baseline's break none"


def _fault_name(captured: Captured, judged: ArmEffects, broken: Sequence[CheckedToken]) -> str:
    """Return the fault's name: the parameters and their common place.

    The place is one in the verify windows, or temperatures other than 1 if the same parameters work at temperature 1. More than three
    parameters get one common name.
    """
    names = [name for name in PARAMETERS if name in parameters_of(broken)]
    place = _describe_position(captured, broken)
    if len(names) > _SEVERAL:
        return f"sampling parameters are ignored{place}"
    if not place and all(token.warmed for token in broken):
        # A token that is not ``warmed`` is drawn at temperature 1.
        right_at_one = parameters_of([token for token in judged.tokens if token.binds and not token.warmed and not token.broken])
        if set(names) <= right_at_one:
            return f"{' and '.join(names)} is wrong at temperatures other than 1"
    return f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} ignored{place}"


def _describe_position(captured: Captured, broken: Sequence[CheckedToken]) -> str:
    """Return the common place of rule-breaking tokens in their verify windows.

    It ends the fault's name: `` at the bonus position``. Empty if a token's window is unknown, if the tokens have no place in common, or if
    as many tokens drawn at random from all answers would all lie there with a probability above 1%.
    """
    places = [place for token in broken if (place := _find_place(captured, token.answer, token.index)) is not None]
    if len(places) < len(broken) or not places:
        return ""
    everywhere = [place for answer in captured.speculative.answers if answer.ok for place in _window_places(captured, answer)]
    for words, common in (
        (" at the bonus position", {_WindowPlace.BONUS}),
        (" after the first token of a window", {_WindowPlace.LATER_DRAFT, _WindowPlace.BONUS}),
        (" at draft positions", {_WindowPlace.FIRST_DRAFT, _WindowPlace.LATER_DRAFT}),
    ):
        rate = sum(place in common for place in everywhere) / max(1, len(everywhere))
        if set(places) <= common and rate ** len(places) <= _CHANCE:
            return words
    return ""


class _WindowPlace(Enum):
    """Places of a token in its verify window."""

    FIRST_DRAFT = auto()
    LATER_DRAFT = auto()
    BONUS = auto()
    """After all draft tokens."""
    NO_DRAFT = auto()
    """In a window without a draft."""


def _find_place(captured: Captured, answer: Answer, index: int) -> _WindowPlace | None:
    places = _window_places(captured, answer)
    return places[index] if index < len(places) else None


def _window_places(captured: Captured, answer: Answer) -> tuple[_WindowPlace, ...]:
    """Return each token's place in its verify window; empty if unknown."""
    windows, count = answer.choice.windows, len(answer.choice.token_ids)
    if windows is None:
        return ()
    source = drafting(captured)
    slots = slots_from_windows(windows, count, lambda start: source.draft_length(answer, start))
    return tuple(map(_classify_place, slots.slot.tolist(), slots.draft_slot.tolist(), slots.bonus_slot.tolist()))


def _classify_place(slot: int, is_draft: bool, is_bonus: bool) -> _WindowPlace:  # noqa: FBT001 - mapped over three arrays
    """Return the place of one token; ``slot`` is its index in its verify window."""
    if is_bonus:
        return _WindowPlace.BONUS
    if not is_draft:
        return _WindowPlace.NO_DRAFT
    return _WindowPlace.LATER_DRAFT if slot else _WindowPlace.FIRST_DRAFT


def _refuse_parameters(captured: Captured, matrix: _Matrix) -> Verdict | None:
    """Return REFUSED if only the judged arm refuses parameters, else None; callers exclude ignored ones first."""
    names = [
        name
        for name, effects in matrix.items()
        if effects.judged is ParameterEffect.REFUSED and effects.baseline not in {ParameterEffect.REFUSED, ParameterEffect.ABSENT}
    ]
    if not names:
        return None
    return say(
        captured,
        Outcome.REFUSED,
        f"{', '.join(names)} refused with a 4xx, which the baseline answers; no other sampling parameter is ignored",
        evidence=(*_describe_matrix(matrix, captured.speculative), *describe_refusals(captured.speculative.answers)),
        cell=", ".join(names) if len(names) <= _NAMED else f"{len(names)} parameters",
        figures={"refused_parameters": float(len(names))},
        parameters=_effects_by_arm(captured, matrix),
    )


def _check_parameters_bound(captured: Captured, baseline: ArmEffects, matrix: _Matrix) -> Verdict | None:
    """Return INCONCLUSIVE if too few parameters bind on the baseline, else None; undecided ones do not count."""
    bound = [
        name
        for name, effects in matrix.items()
        if effects.baseline is ParameterEffect.HONOURED and effects.judged is not ParameterEffect.UNDECIDED
    ]
    if len(bound) >= LEAST_BOUND:
        return None
    return say(
        captured,
        Outcome.INCONCLUSIVE,
        f"only {len(bound)} parameters show an effect on the baseline that can be decided: nothing would show that the others are ignored"
        f"{_describe_undecided(matrix)}",
        evidence=_describe_matrix(matrix, captured.speculative),
        settle="requests on which the parameters bind, as suites/parameters sends them",
        cell="did not bind",
        figures={"bound_parameters": float(len(bound)), "law_tokens": float(len(baseline.tokens))},  # tokens under a rule
        parameters=_effects_by_arm(captured, matrix),
    )


def _pass_parameters(captured: Captured, judged: ArmEffects, baseline: ArmEffects, matrix: _Matrix, tolerance: Tolerance) -> Verdict:
    """Return PASS, with the parameters honoured on both arms.

    The headline lists the parameters that the baseline itself ignores.
    """
    honoured = [name for name, effects in matrix.items() if effects.baseline is effects.judged is ParameterEffect.HONOURED]
    bound = sum(token.binds and not set(split_names(token.parameter)).isdisjoint(honoured) for token in judged.tokens)
    ignored = [name for name, effects in matrix.items() if effects.baseline is ParameterEffect.IGNORED]
    excused = f"; ignored by the baseline itself: {', '.join(ignored)}" if ignored else ""
    return say(
        captured,
        Outcome.PASS,
        f"{len(honoured)} parameters honoured at {bound:,} tokens where they bind{excused}{_describe_undecided(matrix)}",
        evidence=_describe_matrix(matrix, judged.arm),
        rules_out=f"{describe_detectable(judged)}{_describe_unmeasured(judged)}{describe_first_differences(judged)}. "
        f"Greedy choices to {tolerance.gap:.3g} nats",
        cell=f"{len(honoured)} honoured",
        figures={
            "honoured_parameters": float(len(honoured)),
            "bound_tokens": float(bound),
            "baseline_bound_tokens": float(sum(token.binds for token in baseline.tokens)),
            "law_tokens": float(len(judged.tokens)),
        },
        parameters=_effects_by_arm(captured, matrix),
    )


def _describe_undecided(matrix: _Matrix) -> str:
    """Return a clause on parameters that were not decided; empty if all were."""
    names = [name for name, effects in matrix.items() if effects.judged is ParameterEffect.UNDECIDED]
    why = "no reported log-probabilities show the noise; too few tokens, or the baseline's own break the rule"
    return f"; not decided: {', '.join(names)} ({why})" if names else ""


def _describe_unmeasured(judged: ArmEffects) -> str:
    """Return a clause on rules with unmeasured tokens, with the share of broken ones caught; empty without any.

    Rules that have too few of them to catch half are left out, since they are not decided.
    """
    shares = {name: share for name, share in judged.detectable_unmeasured_shares().items() if share < _HALF}
    return f"; of {', '.join(shares)}, held to the baseline's choices alone, a share above {max(shares.values()):.0%}" if shares else ""


def _effects_by_arm(captured: Captured, matrix: _Matrix) -> dict[str, dict[str, str]]:
    """Return the matrix by arm and parameter, as a verdict stores it."""
    baseline = {name: effects.baseline.value for name, effects in matrix.items()}
    return {BASELINE: baseline, captured.arm: {name: effects.judged.value for name, effects in matrix.items()}}


def _describe_matrix(matrix: _Matrix, arm: Transcript) -> tuple[str, ...]:
    """Return the matrix, a line per parameter."""
    return tuple(f"{name}: baseline {effects.baseline}, {arm.arm} {effects.judged}" for name, effects in matrix.items())


def _list_broken(broken: Sequence[CheckedToken]) -> tuple[str, ...]:
    lines = [f"{token.answer.request_id}, token {token.index + 1}: {token.detail} ({token.parameter})" for token in broken[:_SHOWN]]
    return (*lines, *([f"and {len(broken) - _SHOWN:,} more"] if len(broken) > _SHOWN else []))
