"""Rules between the parts of one answer: usage, choices, token ids, text and verify windows."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.judge.verdicts import quoted

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_specdec.model.transcript import Answer, Choice
    from pytest_specdec.model.workload import Request

__all__ = ["RULES", "AnswerRule", "ComparedAnswer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedAnswer:
    """One answer of one arm, with the baseline's own to the same request."""

    arm: str
    request: Request
    answer: Answer
    others: tuple[Answer, ...]
    """Of the baseline's boots, the judged one left out."""
    vocabulary: int
    draft_tokens: int
    """Per verify step at most; 0 where unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRule:
    """A rule, named by its breach."""

    name: str
    breaks: Callable[[ComparedAnswer], str]
    """Return how an answer breaks it, empty where it keeps it."""
    by_chance: bool = False
    """Whether a correct server may break it now and then, as a model may write what it likes."""


_WRITTEN_SPECIAL = re.compile(
    r"<\|[A-Za-z0-9_ ]{2,40}\|>|<\uff5c[^\uff5c<>]{2,40}\uff5c>|</?s>|<(?:eos|bos|pad|unk)>|<(?:start|end)_of_(?:turn|text)>|\[/?INST\]"
)
"""Names of special tokens in the vocabularies of common models: ChatML, Llama, Gemma, Mistral, DeepSeek."""
_BROKEN = "\ufffd"


def _prompt(case: ComparedAnswer) -> str:
    usage = case.answer.usage
    counts = {other.usage.prompt_tokens for other in case.others if other.usage}
    if usage is not None and len(counts) == 1 and usage.prompt_tokens not in counts:
        return f"usage counts {usage.prompt_tokens} prompt tokens, the baseline's {counts.pop()}"
    prompts = {other.prompt_token_ids for other in case.others if other.prompt_token_ids}
    differs = bool(case.answer.prompt_token_ids) and len(prompts) == 1 and case.answer.prompt_token_ids not in prompts
    return "the prompt is reported with other token ids than the baseline's" if differs else ""


def _total(case: ComparedAnswer) -> str:
    usage = case.answer.usage
    if usage is None or usage.total_tokens is None or usage.total_tokens == usage.prompt_tokens + usage.completion_tokens:
        return ""
    return f"usage counts {usage.prompt_tokens} + {usage.completion_tokens} tokens and {usage.total_tokens} in total"


def _choices(case: ComparedAnswer) -> str:
    asked = case.request.body.get("n", 1)
    count = len(case.answer.choices)
    return f"{count} choices where n is {asked}" if isinstance(asked, int) and count != asked else ""


def _vocabulary(case: ComparedAnswer) -> str:
    beyond = (token for choice in case.answer.choices for token in choice.token_ids if token >= case.vocabulary > 0)
    return next((f"token id {token} in a vocabulary of {case.vocabulary}" for token in beyond), "")


def _window(case: ComparedAnswer) -> str:
    most = case.draft_tokens + 1
    wide = (window for choice in case.answer.choices for window in choice.windows or () if case.draft_tokens and window > most)
    return next((f"a verify step of {window} tokens, where {most - 1} are drafted" for window in wide), "")


def _ids(case: ComparedAnswer) -> str:
    """Report ids that cannot be those of the text: the baseline's for the same text, two in another order or one replaced."""
    for mine in case.answer.choices if len(case.answer.choices) == 1 else ():
        for other in case.others:
            if len(other.choices) == 1 and (what := _other_ids(mine, other.choice)):
                return what
    return ""


def _other_ids(mine: Choice, theirs: Choice) -> str:
    same = mine.written == theirs.written and bool(mine.written) and mine.finish_reason == theirs.finish_reason
    ids, others = mine.token_ids, theirs.token_ids
    if not same or len(ids) != len(others) or ids == others or not ids:
        return ""
    differing = [i for i, (own, other) in enumerate(zip(ids, others, strict=True)) if own != other]
    swapped = sorted(ids) == sorted(others)
    if not swapped and len(differing) > 1:
        return ""
    at = differing[0]
    return f"the text is the baseline's, but id {at} is {ids[at]} where the baseline has {others[at]}"


def _special(case: ComparedAnswer) -> str:
    asked = json.dumps(case.request.body, ensure_ascii=False, default=str)
    if case.request.body.get("skip_special_tokens") is False:
        return ""
    leaked = (found[0] for choice in case.answer.choices for found in _WRITTEN_SPECIAL.finditer(choice.written) if found[0] not in asked)
    return next((f"the text has {quoted(token)}" for token in leaked), "")


def _characters(case: ComparedAnswer) -> str:
    """Report broken characters in front of the end, where a limit may have cut one."""
    asked = json.dumps(case.request.body, ensure_ascii=False, default=str)
    texts = (choice.written.rstrip(_BROKEN) for choice in case.answer.choices if _BROKEN not in asked)
    return next((f"U+FFFD in {quoted(text[max(0, text.index(_BROKEN) - 10) :], 24)}" for text in texts if _BROKEN in text), "")


RULES = (
    AnswerRule(name="usage counts another prompt", breaks=_prompt),
    AnswerRule(name="usage does not add up", breaks=_total),
    AnswerRule(name="choices are missing", breaks=_choices),
    AnswerRule(name="a token id is outside the vocabulary", breaks=_vocabulary),
    AnswerRule(name="a verify step emits more tokens than it can", breaks=_window),
    AnswerRule(name="token ids and text disagree", breaks=_ids, by_chance=True),
    AnswerRule(name="special tokens stand in the text", breaks=_special, by_chance=True),
    AnswerRule(name="the text has broken characters", breaks=_characters, by_chance=True),
)
"""In the order in which a verdict names them: what is broken first explains what is broken later."""
