"""Duplicates: answers that are not drawn independently, and answers that end too soon or too late.

Each answer alone may look right while requests depend on each other: one seed for all, state that leaks from a batch slot, the answer to
one request served to another. An independent answer begins with the tokens of an earlier one to the same prompt with the probability that
teacher forcing gives them, so that a repeated answer is one more alternative to the same conditional distributions.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.stats.draft_distribution import index_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.stats.token_distribution import Bools, Floats, Ints, TokenDistribution

__all__ = ["FIRST", "HAZARDS", "Repeats", "copy_distribution", "repeats", "scale_end_odds"]

HAZARDS = (2.0, 0.5)
"""Factors on the odds of the end of an answer, one alternative each."""
PRIOR = 0.02
"""Probability, before its first token, that an answer copies an earlier one."""
FIRST = 16
"""Tokens at the head of two answers that are compared for the report."""


def scale_end_odds(p: Floats, ends: Bools, factor: float) -> Floats:
    """Return ``p`` with the odds of an answer's end multiplied.

    ``p`` [N, K+1] is the distribution of each of N emitted tokens over K top tokens and the remainder. ``ends`` [N, K+1] marks the outcomes
    that end an answer: their odds are multiplied by ``factor``. The result is the distribution of a server whose answers end too soon
    (``factor`` above 1) or too late.
    """
    weight = np.where(ends, factor * p, p)
    return np.asarray(weight / weight.sum(axis=1, keepdims=True))


def copy_distribution(distribution: TokenDistribution, ids: Ints, answers: Sequence[tuple[int, ...]], prompts: Sequence[object]) -> Floats:
    """Return the token distributions of a server repeating its earlier answers.

    They are [N, K+1]: for each of the N emitted tokens of all ``answers``, over its top tokens ``ids`` [N, K] and the remainder. With
    probability PRIOR an answer repeats an earlier one to an equal prompt, each of them equally likely; Bayes' rule raises or lowers this
    probability from token to token. A row is p of ``distribution`` if no earlier answer agrees with the answer so far. ``answers`` have the
    emitted tokens in the order of the rows, ``prompts`` the prompt of each. Answers to equal prompts must not share a seed, since a seed
    makes a correct server repeat itself.
    """
    m, start = distribution.p.copy(), 0
    earlier: dict[object, list[tuple[int, ...]]] = {}
    for tokens, prompt in zip(answers, prompts, strict=True):
        earlier_answers = earlier.setdefault(prompt, [])
        if earlier_answers:
            _write_copy(m, distribution, ids, tokens, earlier_answers, start=start)
        earlier_answers.append(tokens)
        start += len(tokens)
    return m


def _write_copy(
    m: Floats, distribution: TokenDistribution, ids: Ints, tokens: tuple[int, ...], earlier: Sequence[tuple[int, ...]], *, start: int
) -> None:
    """Write the distribution of one answer, possibly a copy, into ``m``.

    ``m`` [N, K+1] has a row for each token, p so far, ``ids`` [N, K] the top tokens. ``tokens`` are the answer's, ``start`` is the row of
    the first one, and ``earlier`` has the earlier answers to its prompt, at least one. A row becomes the mixture of p and of the next
    tokens of the earlier answers that agree so far. Once none agrees, rows are left as they are.
    """
    # In proportion to the probabilities, given the tokens so far, of a copy of one agreeing earlier answer and of an independent answer.
    one_copy, independent, agreeing = PRIOR / len(earlier), 1.0 - PRIOR, list(earlier)
    for step, token in enumerate(tokens):
        agreeing = [other for other in agreeing if len(other) > step]
        if not agreeing:
            return
        row = start + step
        next_tokens = np.array([other[step] for other in agreeing], dtype=np.int64)
        outcomes = index_of(next_tokens, np.broadcast_to(ids[row], (len(agreeing), ids.shape[1])))
        copy_chance = one_copy * len(agreeing) / (one_copy * len(agreeing) + independent)
        m[row] = (1.0 - copy_chance) * distribution.p[row] + copy_chance * np.bincount(outcomes, minlength=m.shape[1]) / len(agreeing)
        # Bayes' rule: an independent answer has this token with probability p, a copy of an agreeing answer for certain.
        independent *= float(distribution.p[row, distribution.outcome[row]])
        agreeing = [other for other in agreeing if other[step] == token]
        # Only their ratio counts; this keeps both from becoming too small for a float.
        one_copy, independent = one_copy / (one_copy + independent), independent / (one_copy + independent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """Counts of pairs of answers to one prompt that begin alike."""

    pairs: int
    equal: int
    expected: float
    """Expected number under independence, from teacher forcing of the earlier answer of each pair."""

    def __str__(self) -> str:
        text = f"{self.equal:,} of {self.pairs:,} pairs of answers to one prompt begin with the same {FIRST} tokens"
        return f"{text}, {self.expected:.2g} expected of independent ones"


def repeats(distribution: TokenDistribution, answers: Sequence[tuple[int, ...]], prompts: Sequence[object]) -> Repeats:
    """Return counts of answer pairs to one prompt beginning alike.

    Two answers begin alike if their first FIRST tokens are equal; a shorter answer must be equal as a whole. ``answers`` have the emitted
    tokens in the order of ``distribution``'s rows, ``prompts`` the prompt of each. More equal pairs than expected show that answers depend
    on each other.
    """
    pairs, equal, expected, start = 0, 0, 0.0, 0
    # By prompt: the heads of its earlier answers, with the log-probability that an independent answer begins with the same tokens.
    earlier: dict[object, list[tuple[tuple[int, ...], float]]] = {}
    with np.errstate(divide="ignore"):
        log_p = np.log(distribution.chosen)
    for tokens, prompt in zip(answers, prompts, strict=True):
        head = tokens[:FIRST]
        earlier_heads = earlier.setdefault(prompt, [])
        pairs += len(earlier_heads)
        equal += sum(head == other for other, _ in earlier_heads)
        expected += sum(exp(log_chance) for _, log_chance in earlier_heads)
        earlier_heads.append((head, float(log_p[start : start + len(head)].sum())))
        start += len(tokens)
    return Repeats(pairs=pairs, equal=equal, expected=expected)
