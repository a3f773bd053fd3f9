"""Parameters: what a request's fields ask for is what the server does, at draft positions as elsewhere.

Workloads that set penalties alone are judged by greedy, token by token. Other parameters are judged by their laws
(judge/parameter_rules.py): each answer is held to its own request, and a parameter counts only if it binds on the baseline, that is, if it
changes which token comes. Parameters that the baseline ignores are reported.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from pytest_specdec.judge import greedy
from pytest_specdec.judge.ending import check_endings
from pytest_specdec.judge.liveness import server_failure
from pytest_specdec.judge.parameter_effects import ArmEffects, ParameterEffect, arm_effects, parameters_of, split_names
from pytest_specdec.judge.parameter_rules import (
    PARAMETERS,
    LawToken,
    set_parameters,
)
from pytest_specdec.judge.prerequisites import describe_refusals, is_refusal, refusal, speculating, unscorable
from pytest_specdec.judge.sampling.draft_distribution import drafting
from pytest_specdec.judge.tolerance import allowed_gap
from pytest_specdec.judge.verdicts import say
from pytest_specdec.model.pair import BASELINE
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.stats import proportions
from pytest_specdec.stats.verify_slots import slots_from_windows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_specdec.judge.tolerance import Tolerance
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Answer, Transcript
    from pytest_specdec.model.verdict import Verdict

__all__ = ["judge"]

_PENALTIES: Final = {"temperature", "presence_penalty", "frequency_penalty"}
LEAST_BOUND: Final = 3
"""Parameters that must bind on the baseline for a pass: a third of those with a law."""
_SEVERAL: Final = 3
"""Parameters broken at once from which the fault is not one of a single parameter."""
_CHANCE: Final = 0.01
_SHOWN: Final = 30
_NAMED: Final = 2
"""Refused parameters that a cell of the table names; more are counted."""


def judge(captured: Captured) -> Verdict:
    """Judge whether every token is allowed by its request's parameters.

    The baseline's distribution after the answer's own prefix tells which tokens are allowed. A law broken beyond chance is a FAIL, unless
    the baseline or its control breaks it beyond chance or as often. REFUSED, by name, if parameters are refused that the baseline
    answers. INCONCLUSIVE if too few parameters bind on the baseline to show that others are ignored.
    """
    if all(set(set_parameters(request.body)) <= _PENALTIES and request.greedy for request in captured.workload.requests):
        return greedy.judge(captured)
    return _check_harm(captured) or server_failure(captured) or refusal(captured) or check_endings(captured) or _judge_effects(captured)


def _judge_effects(captured: Captured) -> Verdict:
    """Judge all tokens by their laws, and return the first verdict.

    INVALID if ids of a prompt are missing that a penalty counts, or if the baseline is too noisy.
    """
    tolerance = allowed_gap(captured, ())
    try:
        mine = arm_effects(captured, captured.speculative, tolerance)
        peers = tuple(arm_effects(captured, peer, tolerance) for peer in captured.baseline_boots)
    except ValueError as error:
        return say(captured, Outcome.INVALID, str(error))
    matrix = _matrix(captured, mine, peers)
    return (
        _check_noise(captured, tolerance)
        or _fail_parameters(captured, mine, peers, matrix)
        or unscorable(captured)
        or speculating(captured)
        or _refuse_parameters(captured, matrix)
        or _check_parameters_bound(captured, peers[0], matrix)
        or _pass_parameters(captured, mine, peers[0], matrix, tolerance)
    )


def _check_noise(captured: Captured, tolerance: Tolerance) -> Verdict | None:
    if tolerance.trustworthy:
        return None
    noise = tolerance.calibration.noise or 0.0
    return say(captured, Outcome.INVALID, f"the baseline does not repeat itself: logit noise {noise:.3f} nats, so no law can be held")


def _check_harm(captured: Captured) -> Verdict | None:
    """Return FAIL if all failed requests share a parameter, else None.

    The failures must have recurred, the baseline must have answered these requests, and the arm must have answered no request with that
    parameter. The temperature is not blamed if the requests have another parameter in common.
    """
    failed = {failure.request_id for failure in captured.speculative.server_failures if failure.recurred and not failure.group}
    bodies = {request.id: set(set_parameters(request.body)) for request in captured.workload.requests}
    answered = {answer.request_id for answer in captured.baseline.answers if answer.ok}
    if not failed or not failed <= answered:
        return None
    common = set.intersection(*(bodies.get(request_id, set()) for request_id in failed))
    if len(common) > 1:
        common -= {"temperature"}
    spared = {name for answer in captured.speculative.answers if answer.ok for name in bodies.get(answer.request_id, ())}
    named = [name for name in PARAMETERS if name in common - spared]
    if not named:
        return None
    name = f"{' and '.join(named)} is answered with a server error"
    headline = f"{name}: {len(failed)} requests, first {min(failed)}; the baseline answers all of them"
    return say(
        captured,
        Outcome.FAIL,
        headline,
        names=name,
        cell=f"{named[0]} harmful",
        figures={"failed_requests": float(len(failed))},
        parameters={captured.arm: dict.fromkeys(named, ParameterEffect.HARMFUL.value)},
    )


def _matrix(captured: Captured, mine: ArmEffects, peers: Sequence[ArmEffects]) -> Mapping[str, tuple[ParameterEffect, ParameterEffect]]:
    """Return each parameter's effect on the baseline and the judged arm."""
    ignored = _find_ignored(peers)
    binding = {name for peer in peers for token in peer.tokens if token.binds for name in split_names(token.parameter)}
    return {
        name: (
            _effect(captured, name, peers[0], ignored=name in ignored, binds=name in binding),
            _effect(captured, name, mine, ignored=name in parameters_of(mine.broken), binds=name in binding),
        )
        for name in PARAMETERS
    }


