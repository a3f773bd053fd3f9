"""What the sampling judge needs of a capture, as arrays over the emitted tokens in the order of the plan."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from math import inf, isnan
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.judge.draft_distribution import drafting
from pytest_specdec.judge.tolerance import logit_noise
from pytest_specdec.model.pair import BASELINE
from pytest_specdec.model.transcript import ScoringRoute
from pytest_specdec.stats import duplicates, penalties
from pytest_specdec.stats.logprob_noise import INVALID_ABOVE
from pytest_specdec.stats.request_params import Asked, asked
from pytest_specdec.stats.token_distribution import NOISE, Processing, raw, requested
from pytest_specdec.stats.verify_slots import Observed, Places, joined, placed, unplaced

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.judge.draft_distribution import Drafting
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Answer, Position, Score
    from pytest_specdec.model.workload import Request
    from pytest_specdec.stats.duplicates import Repeats
    from pytest_specdec.stats.logprob_noise import Calibration
    from pytest_specdec.stats.penalties import Adjustment
    from pytest_specdec.stats.token_distribution import Bools, Floats, Ints, Law, Raw

__all__ = ["SEED_AGAIN", "Gathered", "copies", "ends", "fresh", "gather", "law_of", "repeats"]

SEED_AGAIN = "its seed was asked for before"
"""Why an answer is no draw of its own."""
_UNSAID = {"seed", "logprobs", "top_logprobs"}
"""Fields in which two requests may differ and still ask for draws from one law."""


def ends(captured: Captured, ids: Ints) -> Bools | None:
    """Return which outcomes [N, K+1] end an answer, from how the baseline's own answers ended; None where none shows it.

    Of the arm under judgement nothing is read: a bet may not hang on what it is on. Stop strings end answers at any token.
    """
    free = {request.id for request in captured.workload.requests if not request.body.get("stop")}
    last = {
        answer.choice.token_ids[-1]
        for answer in captured.baseline.answers
        if answer.ok and answer.request_id in free and answer.choice.finish_reason == "stop" and answer.choice.token_ids
    }
    if not last or captured.arm == BASELINE:
        return None
    marked = np.isin(ids, sorted(last))
    return np.asarray(np.column_stack([marked, np.zeros(len(ids), dtype=np.bool_)]))


def copies(captured: Captured, answers: Sequence[Answer], law: Law, ids: Ints) -> Floats | None:
    """Return the law [N, K+1] of a server that may give an answer again; None where no prompt is asked twice."""
    prompts = _prompts(captured, answers)
    if len(set(prompts)) == len(prompts):
        return None
    return duplicates.again(law, ids, _tokens(answers), prompts)


def repeats(captured: Captured, answers: Sequence[Answer], law: Law) -> Repeats:
    """Return how often answers to one prompt began alike."""
    return duplicates.repeats(law, _tokens(answers), _prompts(captured, answers))


def fresh(captured: Captured, answers: Sequence[Answer]) -> Bools:
    """Return which answers are draws of their own, [answers]: not those to a seed that an earlier answer was drawn with.

    A generator of the request's own gives the same noise to all that is asked with one seed, whatever the prompt, the limit or the pass.
    """
    asked = {request.id: request.body.get("seed") for request in captured.workload.requests}
    seen: set[object] = set()
    own = []
    for answer in answers:
        seed = asked.get(answer.request_id) if answer.ok else None
        own.append(seed is None or seed not in seen)
        seen.add(seed)
    return np.array(own, dtype=np.bool_)


def _tokens(answers: Sequence[Answer]) -> list[tuple[int, ...]]:
    return [answer.choice.token_ids for answer in answers]


def _prompts(captured: Captured, answers: Sequence[Answer]) -> list[object]:
    """Return what each answer is to: equal where two requests ask for independent draws from one law, and unique where not.

    A seed asked for twice is to give the same answer twice.
    """
    asked = {request.id: request for request in captured.workload.requests}
    seen: set[tuple[object, object]] = set()
    prompts: list[object] = []
    for answer in answers:
        request = asked.get(answer.request_id)
        key: object = answer.key if request is None else law_of(request)
        seed = None if request is None else request.body.get("seed")
        if seed is not None and (key, seed) in seen:
            key = answer.key
        seen.add((key, seed))
        prompts.append(key)
    return prompts


def law_of(request: Request) -> str:
    """Return what is equal for requests that ask for draws from one law: the body without seed and reported log-probabilities."""
    return json.dumps({name: value for name, value in request.body.items() if name not in _UNSAID}, sort_keys=True)


COLDEST = 0.01
"""Temperature below which laws overflow; vLLM takes lower ones for it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gathered:
    """The tokens to judge, or why there are none."""

    observed: Observed | None = None
    answers: int = 0
    """Answers that are judged."""
    skipped: tuple[str, ...] = ()
    """What was left out, a line per reason."""
    broken: str = ""
    """Why the set-up allows no judgement; empty when it does."""
    draft_law: str = ""
    """Why the draft's law is not known; empty when it is."""
    calibration: Calibration | None = None
    """The noise between what the baseline's boots reported and their scores; None where nothing is judged."""
    repeats: Repeats | None = None
    """How often answers to one prompt began alike; None where no prompt is asked twice."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Part:
    """One answer's share of the arrays."""

    answer: Answer
    asked: Asked
    positions: tuple[Position, ...]
    draft: Drafting
    places: Places


