"""The engine: a batch in a thread of its own, and the queues between it and the server."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import count
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

from pytest_specdec.errors import EngineError
from specdec_reference import adapters, checkpoint, eagle, model, openai_request
from specdec_reference.drafters import ModelDrafter, NgramDrafter, NoDrafter
from specdec_reference.grammar import Grammars
from specdec_reference.memory import Memory
from specdec_reference.metrics import Counters
from specdec_reference.numerics import Numerics
from specdec_reference.openai_response import ResponseOptions
from specdec_reference.pad import pad_model
from specdec_reference.prefix_cache import blocks_of
from specdec_reference.reasoning import GrammarAfterReasoning, ReasoningSplit
from specdec_reference.responses_reply import ResponsesReply
from specdec_reference.rules import EngineRules
from specdec_reference.sampler import PenaltyState
from specdec_reference.scheduler import Batch
from specdec_reference.sequence import Delta, RunningSequence
from specdec_reference.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from pytest_specdec.model.grammar import GrammarKind
    from pytest_specdec.model.workload import JSON, Route
    from specdec_reference.cli import ServerSettings, Speculation
    from specdec_reference.drafters import Drafter, DraftWeights
    from specdec_reference.grammar import Grammar
    from specdec_reference.openai_request import EngineRequest

_JOIN_S: Final = 5.0


class ReferenceEngine:
    """Everything behind the HTTP routes; ``tell`` carries deltas over to the server's thread, once a step.

    A delta is what a step adds to a sequence; a request has a sequence for each choice. Queues bring the engine's thread new sequences,
    those of disconnected clients, and orders: functions to call between two steps. ``rules`` are the decisions that faults replace.
    """

    def __init__(self, settings: ServerSettings, rules: EngineRules = EngineRules()) -> None:  # noqa: B008 - a frozen value
        target = checkpoint.read(settings.model, overrides=settings.hf_overrides)
        _refuse_long_context(settings, target.shape.positions)
        speculation = settings.speculation
        window = 1 + (speculation.tokens if speculation else 0)  # tokens that a step feeds: the last one and its draft
        _refuse_few_blocks(settings, window)
        positions = settings.max_model_len + window
        self.settings = settings
        self.shape = target.shape
        self.tokenizer = Tokenizer(target.folder, target.shape.vocabulary)
        self._reasoning_end = _reasoning_end_token(settings.reasoning_end, self.tokenizer)
        self.counters = Counters(draft_tokens_a_step=window - 1)
        self.rules = rules
        target_model = model.load(target, positions)
        self.adapters = adapters.load(settings.lora_modules, target)
        drafter = _make_drafter(speculation, target_model, positions, settings.max_num_seqs, rules)
        decoder = pad_model(target_model, settings.padded_layers)

        def load() -> tuple[model.Model, DraftWeights | None]:
            """Read the weights of target and drafter once more."""
            read = model.load(checkpoint.read(settings.model, overrides=settings.hf_overrides), positions)
            weights = _make_drafter(speculation, read, positions, settings.max_num_seqs, rules).weights
            return pad_model(read, settings.padded_layers), weights

        self.batch = Batch(
            decoder,
            drafter,
            slots=settings.max_num_seqs,
            counters=self.counters,
            rules=rules,
            blocks=settings.blocks,
            prefix_caching=settings.prefix_caching,
            offloaded_blocks=settings.offloaded_blocks,
            numerics=Numerics.parse(settings.numerics, settings.port),
            adapters=self.adapters,
        )
        self.memory = Memory(self.batch, load)
        self.paused = False
        """Whether no step is made, so that requests wait."""
        self._orders: SimpleQueue[tuple[Callable[[], object], Future[object]]] = SimpleQueue()
        self._inbox: SimpleQueue[tuple[RunningSequence, ...]] = SimpleQueue()
        self._dropped: SimpleQueue[RunningSequence] = SimpleQueue()
        self._thread = threading.Thread(target=self._run_steps, name="engine", daemon=True)
        self._tell: Callable[[list[Delta]], None] = lambda _: None
        self._stopping = False
        self._arrived = count()
        self._defaults = checkpoint.read_defaults(target.folder)
        self._grammars: Grammars | None = None
        self._ended = False
        self.failure: BaseException | None = None
        """The exception that ended the thread; no request is answered after it."""

    @property
    def grammars(self) -> Grammars:
        """The grammars over the target's vocabulary."""
        if self._grammars is None:
            self._grammars = Grammars(self.tokenizer.file, self.shape.eos_ids)
        return self._grammars

    def compile(self, kind: GrammarKind, specification: JSON) -> str:
        """Return a grammar as text, checked to compile.

        ``specification`` is what a request gives for ``kind``, as a JSON Schema. Raises ValueError where it cannot be compiled.
        """
        return self.grammars.compile(kind, specification)

    @cached_property
    def limits(self) -> openai_request.ServerLimits:
        """The limits of requests to this server, for their parser."""
        settings = self.settings
        return openai_request.ServerLimits(
            model=settings.name,
            max_model_len=settings.max_model_len,
            max_logprobs=self.shape.vocabulary if settings.max_logprobs < 0 else settings.max_logprobs,
            prompt_logprobs=settings.prompt_logprobs,
            token_prompts=settings.token_prompts,
            images=settings.images,
            grammar=self.compile,
            adapters=tuple(self.adapters),
            fits=self.rules.fits,
            reasoning=self._reasoning_end is not None,
        )

    def parse(self, route: Route, body: JSON) -> EngineRequest:
        """Return the request of a JSON body; raises Refusal, answered by a 4xx.

        Sampling parameters that it leaves out are those of the checkpoint's generation_config.json, as with vLLM.
        """
        if isinstance(body, dict):
            body = {**body, **{name: value for name, value in self._defaults.items() if body.get(name) is None}}
        return openai_request.parse(route, body, self.tokenizer, self.limits)

    def response(self, route: Route, request: EngineRequest) -> ResponseOptions:
        """Return the form of one request's answer."""
        settings = self.settings
        return ResponseOptions(
            route=route,
            model=request.adapter or settings.name,
            request=request if settings.token_ids else replace(request, return_token_ids=False),
            tokenizer=self.tokenizer,
            metrics=settings.spec_decode_metrics,
            tells_cached=settings.tells_cached,
            draft_tokens=self.counters.draft_tokens_a_step,
            decimals=settings.logprob_decimals,
            usage=settings.usage,
            chunk_steps=settings.chunk_steps,
            rules=self.rules,
        )

    def reply(self, options: ResponseOptions, body: dict[str, JSON]) -> ResponsesReply:
        """Return the reply of the Responses API to the request of ``body``."""
        return ResponsesReply(options, body)

    def start(self, tell: Callable[[list[Delta]], None]) -> None:
        """Start the engine's thread.

        In that thread, ``tell`` gets the deltas of each step.
        """
        self._tell = tell
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its current step.

        Sequences in flight fail.
        """
        self._stopping = True
        self._inbox.put(())  # wakes the thread if it waits for sequences
        self._thread.join(_JOIN_S)

    def sequences(self, request: EngineRequest, tell: Callable[[Delta], None]) -> tuple[RunningSequence, ...]:
        """Return the sequences of a request's n choices, not queued yet.

        ``tell`` gets the deltas of each.
        """
        # Of a request without a seed: another one for each, the same again after a new start.
        fallback_seed = hash((self.settings.seed, next(self._arrived)))
        return tuple(
            RunningSequence(
                request,
                index=index,
                random=self.rules.randomness(request.seed, fallback_seed, index),
                text=self.rules.text(
                    self.tokenizer.pieces if request.skip_special_tokens else self.tokenizer.named_pieces,
                    () if request.include_stop else request.stop,
                ),
                eos_ids=self.shape.eos_ids,
                context=self.settings.max_model_len,
                rules=self.rules,
                grammar=None if request.grammar is None else self.start_grammar(request, request.grammar),
                penalties=PenaltyState(request, self.shape.vocabulary) if request.penalised else None,
                reasoning=self._start_reasoning(request),
                tell=tell,
            )
            for index in range(request.n)
        )

    def _start_reasoning(self, request: EngineRequest) -> ReasoningSplit | None:
        """Return the state of a new sequence's reasoning, None without any."""
        if self._reasoning_end is None or not request.reasons:
            return None
        return ReasoningSplit(self._reasoning_end, request.thinking_tokens)

    def start_grammar(self, request: EngineRequest, grammar_text: str) -> Grammar:
        """Return the state of a new sequence in its grammar.

        It begins after the reasoning where the request reasons.
        """
        grammar: Grammar = self.grammars.start(grammar_text)
        if self._reasoning_end is not None and request.reasons:
            grammar = GrammarAfterReasoning(grammar, self._reasoning_end, self.shape.vocabulary, self.shape.eos_ids)
        return grammar

    def submit(self, sequences: tuple[RunningSequence, ...]) -> None:
        """Queue sequences for the engine's thread; () only wakes it.

        Once the thread has ended they are given up at once.
        """
        self._inbox.put(sequences)
        if self._ended:
            self._give_up_all()

    def drop(self, sequences: Iterable[RunningSequence]) -> None:
        """Stop working on sequences of disconnected clients."""
        for sequence in sequences:
            self._dropped.put(sequence)

    def follow(self, order: Callable[[], object]) -> Future[object]:
        """Have the engine's thread call ``order`` between two steps.

        The future has its result or its exception: RuntimeError once the thread has ended.
        """
        future: Future[object] = Future()
        self._orders.put((order, future))
        self.submit(())  # wakes the thread if it waits for sequences
        return future

    def _refuse_orders(self) -> None:
        """Give RuntimeError to every order that waits."""
        with suppress(Empty):
            while True:
                _, future = self._orders.get_nowait()
                if future.set_running_or_notify_cancel():
                    future.set_exception(RuntimeError(f"the engine has ended: {self.failure}"))

    def pause(self, mode: str) -> None:
        """Make no further step; running requests are aborted unless ``mode`` is ``keep``."""
        self.paused = True
        if mode != "keep":
            self._tell([sequence.give_up() for sequence in self.batch.clear()])

    def resume(self) -> None:
        """Go on with what waits."""
        self.paused = False

    def sleep(self, level: int, mode: str) -> None:
        """Pause, and give up the memory; by vLLM's levels."""
        self.pause(mode)
        self.memory.sleep(level)

    def wake_up(self, tags: Collection[str]) -> None:
        """Wake the parts ``tags``, and resume once all are awake.

        Without ``tags`` all parts are woken.
        """
        self.memory.wake_up(tags)
        if not self.memory.asleep:
            self.resume()

    def _run_steps(self) -> None:
        """Step until the engine is stopped or a step raises."""
        try:
            while not self._stopping:
                self._empty_queues()
                if self.batch.busy and not self.paused:
                    self._tell(self.batch.step())
        except BaseException as error:  # noqa: BLE001 - clients must not wait for ever, and a library's panic is no Exception
            self.failure = error
        self._ended = True
        self._give_up_all()

    def _give_up_all(self) -> None:
        """Give up every sequence, queued ones too, and refuse all orders."""
        self._refuse_orders()
        unfinished = self.batch.clear()
        with suppress(Empty):
            while True:
                unfinished += self._inbox.get_nowait()
        self._tell([sequence.give_up() for sequence in unfinished])

    def _empty_queues(self) -> None:
        """Take in new sequences, then drop those of disconnected clients.

        Orders are followed meanwhile. Waits for a sequence or an order while the batch is idle or paused.
        """
        while True:
            try:
                new_sequences = self._inbox.get(block=(self.paused or not self.batch.busy) and not self._stopping)
            except Empty:
                break
            for sequence in new_sequences:
                self.batch.add(sequence)
            self._follow_orders()
        disconnected = set()
        while not self._dropped.empty():
            disconnected.add(self._dropped.get())
        if disconnected:
            self.batch.drop(disconnected)

    def _follow_orders(self) -> None:
        """Call every order, and hand its result or exception over."""
        while not self._orders.empty():
            order, future = self._orders.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(order())
            except Exception as error:  # noqa: BLE001 - the client of the order gets it
                future.set_exception(error)


