"""Concurrent requests: greedy tokens by the wave of their request, what wrong waves have in common, and answers to another request.

A wave is a group of requests that are sent at once; a wave of one is a request alone. The judged arm is the speculative server; the boots
of the baseline serve the same model without speculation. A token's gap is how far, in nats, it lies below the best one by the baseline's
scores. It is wrong if the gap exceeds the tolerance, which noise explains.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.judge.greedy_gap import answer_lengths, distinct_gaps, scored_answers
from pytest_specdec.judge.logprob_lists import asked_top
from pytest_specdec.judge.penalised_scores import penalised_scores
from pytest_specdec.judge.tolerance import tolerance
from pytest_specdec.prompts.company import marker
from pytest_specdec.stats.sequences import first_difference

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_specdec.judge.greedy_gap import ScoredAnswer
    from pytest_specdec.judge.tolerance import Tolerance
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Transcript
    from pytest_specdec.model.workload import Request
    from pytest_specdec.stats.excess import EventCount

__all__ = [
    "SWAPPED",
    "UNDER_CONCURRENCY",
    "WRONG_ALONE",
    "ConcurrentTokens",
    "WaveTokens",
    "WrongToken",
    "blame",
    "concurrent_tokens",
    "find_foreign_text",
    "swapped_answers",
]

SWAPPED = "answers are swapped between requests"
WRONG_ALONE = "tokens are wrong alone and under concurrency"
UNDER_CONCURRENCY = "answers go wrong only under concurrency"
_BESIDE: Mapping[str, str] = {
    "sampling": "answers go wrong beside requests that sample",
    "seeds": "answers go wrong beside requests with a seed",
    "penalties": "answers go wrong beside requests with penalties",
    "grammar": "answers go wrong beside requests with a grammar",
    "log-probabilities": "answers go wrong beside requests for log-probabilities",
    "leaving": "answers go wrong when a neighbour's client leaves",
    "left": "answers go wrong when a neighbour's client leaves",
}
"""Fault names by the trait that only wrong waves have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongToken:
    """One token above the tolerance."""

    request_id: str
    index: int
    gap: float
    """Nats below the baseline's best token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaveTokens:
    """The greedy tokens of requests that were in flight together."""

    number: int
    """From 1."""
    size: int
    traits: frozenset[str]
    """Keys of _BESIDE: the features that requests of the wave ask for, and 'left' if a client of the wave before it has left."""
    tokens: int
    wrong: tuple[WrongToken, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrentTokens:
    """The greedy tokens of one arm, wave by wave."""

    waves: tuple[WaveTokens, ...]
    allowed: Tolerance
    gaps: tuple[float, ...]
    """Gaps of its tokens in nats; a repeated token with the same prefix and gap counts once."""
    lengths: tuple[int, ...]
    """Tokens of each distinct request that was sent beside others."""
    largest_peer_gap: float
    """The largest gap of the baseline's own tokens, in nats."""
    repeats: tuple[EventCount, ...] = ()
    """Counts from the rounds in which the same was requested again."""

    @property
    def events(self) -> int:
        """The number of distinct tokens that noise does not explain."""
        return sum(gap > self.allowed.gap for gap in self.gaps)

    @property
    def count(self) -> int:
        """The number of scored tokens."""
        return sum(wave.tokens for wave in self.waves)


def concurrent_tokens(captured: Captured) -> ConcurrentTokens:
    """Return the judged arm's tokens at temperature 0, wave by wave.

    Tokens under a grammar are left out, since scores are of the distribution without it. Raises ValueError if scores are of other tokens,
    or if penalties count a prompt whose token ids are missing.
    """
    by_request = {scored.answer.request_id: scored for scored in _align_scores(captured, captured.speculative)}
    peers = [scored for arm in captured.baseline_boots for scored in _align_scores(captured, arm)]
    allowed = tolerance(captured, peers)
    sent_beside = (request.id for turn in captured.workload.turns if len(turn) > 1 for request in turn)
    beside = [by_request[request_id] for request_id in sent_beside if request_id in by_request]
    # Each repeat holds the same requests sent again, without repeats of its own. Its wrong tokens are counted in the same way.
    rounds = [concurrent_tokens(repeat) for repeat in captured.repeats]
    return ConcurrentTokens(
        waves=tuple(_count_waves(captured, by_request, allowed)),
        allowed=allowed,
        gaps=distinct_gaps(captured.workload, tuple(by_request.values())),
        lengths=answer_lengths(captured.workload, beside),
        largest_peer_gap=max((gap for scored in peers for gap in scored.gaps), default=0.0),
        repeats=tuple(of_round.allowed.count_round(of_round.events, len(of_round.gaps)) for of_round in rounds),
    )