def gather(captured: Captured, *, lean: float = 0.0) -> Gathered:
    """Return the emitted tokens of the judged arm with their laws and places, the baseline's law taken to the power ``1 + lean``."""
    scores = {score.key: score for score in captured.scores.get(captured.arm, ())}
    bodies = {request.id: asked(request.body) for request in captured.workload.requests}
    draft = drafting(captured)
    skipped: dict[str, int] = {}
    parts: list[_Part] = []
    for answer, own in zip(captured.speculative.answers, fresh(captured, captured.speculative.answers), strict=True):
        wish = bodies.get(answer.request_id, Asked())
        reason = _reason(answer, wish) or ("" if own else SEED_AGAIN)
        if reason:
            skipped[reason] = skipped.get(reason, 0) + 1
            continue
        score = scores.get(answer.key)
        if broken := _broken(answer, score, wish):
            return Gathered(broken=broken)
        assert score is not None
        parts.append(_Part(answer=answer, asked=wish, positions=score.positions, draft=draft, places=_places(answer, draft)))
    lines = tuple(f"{count} requests not judged: {reason}" for reason, count in skipped.items())
    if not parts:
        return Gathered(skipped=lines, draft_law=draft.unknown)
    calibration = logit_noise(captured)
    noise = min(max(NOISE, calibration.noise or 0.0), INVALID_ABOVE)
    observed = _observed(captured, parts, draft, noise, lean)
    return Gathered(
        observed=observed,
        answers=len(parts),
        skipped=lines,
        draft_law=draft.unknown,
        calibration=calibration,
        repeats=None if observed.copies is None else repeats(captured, [part.answer for part in parts], observed.law),
    )


def _reason(answer: Answer, wish: Asked) -> str:
    """Say why an answer is left out; empty where it is judged."""
    if not answer.ok:
        return "not answered 200"
    if not wish.unmodelled and wish.temperature < COLDEST:
        return f"temperature below {COLDEST:g}, which servers round"
    return wish.unmodelled or ("" if _emitted(answer) else "no token emitted")


def _emitted(answer: Answer) -> bool:
    said = answer.usage is not None and answer.usage.completion_tokens > 0
    return bool(answer.choice.token_ids or answer.choice.text or said)


def _broken(answer: Answer, score: Score | None, wish: Asked) -> str:
    """Say what of an answer cannot be judged although it should; token ids and scores must be there for all that was answered."""
    ids = answer.choice.token_ids
    if not ids:
        return f"the answer to {answer.request_id} came without token ids"
    if wish.penalties.repetition != 1.0 and not answer.prompt_token_ids:
        return f"the prompt's token ids of {answer.request_id} are missing, which a repetition penalty goes by"
    if score is None:
        return f"the baseline's scores of {answer.request_id} are missing"
    if tuple(position.token_id for position in score.positions) != ids:
        return f"the baseline scored {len(score.positions)} tokens of {answer.request_id} that are not the {len(ids)} emitted"
    if not all(_is_told(position) for position in score.positions):
        return f"the baseline's scores of {answer.request_id} list no probabilities for one of its tokens"
    return ""