def _effect(captured: Captured, name: str, effects: ArmEffects, *, ignored: bool, binds: bool) -> ParameterEffect:
    """Return what an arm does with a parameter.

    Answers to requests that set it alone, or with a temperature, are preferred to those that set others as well. If all are refused, the
    parameter counts as refused only if a refusal blames it. ``binds`` tells whether it shows an effect on the baseline.
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
    """Return the parameters blamed by a refusal; all if it names none."""
    every = set(names)
    return {name for name in every if name in (answer.error or "")} or every


def _fail_parameters(
    captured: Captured,
    mine: ArmEffects,
    peers: Sequence[ArmEffects],
    matrix: Mapping[str, tuple[ParameterEffect, ParameterEffect]],
) -> Verdict | None:
    """Return FAIL if the judged arm breaks more laws than the baseline.

    None otherwise. Each law is compared by itself, and those of parameters that a boot of the baseline ignores are left out.
    """
    ignored = _find_ignored(peers)
    broken = [
        token for token in mine.broken if not ignored & set(split_names(token.parameter)) and _exceeds_peers(mine, peers, token.parameter)
    ]
    if not broken:
        return None
    name = _fault_name(captured, mine, broken)
    counts = Counter(token.parameter for token in broken)
    first = min(broken, key=lambda token: (token.index, token.answer.key))
    listed = ", ".join(f"{parameter} {count:,}" for parameter, count in counts.most_common())
    return say(
        captured,
        Outcome.FAIL,
        f"{name}: {len(broken):,} tokens break what their request asks for ({listed}); {_describe_peers(broken, peers)}",
        short=(f"first        request {first.answer.request_id}, token {first.index + 1}: {first.detail} ({first.parameter})",),
        evidence=(*_lines(matrix, mine.arm), *_list_broken(broken)),
        cell=f"{counts.most_common(1)[0][0]} {matrix[split_names(counts.most_common(1)[0][0])[0]][1]}",
        names=name,
        figures={"broken_tokens": float(len(broken)), "law_tokens": float(len(mine.tokens))},
        parameters=_by_arm(captured, matrix),
    )


def _find_ignored(peers: Sequence[ArmEffects]) -> set[str]:
    return set[str]().union(*(peer.ignored for peer in peers))


def _describe_peers(broken: Sequence[LawToken], peers: Sequence[ArmEffects]) -> str:
    counts = [sum(token.broken for token in peer.under(name)) for peer in peers for name in {token.parameter for token in broken}]
    return f"the baseline's break {sum(counts):,}" if sum(counts) else "the baseline's break none"


def _exceeds_peers(mine: ArmEffects, peers: Sequence[ArmEffects], name: str) -> bool:
    """Return True if the judged arm breaks a law more often.

    It is compared with the baseline's boots. True also if they never break it. If they do, within chance, their rate is a better measure
    than the computed chance.
    """
    theirs = [token for peer in peers for token in peer.under(name)]
    hits = sum(token.broken for token in theirs)
    own = mine.under(name)
    return not hits or proportions.greater_than_other(sum(token.broken for token in own), len(own), hits, len(theirs)) <= mine.alpha


def _fault_name(captured: Captured, mine: ArmEffects, broken: Sequence[LawToken]) -> str:
    """Return the fault's name: the parameters and their common place.

    Many parameters get one common name. A fault at warmed positions alone is named so if the same parameters work at temperature 1.
    """
    names = [name for name in PARAMETERS if name in parameters_of(broken)]
    if len(names) > _SEVERAL:
        return f"sampling parameters are ignored{_describe_position(captured, broken)}"
    place = _describe_position(captured, broken)
    warmed = all(token.warmed for token in broken)
    cold = {name for token in mine.tokens if token.binds and not token.warmed and not token.broken for name in split_names(token.parameter)}
    if warmed and not place and set(names) <= cold:
        return f"{' and '.join(names)} is wrong at temperatures other than 1"
    return f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} ignored{place}"


def _describe_position(captured: Captured, broken: Sequence[LawToken]) -> str:
    """Return the place in the windows common to all broken tokens.

    Empty if there is none. A place is named only if evenly spread tokens would all lie there with a probability of 1% at most.
    """
    known = [slot for token in broken if (slot := _slot(captured, token.answer, token.index)) is not None]
    if len(known) < len(broken) or not known:
        return ""
    everywhere = [slot for answer in captured.speculative.answers if answer.ok for slot in _window_slots(captured, answer)]
    for words, marks in (
        (" at the bonus position", {"bonus"}),
        (" behind the first token of a window", {"draft", "bonus"}),
        (" at draft positions", {"first", "draft"}),
    ):
        share = sum(slot in marks for slot in everywhere) / max(1, len(everywhere))
        if set(known) <= marks and share ** len(known) <= _CHANCE:
            return words
    return ""


def _slot(captured: Captured, answer: Answer, index: int) -> str | None:
    slots = _window_slots(captured, answer)
    return slots[index] if index < len(slots) else None


def _window_slots(captured: Captured, answer: Answer) -> tuple[str, ...]:
    """Return the place of each token in its verify window.

    ``first`` and ``draft`` are the first and the later draft positions, ``bonus`` is the one after all of them, ``plain`` is a token
    without a draft. Empty if the windows are unknown.
    """
    windows, count = answer.choice.windows, len(answer.choice.token_ids)
    if windows is None:
        return ()
    known = drafting(captured)
    slots = slots_from_windows(windows, count, lambda start: known.draft_length(answer, start))
    names = zip(slots.draft_slot.tolist(), slots.bonus_slot.tolist(), slots.slot.tolist(), strict=True)
    return tuple("bonus" if bonus else ("first" if slot == 0 else "draft") if draft else "plain" for draft, bonus, slot in names)


def _refuse_parameters(captured: Captured, matrix: Mapping[str, tuple[ParameterEffect, ParameterEffect]]) -> Verdict | None:
    """Return REFUSED if only the judged arm refuses parameters, else None."""
    names = [
        name for name, (theirs, mine) in matrix.items() if mine is ParameterEffect.REFUSED and theirs not in {mine, ParameterEffect.ABSENT}
    ]
    if not names:
        return None
    return say(
        captured,
        Outcome.REFUSED,
        f"{', '.join(names)} refused with a 4xx, which the baseline answers; no other sampling parameter is ignored",
        evidence=(*_lines(matrix, captured.speculative), *describe_refusals(captured.speculative.answers)),
        cell=", ".join(names) if len(names) <= _NAMED else f"{len(names)} parameters",
        figures={"refused_parameters": float(len(names))},
        parameters=_by_arm(captured, matrix),
    )


def _check_parameters_bound(
    captured: Captured, baseline: ArmEffects, matrix: Mapping[str, tuple[ParameterEffect, ParameterEffect]]
) -> Verdict | None:
    """Return INCONCLUSIVE if too few parameters bind on the baseline, else None."""
    bound = [name for name, (theirs, _) in matrix.items() if theirs is ParameterEffect.HONOURED]
    if len(bound) >= LEAST_BOUND:
        return None
    return say(
        captured,
        Outcome.INCONCLUSIVE,
        f"only {len(bound)} parameters show an effect on the baseline: nothing would show that the others are ignored",
        evidence=_lines(matrix, captured.speculative),
        settle="requests on which the parameters bind, as suites/parameters sends them",
        cell="did not bind",
        figures={"bound_parameters": float(len(bound)), "law_tokens": float(len(baseline.tokens))},
        parameters=_by_arm(captured, matrix),
    )


def _pass_parameters(
    captured: Captured,
    mine: ArmEffects,
    baseline: ArmEffects,
    matrix: Mapping[str, tuple[ParameterEffect, ParameterEffect]],
    tolerance: Tolerance,
) -> Verdict:
    """Return PASS, with the parameters that the baseline itself ignores."""
    both = [name for name, pair in matrix.items() if pair == (ParameterEffect.HONOURED, ParameterEffect.HONOURED)]
    bound = sum(token.binds for token in mine.tokens)
    ignored = [name for name, (theirs, _) in matrix.items() if theirs is ParameterEffect.IGNORED]
    excused = f"; ignored by the baseline itself: {', '.join(ignored)}" if ignored else ""
    return say(
        captured,
        Outcome.PASS,
        f"{len(both)} parameters honoured at {bound:,} tokens where they bind{excused}",
        evidence=_lines(matrix, mine.arm),
        rules_out=f"{bound:,} tokens at which a parameter binds; a share above {proportions.ruled_out(bound):.2%} of them without it would "
        f"have been caught (99%). Greedy choices to {tolerance.gap:.3g} nats",
        cell=f"{len(both)} honoured",
        figures={
            "honoured_parameters": float(len(both)),
            "bound_tokens": float(bound),
            "baseline_bound_tokens": float(sum(token.binds for token in baseline.tokens)),
            "law_tokens": float(len(mine.tokens)),
        },
        parameters=_by_arm(captured, matrix),
    )


def _by_arm(captured: Captured, matrix: Mapping[str, tuple[ParameterEffect, ParameterEffect]]) -> dict[str, dict[str, str]]:
    """Return the matrix by arm and parameter, as a verdict stores it."""
    theirs = {name: effect.value for name, (effect, _) in matrix.items()}
    return {BASELINE: theirs, captured.arm: {name: effect.value for name, (_, effect) in matrix.items()}}


def _lines(matrix: Mapping[str, tuple[ParameterEffect, ParameterEffect]], arm: Transcript) -> tuple[str, ...]:
    """Return the matrix, a line per parameter."""
    return tuple(f"{name}: baseline {theirs}, {arm.arm} {mine}" for name, (theirs, mine) in matrix.items())


def _list_broken(broken: Sequence[LawToken]) -> tuple[str, ...]:
    lines = [f"{token.answer.request_id}, token {token.index + 1}: {token.detail} ({token.parameter})" for token in broken[:_SHOWN]]
    return (*lines, *([f"and {len(broken) - _SHOWN:,} more"] if len(broken) > _SHOWN else []))