def _count_waves(captured: Captured, by_request: Mapping[str, ScoredAnswer], allowed: Tolerance) -> Iterator[WaveTokens]:
    """Yield the greedy tokens of each wave, in order; ``by_request`` has the scored answers by request id."""
    has_left = False
    for number, turn in enumerate(captured.workload.turns, 1):
        answers = [by_request[request.id] for request in turn if request.id in by_request]
        # A client that leaves may disturb the next wave too, which gets the trait "left".
        traits = {trait for request in turn for trait in _traits(request)} | ({"left"} if has_left else set())
        wrong = tuple(token for scored in answers for token in _wrong_tokens(scored, allowed.gap))
        tokens = sum(len(scored.gaps) for scored in answers)
        yield WaveTokens(number=number, size=len(turn), traits=frozenset(traits), tokens=tokens, wrong=wrong)
        has_left = any(request.abort_after is not None for request in turn)


def _wrong_tokens(scored: ScoredAnswer, allowed: float) -> list[WrongToken]:
    """Return the tokens of an answer with a gap above ``allowed``."""
    tokens = enumerate(scored.gaps)
    return [WrongToken(request_id=scored.answer.request_id, index=index, gap=gap) for index, gap in tokens if gap > allowed]


def _align_scores(captured: Captured, arm: Transcript) -> tuple[ScoredAnswer, ...]:
    """Return an arm's scored answers at temperature 0 without a grammar, penalties added to the scores."""
    greedy = {r.id for r in captured.workload.requests if r.greedy and not r.grammar}
    return scored_answers(arm, penalised_scores(captured, arm, greedy))


def _traits(request: Request) -> set[str]:
    """Return the features used by a request, as keys of _BESIDE."""
    body = request.body
    traits = {
        "sampling": not request.greedy,
        "seeds": request.seed is not None,
        "penalties": bool(body.get("presence_penalty") or body.get("frequency_penalty")),
        "grammar": request.grammar is not None,
        "log-probabilities": asked_top(request) is not None,
        "leaving": request.abort_after is not None,
    }
    return {trait for trait, has_trait in traits.items() if has_trait}


def blame(waves: Sequence[WaveTokens]) -> str:
    """Return a fault's name by the one trait of the wrong waves.

    A trait is a feature that a request of the wave asks for. A wave is wrong if it has wrong tokens, and right if its tokens are scored and
    none is wrong. WRONG_ALONE if a request alone is wrong. UNDER_CONCURRENCY if no trait explains the wrong waves, or several do.
    """
    wrong = [wave for wave in waves if wave.wrong]
    if any(wave.size == 1 for wave in wrong):
        return WRONG_ALONE
    # A request alone has no neighbour that could make it wrong.
    right = [wave for wave in waves if wave.tokens and not wave.wrong and wave.size > 1]
    shared = [trait for trait in _BESIDE if all(trait in wave.traits for wave in wrong)]
    # A trait that all right waves have as well explains nothing. One that none of them has goes before those that some have.
    explaining = [trait for trait in shared if not all(trait in wave.traits for wave in right)]
    in_no_right_wave = [trait for trait in explaining if not any(trait in wave.traits for wave in right)]
    names = {_BESIDE[trait] for trait in (in_no_right_wave or explaining)}  # two traits may have one name
    return names.pop() if len(names) == 1 else UNDER_CONCURRENCY


@dataclass(frozen=True, slots=True, kw_only=True)
class SwappedAnswer:
    """An answer that belongs to another request."""

    request_id: str
    other_id: str
    text: str
    other_text: str
    """The baseline's answer to the other request."""


_BEYOND = 24
"""Characters that an answer shares with the baseline's to another request, beyond those that the baseline's own answer shares."""
_FEWEST = 2
"""Such answers that cannot be chance: one may be, since a near-tie may lead into a phrase that another answer begins with."""


