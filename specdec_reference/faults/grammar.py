"""Planted faults of structured output, for suites to detect: masks misplaced, grammars that lose their place or are not enforced.

Each wraps the rule or method named by its decorator. To mask a draft a grammar reads its mask, advances by a token, and so on, and then
retreats; it advances again by the tokens emitted.
"""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_specdec.model.grammar import GrammarKind
from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import Place, fault, in_
from specdec_reference.reasoning import GrammarAfterReasoning
from specdec_reference.wrappers import Moment, Wrapper

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from pytest_specdec.model.workload import JSON
    from specdec_reference.emission import EmittedToken
    from specdec_reference.engine import ReferenceEngine
    from specdec_reference.grammar import Grammar
    from specdec_reference.openai_request import EngineRequest

_EARLY: Final = 8
"""Tokens of a document after which a fault begins."""
_TAIL: Final = 6
"""Tokens that follow a finished answer."""
_LAST_GRAMMAR: list[str] = []  # the text of the latest request's, if there was one
SERVER_ERROR = "the server answers 5xx to a request with response_format|the server dies on"
FORM = "the grammar is not enforced on speculated tokens"
BEFORE = "text stands in front of the document"
BEHIND = "text goes on after the document"
CUT_OFF = "a document ends in the middle and is called finished"
RULES = "a document breaks its schema"
ANY = f"{FORM}|{BEFORE}|{BEHIND}|{CUT_OFF}|{RULES}"
"""What most invalid documents break hangs on the model."""
ENDS = {
    Family.LIVENESS: "It sees how every answer ends, also those with a grammar.",
    Family.TOOLS: "A required call is a document under a grammar.",
    **dict.fromkeys((Family.CONCURRENCY, Family.PRESSURE), "Some of its requests have a grammar."),
}
"""What may be red beside, where a grammar is not kept."""


class _Forgiving:
    """A grammar that skips tokens it would refuse, as engines do that log the refusal and go on."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self._taken: list[bool] = []
        """Of every token, whether the grammar took it."""

    def mask(self) -> NDArray[np.bool_]:
        return self.grammar.mask()

    def advance(self, token: int) -> None:
        is_permitted = bool(self.grammar.mask()[token])
        self._taken.append(is_permitted)
        if is_permitted:
            self.grammar.advance(token)

    def retreat(self, count: int) -> None:
        returned = self._taken[len(self._taken) - count :]
        del self._taken[len(self._taken) - count :]
        self.grammar.retreat(sum(returned))

    def allowed_prefix(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        return self.grammar.allowed_prefix(tokens)


_FORGIVING: Final = {"engine.start_grammar": Wrapper(moment=Moment.AFTER, function=_Forgiving)}


@fault(
    after="batch.mask",
    beside=_FORGIVING,
    expected={
        **in_(
            Place.VLLM,
            may={Family.LIVENESS: "A token outside its grammar makes vLLM answer with a 5xx or die."},
            structured=SERVER_ERROR,
        ),
        **in_(Place.REFERENCE, may=ENDS, structured=ANY),
    },
    mirrors=("vllm-project/vllm#27969",),
)
def grammar_skipped(masks: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Masks the last position of a verify step by the grammar, and none of the draft tokens' positions."""
    masks[:-1] = True
    return masks


