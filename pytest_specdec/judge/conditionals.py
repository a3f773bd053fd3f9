"""Conditionals: what a sampling judge needs of a capture, as arrays over the emitted tokens in the order of the requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.judge.dependence import copies, ends, fresh, repeats
from pytest_specdec.judge.drafting import drafting
from pytest_specdec.judge.tolerance import logit_noise
from pytest_specdec.stats import adjustments
from pytest_specdec.stats.adjustments import Penalties
from pytest_specdec.stats.calibration import INVALID_ABOVE
from pytest_specdec.stats.laws import NOISE, Processing, requested
from pytest_specdec.stats.panel import Observed
from pytest_specdec.stats.places import Places, joined, placed, unplaced
from pytest_specdec.stats.positions import raw

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.judge.drafting import Drafting
    from pytest_specdec.model.answer import Answer
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.score import Position, Score
    from pytest_specdec.model.workload import JSON
    from pytest_specdec.stats.adjustments import Adjustment
    from pytest_specdec.stats.calibration import Calibration
    from pytest_specdec.stats.duplicates import Repeats
    from pytest_specdec.stats.laws import Floats, Ints, Raw

__all__ = ["Asked", "Gathered", "asked", "gather"]

NEUTRAL: Mapping[str, tuple[JSON, ...]] = {
    "min_tokens": (0,),
    "bad_words": ([], ()),
    "allowed_token_ids": (),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "tools": ([], ()),
}
"""Fields of a request that change the law in ways not modelled here, with the values at which they do not; None is neutral for all."""

NONE = Penalties()
MOST_BIAS = 100.0
"""Larger biases are cut down to it, by OpenAI's rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a request asks to be done to the raw law."""

    temperature: float = 1.0
    top_k: int = 0
    """0 for all tokens."""
    top_p: float = 1.0
    min_p: float = 0.0
    penalties: Penalties = NONE
    unmodelled: str = ""
    """Why its law cannot be computed; empty when it can."""


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


def asked(body: Mapping[str, JSON]) -> Asked:
    """Return what ``body`` asks for; OpenAI's defaults where it does not say."""
    for field, neutral in NEUTRAL.items():
        value = body.get(field)
        if value is not None and value not in neutral:
            return Asked(unmodelled=f"{field} is not modelled")
    temperature = _number(body.get("temperature"), 1.0)
    if temperature <= 0.0:
        return Asked(unmodelled="temperature 0 leaves nothing to draw")
    return Asked(
        temperature=temperature,
        top_k=max(int(_number(body.get("top_k"), 0)), 0),
        top_p=_number(body.get("top_p"), 1.0),
        min_p=_number(body.get("min_p"), 0.0),
        penalties=_penalties(body),
    )


def _penalties(body: Mapping[str, JSON]) -> Penalties:
    bias = body.get("logit_bias")
    given = bias if isinstance(bias, Mapping) else {}
    return Penalties(
        presence=_number(body.get("presence_penalty"), 0.0),
        frequency=_number(body.get("frequency_penalty"), 0.0),
        repetition=_number(body.get("repetition_penalty"), 1.0),
        bias={int(token): min(max(_number(value, 0.0), -MOST_BIAS), MOST_BIAS) for token, value in given.items()},
    )


def _number(value: JSON, default: float) -> float:
    return float(value) if isinstance(value, int | float) else default


def gather(captured: Captured) -> Gathered:
    """Return the emitted tokens of the judged arm with their laws and places."""
    scores = {score.key: score for score in captured.scores.get(captured.arm, ())}
    bodies = {request.id: asked(request.body) for request in captured.workload.requests}
    draft = drafting(captured)
    skipped: dict[str, int] = {}
    parts: list[_Part] = []
    for answer in captured.speculative.answers:
        wish = bodies.get(answer.request_id, Asked())
        reason = "not answered 200" if not answer.ok else wish.unmodelled or ("" if _emitted(answer) else "no token emitted")
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
    observed = _observed(captured, parts, draft, noise)
    return Gathered(
        observed=observed,
        answers=len(parts),
        skipped=lines,
        draft_law=draft.unknown,
        calibration=calibration,
        repeats=None if observed.copies is None else repeats(captured, [part.answer for part in parts], observed.law),
    )


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
    return ""


def _places(answer: Answer, draft: Drafting) -> Places:
    tokens, told = len(answer.choice.token_ids), answer.choice.windows
    windows = draft.windows(answer) if told is None else told
    if windows is None:
        return unplaced(tokens)
    return replace(placed(windows, tokens, lambda start: draft.drafted(answer, start)), implied=told is None)


def _observed(captured: Captured, parts: Sequence[_Part], draft: Drafting, noise: float) -> Observed:
    vocabulary = max((known.vocabulary for known in captured.capabilities.values()), default=0)
    law_of = raw([position for part in parts for position in part.positions], captured.workload.atoms, vocabulary)
    processing = _processing(parts, law_of.ids)
    law = requested(law_of, processing, noise)
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
        listed=None if view is None else view.listed,
        q_unasked=None if view is None else view.q_unasked,
        previous=_previous(answers),
        contexts=_contexts(answers),
        fresh=np.repeat(fresh(captured, answers), [len(part.positions) for part in parts]),
        vocabulary=vocabulary,
        ends=ends(captured, law_of.ids),
        copies=copies(captured, answers, law, law_of.ids),
        mishandled=_mishandled(law_of, processing),
    )


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
    return adjustments.joined(
        [
            adjustments.adjustment(part.asked.penalties, part.answer.prompt_token_ids, part.answer.choice.token_ids, atoms)
            for part, atoms in zip(parts, rows, strict=True)
        ]
    )
