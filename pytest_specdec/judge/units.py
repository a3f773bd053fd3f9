"""Units: what answers are made of where their law is not known, token ids or pieces of text, as blocks of answers to one request."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.judge.dependence import SEED_AGAIN, fresh, law_of
from pytest_specdec.model.captured import Support
from pytest_specdec.model.pair import BASELINE
from pytest_specdec.stats.two_sample import Blocks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.model.answer import Answer
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Transcript
    from pytest_specdec.model.workload import JSON

__all__ = ["Cut", "cut"]

_PIECE = re.compile(r"\w{1,4}|\s+|[^\w\s]")
"""About as long as a token of English text."""
_FIRST = 1
"""Units left out at the head: the first token comes from the prefill, without speculation."""
_END = ""
"""The unit behind an answer that ended of itself."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cut:
    """The answers that are compared."""

    blocks: Blocks
    names: tuple[str, ...]
    """What each unit is, for people."""
    tokens: bool
    """Whether units are token ids."""
    skipped: tuple[str, ...]
    """What was left out, a line per reason."""

    @property
    def said(self) -> int:
        """Units of the judged arm."""
        return int((self.blocks.units[:, 0] >= 0).sum())


def cut(captured: Captured) -> Cut:
    """Return the requests that every arm answered, as blocks: the judged arm, the baseline, and the control where its draws are its own.

    With a seed that is honoured the control says what the baseline said, so that it is no second draw; without a survey's word on seeds
    it is taken to be none. So may an engine that seeds itself at boot, when requests bring no seeds: then the answers themselves tell.
    A seed asked for again is no second draw either, and at temperature 0 nothing is drawn.
    """
    skipped: dict[str, int] = defaultdict(int)
    bodies = {request.id: request for request in captured.workload.requests}
    arms = [{answer.key: answer for answer in transcript.answers} for transcript in _arms(captured)]
    taken: list[tuple[Answer, ...]] = []
    prompts: list[str] = []
    mine = captured.speculative.answers
    for answer, own in zip(mine, fresh(captured, mine), strict=True):
        request = bodies[answer.request_id]
        block = tuple(arm[answer.key] for arm in arms if answer.key in arm)
        reason = _reason(request.body, block, len(arms)) or ("" if own else SEED_AGAIN)
        if reason:
            skipped[reason] += 1
            continue
        taken.append(block)
        prompts.append(law_of(request))
    lines = tuple(f"{count} requests not judged: {reason}" for reason, count in skipped.items())
    return _blocks(captured, taken, prompts, lines, len(arms))


def _arms(captured: Captured) -> tuple[Transcript, ...]:
    both = (captured.speculative, captured.baseline)
    if captured.is_control or captured.control is None or not _drawn_anew(captured, captured.control):
        return both
    return (*both, captured.control)


def _drawn_anew(captured: Captured, control: Transcript) -> bool:
    """Whether the baseline, asked again, draws again; where answers mostly come again it does not, whatever was asked."""
    known = captured.capabilities.get(BASELINE)
    ignored = known is not None and known.support.get("seed") in {Support.IGNORED, Support.REFUSED}
    unseeded = all(request.seed is None for request in captured.workload.requests)
    before = {answer.key: answer for answer in captured.baseline.answers if answer.ok}
    alike = [_words(before[one.key]) == _words(one) for one in control.answers if one.ok and one.key in before]
    return (ignored or unseeded) and 2 * sum(alike) <= len(alike)


def _words(answer: Answer) -> tuple[str, tuple[int, ...]]:
    return answer.choice.text, answer.choice.token_ids


def _reason(body: Mapping[str, JSON], block: Sequence[Answer], arms: int) -> str:
    temperature = body.get("temperature")
    if isinstance(temperature, int | float) and temperature <= 0:
        return "temperature 0 leaves nothing to draw"
    return "" if len(block) == arms and all(answer.ok for answer in block) else "not answered 200 by every arm"


def _blocks(captured: Captured, taken: Sequence[Sequence[Answer]], prompts: Sequence[str], skipped: tuple[str, ...], arms: int) -> Cut:
    known = captured.capabilities.get(BASELINE)
    told = known is None or known.support.get("token_ids") is Support.HONOURED
    tokens = told and all(answer.choice.token_ids or not answer.choice.text for block in taken for answer in block)
    pieces = [[_pieces(answer, tokens=tokens) for answer in block] for block in taken]
    numbers = {name: number for number, name in enumerate(sorted({one for block in pieces for each in block for one in each}))}
    longest = max((1, *(len(each) for block in pieces for each in block)))
    units = np.full((len(taken), arms, longest), -1, dtype=np.int64)
    for row, block in enumerate(pieces):
        for arm, each in enumerate(block):
            units[row, arm, : len(each)] = [numbers[one] for one in each]
    asked = {prompt: number for number, prompt in enumerate(dict.fromkeys(prompts))}
    return Cut(
        blocks=Blocks(units=units, prompts=np.array([asked[prompt] for prompt in prompts], dtype=np.int64)),
        names=tuple(numbers),
        tokens=tokens,
        skipped=skipped,
    )


def _pieces(answer: Answer, *, tokens: bool) -> list[str]:
    choice = answer.choice
    every = [str(token) for token in choice.token_ids] if tokens else _PIECE.findall(choice.text)
    return [*every[_FIRST:], *([_END] if choice.finish_reason == "stop" else [])]