@fault(
    after="batch.mask",
    beside=_FORGIVING,
    expected=in_(Place.REFERENCE, may=ENDS, structured=ANY),
    mirrors=("NVIDIA/TensorRT-LLM#7878",),
)
def grammar_bonus_unmasked(masks: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Masks the draft tokens' positions by the grammar, and not the bonus token's."""
    if len(masks) > 1:
        masks[-1] = True
    return masks


@fault(after="batch.mask", beside=_FORGIVING, expected=in_(Place.REFERENCE, may=ENDS, structured=ANY))
def grammar_mask_late(masks: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Uses the grammar's mask of each position of a window at the position after it."""
    return np.concatenate([masks[:1], masks[:-1]])


class _Windowed(_Forgiving):
    """A grammar that takes the emitted tokens of a step together.

    It does so when it is next asked for a mask or a prefix. Draft tokens advance it one by one, and are taken back.
    """

    def __init__(self, grammar: Grammar) -> None:
        super().__init__(grammar)
        self._draft_next = False  # whether a mask was read, so that a draft token may follow
        self._window: list[int] = []  # emitted tokens by which the grammar has not advanced yet

    def mask(self) -> NDArray[np.bool_]:
        self._advance_window()
        self._draft_next = True
        return super().mask()

    def allowed_prefix(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        self._advance_window()
        return super().allowed_prefix(tokens)

    def advance(self, token: int) -> None:
        # Before each draft token the mask is read; the emitted tokens of a window come without.
        if self._draft_next:
            super().advance(token)
        else:
            self._window.append(token)
        self._draft_next = False

    def retreat(self, count: int) -> None:
        self._draft_next = False
        super().retreat(count)

    def _advance_window(self) -> None:
        """Advance the grammar over the last window's tokens."""
        window, self._window = self._window, []
        for token in self.take_from_window(window):
            super().advance(token)

    def take_from_window(self, window: list[int]) -> list[int]:
        """Return the tokens of a window by which the grammar advances."""
        return window


class _LastOnly(_Windowed):
    """A grammar that takes only the last token of each window."""

    def take_from_window(self, window: list[int]) -> list[int]:
        return window[-1:]


@fault(after="engine.start_grammar", expected=in_(Place.REFERENCE, may=ENDS, structured=ANY), mirrors=("vllm-project/vllm#48228",))
def grammar_not_advanced(grammar: Grammar) -> Grammar:
    """Advances the grammar over the last token of a window only, and not over the accepted drafts before it."""
    return _LastOnly(grammar)


class _RollsBackShort(_Forgiving):
    """A grammar that takes back one token too few."""

    def retreat(self, count: int) -> None:
        super().retreat(max(0, count - 1))


@fault(after="engine.start_grammar", expected=in_(Place.REFERENCE, may=ENDS, structured=ANY), mirrors=("vllm-project/vllm#44006",))
def grammar_rollback_short(grammar: Grammar) -> Grammar:
    """Rolls the grammar back one token too few behind the verified drafts."""
    return _RollsBackShort(grammar)


class _ThenAnother(_Forgiving):
    """A grammar that gives way to another one after some tokens."""

    def __init__(self, grammar: Grammar, after: int, other: Grammar) -> None:
        super().__init__(grammar)
        self._after = after
        self._other = _Forgiving(other)

    def mask(self) -> NDArray[np.bool_]:
        return self._other.mask() if len(self._taken) >= self._after else super().mask()

    def advance(self, token: int) -> None:
        if len(self._taken) >= self._after:
            self._other.advance(token)
            self._taken.append(False)  # not by the first grammar
        else:
            super().advance(token)

    def retreat(self, count: int) -> None:
        self._other.retreat(min(count, max(0, len(self._taken) - self._after)))
        super().retreat(count)

    def allowed_prefix(self, tokens: tuple[int, ...]) -> tuple[int, ...]:  # noqa: ARG002 - nothing is proposed
        return ()


@fault(
    after="engine.start_grammar",
    expected=in_(Place.REFERENCE, may=ENDS, structured="the grammar is stuck in white space until the limit"),
    alone=True,
)
def grammar_stuck(grammar: Grammar, engine: ReferenceEngine) -> Grammar:
    """Allows nothing but white space from the ninth token of a document on."""
    return _ThenAnother(grammar, _EARLY, engine.grammars.start(engine.grammars.compile(GrammarKind.REGEX, " {6000}")))


@fault(
    after="engine.start_grammar",
    expected=in_(Place.REFERENCE, may=ENDS, structured="the grammar is not enforced after the reasoning"),
    mirrors=("vllm-project/vllm#34650",),
    reasons=True,
)
def grammar_off_reasoning(grammar: Grammar) -> Grammar | None:
    """Drops the grammar of every request that may reason before it answers."""
    return None if isinstance(grammar, GrammarAfterReasoning) else grammar


class _MissesTheEnd(_Windowed):
    """A grammar that takes only the last token of a window of reasoning."""

    def take_from_window(self, window: list[int]) -> list[int]:
        is_reasoning = int((~self.grammar.mask()).sum()) <= _TAIL  # nothing is forbidden but the ends of sequence
        return window[-1:] if is_reasoning else window


@fault(
    after="engine.start_grammar",
    expected=in_(Place.REFERENCE, may=ENDS, structured="the grammar is not enforced after the reasoning"),
    mirrors=("vllm-project/vllm#36138",),
    reasons=True,
)
def grammar_end_missed(grammar: Grammar) -> Grammar:
    """Misses the end of the reasoning where it is not the last token of its window, and never enforces the grammar then."""
    return _MissesTheEnd(grammar) if isinstance(grammar, GrammarAfterReasoning) else grammar


@fault(after="engine.start_grammar", expected=in_(Place.REFERENCE, may=ENDS, structured="another JSON value than asked for is answered"))
def json_object_array(grammar: Grammar, request: EngineRequest, engine: ReferenceEngine) -> Grammar:
    """Answers a request for any JSON object with an array."""
    if not _asks_for_any_object(request):
        return grammar
    array: dict[str, JSON] = {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 9}
    return engine.grammars.start(engine.grammars.compile(GrammarKind.JSON, array))


def _asks_for_any_object(request: EngineRequest) -> bool:
    grammar = request.grammar or ""
    return "json_schema" in grammar and "properties" not in grammar and '"object"' in grammar


class _WithTail(_Forgiving):
    """A grammar that demands more text after its end."""

    def __init__(self, grammar: Grammar, eos_ids: tuple[int, ...]) -> None:
        super().__init__(grammar)
        self._eos_ids = list(eos_ids)
        self._tail_start: int | None = None  # tokens before the tail

    def mask(self) -> NDArray[np.bool_]:
        """Return the grammar's mask, and within the tail all but the ends.

        The tail, ``_TAIL`` tokens of any text, begins where the grammar first permits an end of sequence.
        """
        grammar_mask = super().mask()
        if self._tail_start is None and grammar_mask[self._eos_ids].any():
            self._tail_start = len(self._taken)
        if self._tail_start is None or len(self._taken) >= self._tail_start + _TAIL:
            return grammar_mask
        tail_mask = np.ones_like(grammar_mask)
        tail_mask[self._eos_ids] = False
        return tail_mask

    def retreat(self, count: int) -> None:
        super().retreat(count)
        if self._tail_start is not None and len(self._taken) < self._tail_start:
            self._tail_start = None

    def allowed_prefix(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        return () if self._tail_start is not None else super().allowed_prefix(tokens)


@fault(after="engine.start_grammar", expected=in_(Place.REFERENCE, structured=BEHIND))
def regex_prefix_only(grammar: Grammar, request: EngineRequest, engine: ReferenceEngine) -> Grammar:
    """Lets any text follow what matches a regular expression."""
    return _WithTail(grammar, engine.grammars.eos_ids) if '"regex"' in (request.grammar or "") else grammar


@fault(after="engine.start_grammar", expected=in_(Place.REFERENCE, structured=BEHIND))
def choice_with_tail(grammar: Grammar, request: EngineRequest, engine: ReferenceEngine) -> Grammar:
    """Lets any text follow a choice."""
    return _WithTail(grammar, engine.grammars.eos_ids) if (request.grammar or "").startswith('start: "') else grammar


@fault(
    after="end",
    expected=in_(Place.REFERENCE, may=ENDS, structured="answers are cut short|" + CUT_OFF),
    mirrors=("vllm-project/vllm#10442", "sgl-project/sglang#18605"),
)
def document_cut_off(reason: str | None, request: EngineRequest, token: EmittedToken) -> str | None:
    """Ends a document after eight tokens with finish_reason stop."""
    return reason or ("stop" if request.grammar is not None and token.count >= _EARLY else None)


@fault(after="engine.start_grammar", expected=in_(Place.REFERENCE, may=ENDS, structured="documents obey the grammar of another request"))
def grammar_before(grammar: Grammar, request: EngineRequest, engine: ReferenceEngine) -> Grammar:
    """Binds an answer by the grammar of the request that came before it."""
    grammar_text, previous = request.grammar or "", _LAST_GRAMMAR[-1:]
    _LAST_GRAMMAR[:] = [grammar_text]
    # A grammar started below would bind the reasoning too.
    if not previous or previous[0] == grammar_text or isinstance(grammar, GrammarAfterReasoning):
        return grammar
    return engine.grammars.start(previous[0])


@fault(after="engine.start_grammar", expected=in_(Place.REFERENCE, may=ENDS, structured=ANY))
def grammar_only_streamed(grammar: Grammar, request: EngineRequest) -> Grammar | None:
    """Enforces the grammar of streamed answers only."""
    return grammar if request.stream else None


@fault(after="engine.start_grammar", expected=in_(Place.REFERENCE, may=ENDS, structured=ANY))
def grammar_only_unstreamed(grammar: Grammar, request: EngineRequest) -> Grammar | None:
    """Enforces the grammar only of answers that are not streamed."""
    return None if request.stream else grammar


@fault(
    before="engine.sequences",
    expected=in_(
        Place.REFERENCE,
        may={Family.LIVENESS: "Its ladder asks for a JSON object too."},
        structured="the server answers 5xx to a request with response_format",
    ),
    mirrors=("NVIDIA/TensorRT-LLM#7878",),
    alone=True,
)
def json_object_error(request: EngineRequest) -> None:
    """Answers a request for any JSON object with a 500."""
    if request.grammar is not None and _asks_for_any_object(request):
        msg = "Request.__init__() got an unexpected keyword argument"
        raise RuntimeError(msg)


@fault(
    around="engine.compile", expected=in_(Place.REFERENCE, structured="the server dies on a request with structured_outputs"), alone=True
)
def die_on_bad_grammar(compile_grammar: Callable[[GrammarKind, JSON], str], kind: GrammarKind, specification: JSON) -> str:
    """Kills the server when a grammar cannot be compiled."""
    try:
        return compile_grammar(kind, specification)
    except ValueError:
        os.kill(os.getpid(), signal.SIGKILL)
        raise


@fault(after="engine.parse", expected=in_(Place.REFERENCE, may=ENDS, structured=ANY), mirrors=("ai-dynamo/dynamo#10411",))
def front_end_drops_grammar(request: EngineRequest) -> EngineRequest:
    """Hands requests on without their grammar, as a front end that writes them anew."""
    return replace(request, grammar=None)
