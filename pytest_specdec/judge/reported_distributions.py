"""Distributions that the baseline reported with its own answers: they score any answer up to its first other token.

A score is the distribution of the baseline, the server without speculation, at each token of an answer. A prompt with images is more than
token ids, so that no server can be asked for the log-probabilities of another's tokens after it. Up to the first difference both answers
follow the same tokens, and the baseline's own report is the distribution that scores would give.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING
from zlib import crc32

from pytest_specdec.model.pair import BASELINE
from pytest_specdec.model.transcript import Position, Score
from pytest_specdec.stats.sequences import first_difference

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Answer, Choice, ListedTokens, Transcript

__all__ = ["score_by_reports"]

_HALF = "\ufffd"
"""The replacement character, in the name of a token that is no whole character."""


def score_by_reports(captured: Captured) -> Captured:
    """Return the run scored by the baseline's own reports.

    A report is the baseline's answer to a request, with a list of most probable tokens at each of its tokens; answers to requests without
    one are left out, and answers of unknown tokens. All others are cut after their first token unlike the report's, which is scored too, or
    where the report ends.

    Some answers have no token ids: names of tokens then stand for ids in all answers to that request, and the report ends before its first
    name of half a character, which several tokens share. The baseline's own answers lose their reported log-probabilities: held against
    themselves, they would show no noise.
    """
    arms = [captured.speculative, *captured.baseline_boots]
    keys_without_ids = {answer.key for arm in arms for answer in arm.answers if answer.ok and not answer.choice.token_ids}
    arms = [replace(arm, answers=tuple(_number_tokens(a) if a.key in keys_without_ids else a for a in arm.answers)) for arm in arms]
    _, numbered_baseline, *_ = arms  # the judged arm, the baseline, and the control if there is one
    baseline_answers = (_end_at_half_character(a) if a.key in keys_without_ids else a for a in numbered_baseline.answers if a.ok)
    reports = {answer.key: answer for answer in baseline_answers if _is_reported(answer.choice)}
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
        ids: dict[str, set[int]] = defaultdict(set)
        for choice in choices:
            for listed, token in zip(choice.listed or (), choice.token_ids, strict=False):
                ids[listed.token].add(token)
                # Each listed name gets an entry, also if no answer emitted its token.
                for name in listed.tokens:
                    ids[name].update(())
        entries = enumerate(ids.items())
        return cls(ids={name: next(iter(emitted)) if len(emitted) == 1 else -1 - number for number, (name, emitted) in entries})


def _number_tokens(answer: Answer) -> Answer:
    """Return ``answer`` with checksums of its tokens' names in place of ids.

    Only its first choice is kept, as elsewhere here.
    """
    if not answer.choices:
        return answer
    ids = tuple(crc32(token.token.encode("utf-8", "surrogatepass")) for token in answer.choice.listed or ())
    return replace(answer, choices=(replace(answer.choice, token_ids=ids),))


def _end_at_half_character(answer: Answer) -> Answer:
    """Return ``answer`` up to the first name of half a character.

    Such a name stands for several tokens: what comes after it need not follow the same ones.
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

    ``answer`` is one of ``arm``, and ``baseline`` the baseline's choice, which reported the distribution.
    """
    own_names = answer.choice.listed or ()  # only to name the answer's own token: the distribution is the baseline's
    positions = (
        _position(token, own_names[index] if index < len(own_names) else None, baseline, index, names)
        for index, token in enumerate(answer.choice.token_ids)
    )
    return Score(request_id=answer.request_id, pass_index=answer.pass_index, arm=arm, under=BASELINE, positions=tuple(positions))


def _position(token: int, listed: ListedTokens | None, baseline: Choice, index: int, names: _TokenNames) -> Position:
    """Return the distribution that the baseline reported at one token.

    ``index`` is the token's place in both answers, ``listed`` has its own name, and ``names`` the ids of all listed names. A token that the
    baseline does not list has no log-probability, nan: it lies below all listed ones.
    """
    report = (baseline.listed or ())[index]
    # Here the two emitted tokens have known ids, even if other tokens share their names.
    emitted_ids = {report.token: baseline.token_ids[index], **({} if listed is None else {listed.token: token})}
    ranked = sorted(zip(report.logprobs, (emitted_ids.get(name, names.ids[name]) for name in report.tokens), strict=True), reverse=True)
    # Reversed, so that of several names with one id the likeliest counts.
    by_id = {id_: logprob for logprob, id_ in reversed(ranked)}
    token_logprob = (baseline.logprobs or ())[index] if token == baseline.token_ids[index] else by_id.get(token, math.nan)
    return Position(
        token_id=token, logprob=token_logprob, top_ids=tuple(id_ for _, id_ in ranked), top_logprobs=tuple(logprob for logprob, _ in ranked)
    )