def swapped_answers(captured: Captured) -> tuple[SwappedAnswer, ...]:
    """Return the answers with text of another request's answer.

    Each request is compared with every other one of its wave, in two ways. Its answer has leaked if it contains the other request's marker
    word, which stands in the other prompt alone, and no boot of the baseline answers the request with that word. At temperature 0 an answer
    also counts if it begins like the baseline's answer to the other request.
    """
    baseline_texts = [{a.request_id: a.choice.written for a in arm.answers if a.ok} for arm in captured.baseline_boots]
    texts = {a.request_id: a.choice.written for a in captured.speculative.answers if a.ok}
    words = _marker_words(captured.workload.requests)
    neighbours = [(request, other) for wave in captured.workload.turns for request in wave for other in wave if request is not other]
    leaked, fitting = [], []
    for request, other in neighbours:
        text, other_text = texts.get(request.id, ""), baseline_texts[0].get(other.id, "")
        pair = SwappedAnswer(request_id=request.id, other_id=other.id, text=text, other_text=other_text)
        if (word := words.get(other.id)) and word in text and not any(word in boot.get(request.id, "") for boot in baseline_texts):
            leaked.append(pair)
        elif request.greedy and other.greedy and _fits_other(text, request.id, other.id, baseline_texts):
            fitting.append(pair)
    # A single answer that begins like another's may do so by chance, if none has leaked.
    is_beyond_chance = leaked or len({pair.request_id for pair in fitting}) >= _FEWEST
    return (*leaked, *(fitting if is_beyond_chance else ()))


def _marker_words(requests: Sequence[Request]) -> dict[str, str]:
    """Return each request's marker word by request id.

    A marker word is an invented word that stands in one prompt alone. The prompts of prompts/company.py begin with them, ``marker(0)`` for
    the first request of the workload and so on. Requests of other origin have none, and are left out.
    """
    return {request.id: word for number, request in enumerate(requests) if (word := marker(number)) and word in request.prompt_key}


def _fits_other(text: str, request_id: str, other_id: str, peers: Sequence[Mapping[str, str]]) -> bool:
    """Return True if ``text`` fits the other request's answer far better.

    ``text`` answers ``request_id``; ``peers`` are the baseline's answers by request id, boot by boot. ``text`` has to begin like the
    baseline's answer to ``other_id``, for 24 characters more than it begins like the baseline's answer to ``request_id``. It must be 24
    more, too, than those two answers of the baseline begin alike, as answers to different requests may.
    """
    if other_id not in peers[0] or request_id not in peers[0]:
        return False
    other = peers[0][other_id]
    # Numbers of characters with which two texts begin alike.
    text_and_other = first_difference(text, other)
    text_and_right = max(first_difference(text, peer.get(request_id, "")) for peer in peers)
    right_and_other = max(first_difference(peer.get(request_id, ""), other) for peer in peers)
    return text_and_other >= max(text_and_right, right_and_other) + _BEYOND


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignText:
    """Answers of one arm with text that their own prompts do not suggest."""

    answers: int
    kinds: Mapping[str, str]
    """By request: the special token, or the script."""


_MARKUP = re.compile(r"<\|[^|>\s]{1,40}\|>|<\uff5c[^\uff5c>]{1,40}\uff5c>|\[/?INST\]|<(?:pad|unk|s|/s|bos|eos|mask)>")


def find_foreign_text(captured: Captured, arm: Transcript) -> ForeignText:
    """Return the answers with special tokens or foreign scripts as text.

    Foreign is a script whose letters the prompt does not have; Latin letters are never foreign.
    """
    prompts = {request.id: request.prompt_key for request in captured.workload.requests}
    texts = {answer.request_id: answer.choice.written for answer in arm.answers if answer.ok}
    # A prompt's key is JSON with characters beyond ASCII escaped: decoded, they show the scripts of the prompt.
    kinds = {
        id_: what for id_, text in texts.items() if (what := _find_foreign(text, prompts.get(id_, "").encode().decode("unicode_escape")))
    }
    return ForeignText(answers=len(texts), kinds=kinds)


def _find_foreign(text: str, prompt: str) -> str:
    """Return the first special token or foreign script in ``text``.

    Those in ``prompt`` too are passed over; empty if there is no other.
    """
    for mark in _MARKUP.finditer(text):
        if mark[0] not in prompt:
            return str(mark[0])
    scripts = sorted(_scripts(text) - _scripts(prompt))
    return f"{scripts[0].lower()} letters" if scripts else ""


def _scripts(text: str) -> set[str]:
    """Return the scripts of the letters in ``text``, Latin left out, by the first word of their Unicode names."""
    letters = {character for character in text if not character.isascii() and character.isalpha()}
    return {unicodedata.name(letter, "UNKNOWN").partition(" ")[0] for letter in letters} - {"LATIN"}
