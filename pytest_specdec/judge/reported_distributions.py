"""Distributions that the baseline reported with its own answers: they score any answer up to its first other token.

A score is the distribution of the baseline, the server without speculation, at each token of an answer. A prompt with images is more than
token ids, so that no server can be asked for the log-probabilities of another's tokens after it. Up to the first difference both answers
follow the same tokens, and the baseline's own report is the distribution that scores would give.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING
from zlib import crc32

from pytest_specdec.model.pair import BASELINE
from pytest_specdec.model.transcript import Position, Score
from pytest_specdec.stats.sequences import first_difference

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Answer, Choice, Transcript

__all__ = ["score_by_reports"]

_HALF = "\ufffd"
"""The replacement character. It is in the name of a token whose bytes are a part of a character only: such tokens share a name."""


def score_by_reports(captured: Captured) -> Captured:
    """Return the run scored by the baseline's own reports.

    A report is the baseline's answer to a request, with a list of most probable tokens at each of its tokens; answers to requests without
    one are left out, and answers of unknown tokens. All others are cut after their first token unlike the report's, which is scored too, or
    where the report ends.

    If an answer has no token ids, numbers made of the tokens' names stand for ids in all answers to that request. The baseline's own
    answers lose their reported log-probabilities: held against themselves, they would show no noise.
    """
    boots = [captured.speculative, *captured.baseline_boots]
    keys_without_ids = {answer.key for arm in boots for answer in arm.answers if answer.ok and not answer.choice.token_ids}
    arms = [replace(arm, answers=tuple(_number_tokens(a) if a.key in keys_without_ids else a for a in arm.answers)) for arm in boots]
    reports = _collect_reports(arms[1], keys_without_ids)  # the baseline comes second
    names = _TokenNames.learn(answer.choice for arm in arms for answer in arm.answers)

    def cut(arm: Transcript) -> Transcript:
        answers = (answer for answer in arm.answers if answer.ok and answer.key in reports and _knows_tokens(answer))
        return replace(arm, answers=tuple(_cut_answer(answer, reports[answer.key].choice) for answer in answers))

    cut_arms = {arm.arm: cut(arm) for arm in arms}
    scores = {
        name: tuple(_score(answer, reports[answer.key].choice, name, names) for answer in arm.answers) for name, arm in cut_arms.items()
    }
    baseline = cut_arms[BASELINE]
    return replace(
        captured,
        speculative=cut_arms[captured.arm],
        baseline=replace(baseline, answers=tuple(map(_without_logprobs, baseline.answers))),
        control=None if captured.control is None else cut_arms.get(captured.control.arm, captured.control),
        scores=scores,
        repeats=(),
        on_verdict=None,
    )


def _collect_reports(baseline: Transcript, keys_without_ids: Container[tuple[str, int]]) -> dict[tuple[str, int], Answer]:
    """Return the baseline's answers that report a distribution at every token, by key.

    Those under ``keys_without_ids`` end before the first name that several tokens share, since tokens have only names there.
    """
    answers = (_end_at_half_character(a) if a.key in keys_without_ids else a for a in baseline.answers if a.ok)
    return {answer.key: answer for answer in answers if _is_reported(answer.choice)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _TokenNames:
    """Token ids by the names that servers list tokens under."""

    ids: Mapping[str, int]
    """An id for each name: that of the only emitted token with it, else a number below 0, another for each name."""

    @classmethod
    def learn(cls, choices: Iterator[Choice]) -> _TokenNames:
        """Return the names in ``choices``, with the ids of emitted tokens.

        A name of several emitted tokens, such as that of half a character, stands for none of them.
        """
        emitted_ids: dict[str, set[int]] = {}
        for choice in choices:
            # One entry per emitted token: its name, and the names of the most probable tokens there.
            for listed, token in zip(choice.listed or (), choice.token_ids, strict=False):
                emitted_ids.setdefault(listed.token, set()).add(token)
                for name in listed.tokens:
                    emitted_ids.setdefault(name, set())
        # No token has an id below 0: such a number only keeps names apart.
        placeholders = {name: -1 - number for number, name in enumerate(emitted_ids)}
        return cls(ids={name: next(iter(ids)) if len(ids) == 1 else placeholders[name] for name, ids in emitted_ids.items()})


def _number_tokens(answer: Answer) -> Answer:
    """Return ``answer`` with checksums of its tokens' names in place of ids.

    They are equal for equal names, and numbers as ids are, so that answers with and without ids are handled alike. Only the first choice is
    kept, as elsewhere here.
    """
    if not answer.choices:
        return answer
    ids = tuple(crc32(token.token.encode("utf-8", "surrogatepass")) for token in answer.choice.listed or ())
    return replace(answer, choices=(replace(answer.choice, token_ids=ids),))


def _end_at_half_character(answer: Answer) -> Answer:
    """Return ``answer`` up to the first name of half a character.

    All tokens of some of a character's bytes are named by the replacement character: two answers with that name may have different tokens
    there, and then different distributions after it.
    """
    whole = sum(1 for _ in takewhile(lambda token: _HALF not in token.token, answer.choice.listed or ()))
    choice = answer.choice
    cut = replace(
        choice, token_ids=choice.token_ids[:whole], listed=(choice.listed or ())[:whole], logprobs=(choice.logprobs or ())[:whole]
    )
    return replace(answer, choices=(cut,))


def _knows_tokens(answer: Answer) -> bool:
    """Return True if an answer has token ids, or no tokens by its usage."""
    return bool(answer.choice.token_ids) or (answer.usage is not None and not answer.usage.completion_tokens)


def _is_reported(choice: Choice) -> bool:
    """Return True if every token has a log-probability and a list of most probable tokens."""
    count = len(choice.token_ids)
    has_lists = choice.listed is not None and len(choice.listed) == count and all(listed.tokens for listed in choice.listed)
    return bool(count) and has_lists and len(choice.logprobs or ()) == count


def _cut_answer(answer: Answer, baseline: Choice) -> Answer:
    """Return ``answer`` with the tokens that the baseline's report scores.

    They are those equal to the baseline's and the first one unlike it.
    """
    choice = answer.choice
    count = min(first_difference(choice.token_ids, baseline.token_ids) + 1, len(choice.token_ids), len(baseline.token_ids))
    logprobs = None if choice.logprobs is None else choice.logprobs[:count]
    return replace(answer, choices=(replace(choice, token_ids=choice.token_ids[:count], logprobs=logprobs),))


def _without_logprobs(answer: Answer) -> Answer:
    return replace(answer, choices=(replace(answer.choice, logprobs=None),))


def _score(answer: Answer, baseline: Choice, arm: str, names: _TokenNames) -> Score:
    """Return the baseline's distribution at every token of a cut answer.

    ``answer``, one of ``arm``, is cut after its first token unlike the baseline's. ``baseline`` is the baseline's choice, which reported
    the distribution, and ``names`` has the ids of the names in that report.
    """
    own_names = [listed.token for listed in answer.choice.listed or ()]  # of the tokens that the answer emitted, if it names them
    positions = (
        _position(token, own_names[index] if index < len(own_names) else None, baseline, index, names)
        for index, token in enumerate(answer.choice.token_ids)
    )
    return Score(request_id=answer.request_id, pass_index=answer.pass_index, arm=arm, under=BASELINE, positions=tuple(positions))


def _position(token: int, own_name: str | None, baseline: Choice, index: int, names: _TokenNames) -> Position:
    """Return the distribution that the baseline reported at one token.

    ``index`` is the token's place in both answers, ``own_name`` its name in its own answer, if it has one, and ``names`` has the ids of all
    names in the report. A token that the baseline does not list has no log-probability, nan: it lies below all listed ones.
    """
    assert baseline.listed is not None, "callers ensure a report"
    assert baseline.logprobs is not None, "callers ensure a report"
    report = baseline.listed[index]
    # Here the two emitted tokens have known ids, even if other tokens share their names.
    emitted_ids = {report.token: baseline.token_ids[index]}
    if own_name is not None:
        emitted_ids[own_name] = token
    ids = [emitted_ids.get(name, names.ids[name]) for name in report.tokens]
    ranked = sorted(zip(report.logprobs, ids, strict=True), reverse=True)
    if token == baseline.token_ids[index]:
        token_logprob = baseline.logprobs[index]
    else:
        # Several names may have one id: the likeliest of them, the first, counts.
        token_logprob = next((logprob for logprob, id_ in ranked if id_ == token), math.nan)
    return Position(
        token_id=token, logprob=token_logprob, top_ids=tuple(id_ for _, id_ in ranked), top_logprobs=tuple(logprob for logprob, _ in ranked)
    )