def _is_told(position: Position) -> bool:
    """Whether a score tells anything of the law at its token, in numbers."""
    return bool(position.atom_logprobs) and max(position.atom_logprobs) > -inf and not any(map(isnan, position.atom_logprobs))


def _places(answer: Answer, draft: Drafting) -> Places:
    tokens, told = len(answer.choice.token_ids), answer.choice.windows
    windows = draft.windows(answer) if told is None else told
    if windows is None:
        return unplaced(tokens)
    return replace(placed(windows, tokens, lambda start: draft.drafted(answer, start)), implied=told is None)


def _observed(captured: Captured, parts: Sequence[_Part], draft: Drafting, noise: float, lean: float) -> Observed:
    law_of = raw([position for part in parts for position in part.positions], captured.workload.atoms, captured.vocabulary)
    processing = _processing(parts, law_of.ids)
    upright = processing.leaning(lean) if lean else processing
    law = requested(law_of, upright, noise)
    places = joined([part.places for part in parts])
    answers = [part.answer for part in parts]
    view = draft.view(answers, places, law_of.ids, law, processing)
    return Observed(
        law=law,
        ids=law_of.ids,
        q=None if view is None else view.q,
        drafted=np.zeros(len(law.outcome), dtype=np.bool_) if view is None else view.drafted,
        places=places,
        k=captured.pair.variant.draft.tokens,
        kept=None if view is None else view.kept,
        q_chosen=None if view is None or _listed_only(captured) else view.chosen,
        accept=None if view is None else view.accept,
        listed=None if view is None else view.listed,
        q_unasked=None if view is None else view.q_unasked,
        previous=_previous(answers),
        contexts=_contexts(answers),
        vocabulary=captured.vocabulary,
        ends=ends(captured, law_of.ids),
        copies=copies(captured, answers, law, law_of.ids),
        mishandled=_mishandled(law_of, upright),
    )


def _listed_only(captured: Captured) -> bool:
    """Whether the route to the law tells a token's probability among the atoms only: the capability probe settled it, no emitted token."""
    known = captured.capabilities.get(BASELINE)
    return known is not None and known.route is ScoringRoute.CONTINUATIONS


def _previous(answers: Sequence[Answer]) -> Ints:
    return np.array([token for answer in answers for token in (-1, *answer.choice.token_ids[:-1])], dtype=np.int64)


def _contexts(answers: Sequence[Answer]) -> Ints:
    """Return a number for each token's prompt and answer so far: the node of a trie that every prefix leads to."""
    nodes: dict[tuple[object, int], int] = {}
    found = []
    for answer in answers:
        here = nodes.setdefault((answer.prompt_token_ids or answer.key, -1), len(nodes))
        for token in answer.choice.token_ids:
            found.append(here)
            here = nodes.setdefault((here, token), len(nodes))
    return np.array(found, dtype=np.int64)


def _mishandled(law_of: Raw, processing: Processing) -> Mapping[str, Floats]:
    if processing.adjustment is None:
        return {}
    times = {"penalties and biases ignored": 0.0, "penalties and biases applied twice": 2.0}
    return {
        name: requested(law_of, replace(processing, adjustment=processing.adjustment.times(factor))).p for name, factor in times.items()
    }


def _processing(parts: Sequence[_Part], ids: Ints) -> Processing:
    lengths = [len(part.positions) for part in parts]
    return Processing(
        temperature=np.repeat([part.asked.temperature for part in parts], lengths),
        top_k=np.repeat(np.array([part.asked.top_k for part in parts], dtype=np.int64), lengths),
        top_p=np.repeat([part.asked.top_p for part in parts], lengths),
        min_p=np.repeat([part.asked.min_p for part in parts], lengths),
        adjustment=_adjustment(parts, ids, lengths),
    )


def _adjustment(parts: Sequence[_Part], ids: Ints, lengths: Sequence[int]) -> Adjustment | None:
    if all(part.asked.penalties.neutral for part in parts):
        return None
    rows = np.split(ids, np.cumsum(lengths)[:-1])
    return penalties.joined(
        [
            penalties.adjustment(part.asked.penalties, part.answer.prompt_token_ids, part.answer.choice.token_ids, atoms)
            for part, atoms in zip(parts, rows, strict=True)
        ]
    )
