"""Fitting: what the scored answers of all arms tell of a drafter whose own law cannot be had."""

from __future__ import annotations

from math import inf, isnan
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.stats.fitted import Scored, law
from pytest_specdec.stats.laws import unasked
from pytest_specdec.stats.observed import NOBODY, WIDEST_VOCABULARY
from pytest_specdec.stats.positions import raw

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.model.answer import Answer
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.score import Position
    from pytest_specdec.stats.laws import Floats, Ints, Law

__all__ = ["fitted", "told"]

TINY = 1e-300


def fitted(captured: Captured, answers: Sequence[Answer], ids: Ints, law_of: Law, temperature: Floats) -> Floats:
    """Return the fitted law [N, K+1] at the tokens of the judged ``answers``, at the ``temperature`` [N] of their requests.

    ``ids`` [N, K] are the atoms of ``law_of``. It is told by the baseline's, the control's and the judged arm's own answers to requests
    that were judged before.
    """
    turns = {answer.key: turn for turn, answer in enumerate(answers)}
    judged = Scored(ids=ids, p=law_of.unasked, before=_before(answers), turn=_repeated(range(len(answers)), answers))
    arms = {one.arm: one.answers for one in (captured.baseline, captured.control) if one is not None and one.arm != captured.arm}
    others = [_scored(captured, arm, [one for one in said if one.key in turns], turns) for arm, said in arms.items()]
    found = law(judged, [judged, *(one for one in others if one is not None)], captured.vocabulary or WIDEST_VOCABULARY)
    logits = np.log(np.maximum(found, TINY)) / temperature[:, None]
    tempered = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(tempered / tempered.sum(axis=1, keepdims=True))


def told(position: Position) -> bool:
    """Whether a score tells anything of the law at its token, in numbers."""
    return bool(position.atom_logprobs) and max(position.atom_logprobs) > -inf and not any(map(isnan, position.atom_logprobs))


def _scored(captured: Captured, arm: str, answers: Sequence[Answer], turns: Mapping[tuple[str, int], int]) -> Scored | None:
    """Return the tokens of ``arm`` that were scored; None where none were."""
    scores = {score.key: score.positions for score in captured.scores.get(arm, ())}
    whole = [answer for answer in answers if answer.choice.token_ids and _scores(scores.get(answer.key, ()), answer)]
    if not whole:
        return None
    known = raw([position for answer in whole for position in scores[answer.key]], captured.workload.atoms)
    return Scored(ids=known.ids, p=unasked(known), before=_before(whole), turn=_repeated([turns[one.key] for one in whole], whole))


def _scores(positions: Sequence[Position], answer: Answer) -> bool:
    """Whether ``positions`` are the tokens of ``answer``, each with numbers."""
    return answer.ok and tuple(one.token_id for one in positions) == answer.choice.token_ids and all(map(told, positions))


def _repeated(turns: Sequence[int], answers: Sequence[Answer]) -> Ints:
    return np.repeat(turns, [len(one.choice.token_ids) for one in answers]).astype(np.int64)


def _before(answers: Sequence[Answer]) -> Ints:
    """Return the id before each token and the one before that, [N, 2]; the prompt's last two come before an answer's first."""
    found = []
    for answer in answers:
        ids = (NOBODY, NOBODY, *answer.prompt_token_ids[-2:], *answer.choice.token_ids)
        count = len(answer.choice.token_ids)
        found += list(zip(ids[-count - 1 : -1], ids[-count - 2 : -2], strict=True))
    return np.array(found, dtype=np.int64).reshape(-1, 2)