def _reasoning_end_token(text: str, tokenizer: Tokenizer) -> int | None:
    """Return the token at the end of the reasoning.

    None for no text. Raises EngineError where the text takes several tokens.
    """
    ids = tokenizer.encode(text)
    if len(ids) > 1:
        description = f"{text!r}, which is {len(ids)} tokens"
        raise EngineError(what="reasoning ends at one token", where="--reasoning-end", found=description, expected="the text of one token")
    return ids[0] if ids else None


def _make_drafter(speculation: Speculation | None, target: model.Model, positions: int, slots: int, rules: EngineRules) -> Drafter:
    """Return the drafter of a speculative setting, with its weights.

    ``positions`` is the longest sequence of the target with a verify window, in tokens; ``slots`` are the sequences at
    once. Raises EngineError for a draft of another vocabulary, or a head that does not fit.
    """
    if speculation is None:
        return NoDrafter()
    if speculation.method == "ngram":
        return NgramDrafter(tokens=speculation.tokens, n_min=speculation.n_min, n_max=speculation.n_max)
    if speculation.method == "eagle3":
        head = eagle.load(checkpoint.read(speculation.model, checkpoint.EAGLE3), target)
        return eagle.EagleDrafter(head, tokens=speculation.tokens, slots=slots, probabilistic=speculation.probabilistic)
    draft, vocabulary = checkpoint.read(speculation.model), target.shape.vocabulary
    if draft.shape.vocabulary != vocabulary:
        raise EngineError(
            what="the draft has another vocabulary than the target",
            where="--speculative-config: model",
            found=f"{draft.shape.vocabulary} tokens in {speculation.model}",
            expected=f"{vocabulary} tokens",
            remedy="use a draft of the target's family",
        )
    context = min(speculation.max_model_len or draft.shape.positions, draft.shape.positions)
    draft_model = model.load(draft, min(positions, context + 1 + speculation.tokens))  # a window more than its context
    return ModelDrafter(
        draft_model, tokens=speculation.tokens, slots=slots, probabilistic=speculation.probabilistic, context=context, rules=rules
    )


def _refuse_long_context(settings: ServerSettings, positions: int) -> None:
    """Raise EngineError for a context beyond the model's positions."""
    if settings.max_model_len > positions:
        raise EngineError(
            what="the model is not made for sequences that long",
            where="--max-model-len",
            found=str(settings.max_model_len),
            expected=f"at most {positions}, the checkpoint's max_position_embeddings",
            remedy='state more by --hf-overrides {"max_position_embeddings": N}',
        )


def _refuse_few_blocks(settings: ServerSettings, window: int) -> None:
    """Raise EngineError if the blocks cannot hold one longest sequence.

    ``window`` is the tokens of a verify window, for which it needs room too. 0 blocks stand for as many as needed.
    """
    needed = blocks_of(settings.max_model_len + window)
    if settings.blocks and settings.blocks < needed:
        raise EngineError(
            what="the blocks do not hold one sequence of the greatest length",
            where="--num-gpu-blocks-override",
            found=str(settings.blocks),
            expected=f"at least {needed}, or a lower --max-model-len",
        )
