"""Grammar masks: what llguidance allows at every token of answers that a grammar binds, for servers that enforce it through llguidance.

They are computed when all answers are there, from request, tokens and the checkpoint's tokenizer. No server is asked.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from functools import cached_property
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from pytest_specdec.engines.llguidance import ServesLlguidance
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.errors import EngineError, RunError
from pytest_specdec.files import grammar_masks, transcripts
from pytest_specdec.model.grammar_mask import AnswerMask, GrammarMasks
from pytest_specdec.model.pair import BASELINE, CONTROL
from pytest_specdec.model.workload import GrammarKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llguidance import LLMatcher, LLTokenizer

    from pytest_specdec.config.config import Config
    from pytest_specdec.engines.llguidance import GrammarBackend
    from pytest_specdec.files.run_directory import RunDirectory
    from pytest_specdec.model.plan import Plan
    from pytest_specdec.model.transcript import Answer, Position, Score, Transcript
    from pytest_specdec.model.workload import JSON, Grammar, Workload

_PACKAGE = "llguidance"
_NOT_INSTALLED = "llguidance is not installed: pip install 'pytest-specdec[llguidance]'"
_END_OF_REASONING = "</think>"
_ANY_OBJECT: Mapping[str, JSON] = {"type": "object"}


def compute(config: Config, plan: Plan, directory: RunDirectory) -> None:
    """Write the masks of all answers bound by a grammar.

    The answers are those in ``directory``. Nothing is written unless every server's backend is llguidance.
    """
    backend = _backend(config)
    if backend is None:
        return
    computer = MaskComputer(backend)
    arms = (BASELINE, CONTROL, *(pair.name for pair in plan.pairs))
    for workload in plan.workloads:
        for arm in arms if _read_grammars(workload) else ():
            with suppress(RunError):  # a file that cannot be read: its own judgement reports the error
                transcript = transcripts.read(directory, arm, workload.name)
                scores = transcripts.read_scores(directory, BASELINE, arm, workload.name)
                if transcript is not None:
                    grammar_masks.write(directory, arm, workload.name, computer.masks(workload, transcript, scores))


def _backend(config: Config) -> GrammarBackend | None:
    """Return the grammar backend of the engine.

    None unless it is llguidance and no server is attached.
    """
    engine = engine_of(config.engine.kind)
    attached = (config.engine.url, config.baseline.url, *(variant.url for variant in config.variants))
    if not isinstance(engine, ServesLlguidance) or any(attached):
        return None
    try:
        return engine.grammar_backend(config)
    except EngineError:
        return None


def _read_grammars(workload: Workload) -> Mapping[str, Grammar]:
    """Return the grammar of each request, if it is read here."""
    grammars = {request.id: request.grammar for request in workload.requests}
    return {name: grammar for name, grammar in grammars.items() if grammar is not None and grammar.kind is not None}


class MaskComputer:
    """Follows answers through their grammars as the server of ``backend`` does."""

    def __init__(self, backend: GrammarBackend) -> None:
        self._backend = backend

    def masks(self, workload: Workload, transcript: Transcript, scores: Sequence[Score]) -> GrammarMasks:
        """Return the masks along every answer bound by a grammar.

        The answers are those of ``transcript``.
        """
        missing = self._missing_reason
        release = version(_PACKAGE) if find_spec(_PACKAGE) is not None else ""
        if missing:
            return GrammarMasks(release=release, server_release=self._backend.release, missing=missing)
        bound = _read_grammars(workload)
        positions = {score.key: score.positions for score in scores}
        hidden = not self._reasoning_end_ids and any(answer.choice.reasoning for answer in transcript.answers)
        return GrammarMasks(
            release=release,
            server_release=self._backend.release,
            answers=tuple(
                self._compute_mask(answer, bound[answer.request_id], positions.get(answer.key, ()), hidden=hidden)
                for answer in transcript.answers
                if answer.request_id in bound and answer.ok and answer.choice.token_ids
            ),
        )

    @cached_property
    def _missing_reason(self) -> str:
        """Reason why no mask can be computed; empty without one."""
        if find_spec(_PACKAGE) is None:
            return _NOT_INSTALLED
        if self._backend.unknown:
            return f"the grammars of a server with {self._backend.unknown} are not known here"
        try:
            self._tokenizer.vocab_size  # noqa: B018 - read here, so that all answers share the reason
        except (OSError, ValueError) as error:
            return f"llguidance cannot read the tokenizer of {self._backend.checkpoint}: {error}"
        return ""

    @cached_property
    def _tokenizer_json(self) -> str:
        return (self._backend.checkpoint / "tokenizer.json").read_text(encoding="utf-8")

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        from llguidance import LLTokenizer  # noqa: PLC0415 - an extra, and slow to load

        return LLTokenizer(self._tokenizer_json, eos_token=list(self._backend.eos_ids) or None)

    @cached_property
    def _reasoning_end_ids(self) -> frozenset[int]:
        """Id of the token ending a reasoning; empty without one."""
        added = json.loads(self._tokenizer_json).get("added_tokens", ())
        return frozenset(token["id"] for token in added if token.get("content") == _END_OF_REASONING)

    def _compute_mask(self, answer: Answer, grammar: Grammar, positions: Sequence[Position], *, hidden: bool) -> AnswerMask:
        """Return the mask along one answer.

        Marked as unread if its grammar or the end of its reasoning is unknown.
        """
        text = json.dumps([grammar.kind, grammar.text], sort_keys=True)
        key = {"request_id": answer.request_id, "pass_index": answer.pass_index}
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        start = None if hidden else self._grammar_start(answer)
        if start is None:
            return AnswerMask(**key, grammar=digest, unread="its reasoning ends at no token that is known")  # type: ignore[arg-type]
        try:
            matcher = self._make_matcher(grammar)
        except ValueError as error:
            return AnswerMask(**key, grammar=digest, unread=f"llguidance cannot compile its grammar: {str(error).splitlines()[0]}")  # type: ignore[arg-type]
        scored_positions = positions if len(positions) == len(answer.choice.token_ids) else ()
        allowed, best, forbidden = _follow_grammar(matcher, answer.choice.token_ids, scored_positions, start)
        return AnswerMask(**key, grammar=digest, start=start, allowed=allowed, best=best, forbidden=forbidden)  # type: ignore[arg-type]

    def _grammar_start(self, answer: Answer) -> int | None:
        """Return the index of the first token after the reasoning.

        The number of tokens if a limit cut the reasoning. None if it ends at no known token.
        """
        ids = answer.choice.token_ids
        if answer.choice.cut_in_reasoning:
            return len(ids)
        ends = [index for index, token in enumerate(ids) if token in self._reasoning_end_ids]
        if ends:
            return ends[-1] + 1
        return None if answer.choice.reasoning else 0

    def _make_matcher(self, grammar: Grammar) -> LLMatcher:
        """Return a matcher at the beginning of a grammar.

        Raises ValueError if llguidance cannot compile it.
        """
        from llguidance import LLMatcher, grammar_from  # noqa: PLC0415 - an extra, and slow to load

        content = _ANY_OBJECT if grammar.kind is GrammarKind.JSON_OBJECT else grammar.text
        text = content if isinstance(content, str) else json.dumps(content)
        if grammar.kind in {GrammarKind.JSON, GrammarKind.JSON_OBJECT}:
            compiled = LLMatcher.grammar_from_json_schema(text, defaults=dict(self._backend.json_options))  # type: ignore[arg-type]
        else:
            compiled = grammar_from(str(grammar.kind), text)  # type: ignore[arg-type]
        is_invalid, messages = LLMatcher.validate_grammar_with_warnings(compiled, self._tokenizer)
        if is_invalid:
            raise ValueError("; ".join(messages))
        return LLMatcher(self._tokenizer, compiled, log_level=0)


def _follow_grammar(
    matcher: LLMatcher, token_ids: Sequence[int], positions: Sequence[Position], start: int
) -> tuple[tuple[int, ...], tuple[int, ...], int | None]:
    """Return the allowed counts, best ranks and first forbidden index.

    From ``start`` on, each token has the number of tokens allowed in its place, and the rank of the best
    allowed one among the top tokens in ``positions``: -1 if none of them is allowed, no ranks without
    ``positions``. The index is that of the first forbidden token, None without one. Nothing is followed after
    the end of the grammar.
    """
    allowed: list[int] = []
    best: list[int] = []
    for index in range(start, len(token_ids)):
        mask = matcher.compute_bitmask()
        allowed.append(int.from_bytes(mask, "little").bit_count())
        if positions:
            best.append(next((rank for rank, token in enumerate(positions[index].top_ids) if _allows(mask, token)), -1))
        if not _allows(mask, token_ids[index]):
            return tuple(allowed), tuple(best), index
        if matcher.is_stopped() or not matcher.consume_token(token_ids[index]):
            break
    return tuple(allowed), tuple(best), None


def _allows(mask: bytes, token: int) -> bool:
    """Return True if the mask has the bit of ``token``."""
    return 0 <= token < 8 * len(mask) and bool(mask[token >> 3] >> (token & 7) & 1)
