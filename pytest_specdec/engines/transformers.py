"""``transformers serve``, which speculates request by request: the variant's drafting travels in every request's ``generation_config``.

Read from ``transformers/cli/serving`` and ``transformers/generation`` of 5.23.0 and run on it on the CPU
(https://github.com/huggingface/transformers/tree/v5.23.0/src/transformers/cli/serving):

- ``generation_config`` is JSON of a ``GenerationConfig``. What it leaves out comes from the checkpoint, then from the library: ``top_k`` is
  50 there, and without ``do_sample`` a temperature is ignored. A field that is not of the OpenAI protocol is refused with 422.
- A prompt is text, never ids. Answers hold neither ids nor log-probabilities; ``logprobs``, ``n``, ``presence_penalty`` and, in chats,
  ``response_format`` are accepted and ignored; ``frequency_penalty`` f becomes a repetition penalty 1 + f.
- A stream has one chunk per verify step and no ``[DONE]``. Under speculation its usage counts steps for tokens, and ``finish_reason`` is
  "stop" where the limit ended the answer: ``DirectStreamer.put`` takes the ids of a step for one id. Whole answers are right.
- A seed is set for the whole process when its request arrives, while another one may be drawing: seeds hold for one client alone.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.config.rules import DraftingRule, EngineRules, LossySetting, plain
from pytest_specdec.config.validate import nearest
from pytest_specdec.engines import checkpoint, locate
from pytest_specdec.engines.arguments import arm_args, flags, integer_or_zero
from pytest_specdec.engines.checkpoint_tokenizer import CheckpointTokenizer
from pytest_specdec.engines.plain_dialect import PlainDialect
from pytest_specdec.engines.protocol import HOST, PROTOCOL_VERSION, Command, Dialect, EngineProgram, Footprint, RoughRates
from pytest_specdec.errors import EngineError
from pytest_specdec.model.pair import Draft, DraftKind, DraftSampling
from pytest_specdec.model.workload import Route

if TYPE_CHECKING:
    from pytest_specdec.config.config import Config
    from pytest_specdec.engines.protocol import Ask, ServerSetup
    from pytest_specdec.model.transcript import ScoringRoute
    from pytest_specdec.model.workload import JSON, Request

_SETTING = "generation-config"
"""The argument of a variant that goes into its requests, not into the command."""
_LOOKUP, _NGRAM = "prompt_lookup_num_tokens", "max_matching_ngram_size"
_EARLY_EXIT, _TOKENS = "assistant_early_exit", "num_assistant_tokens"
_WEIGHT = "assistant_ensemble_weight"
_KEYS = (_LOOKUP, _NGRAM, _EARLY_EXIT, _TOKENS, "num_assistant_tokens_schedule", "assistant_confidence_threshold", _WEIGHT)
"""What a variant may set. ``use_mtp`` needs heads and ``speculation_type`` a draft model, which no request can name."""
_DEFAULT_NGRAM, _DEFAULT_TOKENS = 2, 20
"""The library's own ``max_matching_ngram_size`` and ``num_assistant_tokens``."""
_NO_TOKEN = -1
"""An end-of-sequence id that no token has; without this field the checkpoint's own would hold."""
_RENAMED = {
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
}
"""Fields of a request that mean the same in a generation config, by their names there."""
_TRANSLATED = frozenset({*_RENAMED, "temperature", "top_k", "ignore_eos", "stop_token_ids", "logit_bias"})
_PROCESS_GIB = 1.0
_REMEDY = "pip install transformers torch accelerate fastapi uvicorn openai into engine.venv, or set engine.executable"


class TransformersDialect(PlainDialect):
    """The OpenAI protocol with a ``generation_config`` in every request.

    It holds the request's own parameters and the variant's drafting. Token ids of greedy answers are made from their texts.
    """

    health_path: str | None = "/health"
    chunk_per_step = True
    closing_event = False

    def __init__(self, model: str, drafting: Mapping[str, JSON], environ: Mapping[str, str]) -> None:
        """Take the server's model, its variables and its requests' speculative settings.

        ``model`` is written as it was given to the server.
        """
        self._model = model
        self._drafting = drafting
        self._environ = environ
        self._loaded_tokenizer: CheckpointTokenizer | None = None
        self._loaded_eos: tuple[int, ...] = ()

    @property
    def _tokenizer(self) -> CheckpointTokenizer | None:
        """The checkpoint's tokenizer; None until it is found.

        Until then each access looks for it again, since the first boot may download the checkpoint.
        """
        self._loaded_tokenizer = self._loaded_tokenizer or CheckpointTokenizer.of(self._model, self._environ)
        return self._loaded_tokenizer

    @property
    def _eos(self) -> tuple[int, ...]:
        """The checkpoint's end-of-sequence ids; () until it is found."""
        self._loaded_eos = self._loaded_eos or _read_eos_ids(checkpoint.find_folder(self._model, self._environ))
        return self._loaded_eos

    def sent(self, request: Request, *, stream: bool) -> Mapping[str, JSON]:  # noqa: ARG002 - a stream ends with its usage unasked
        """Return the body with its sampling parameters in ``generation_config``.

        They have the library's names there, and are left out of the body itself. Those that the request does not state get neutral
        values, unless it asks for the server's own. The variant's speculative settings are in ``generation_config`` too.
        """
        rest = {name: value for name, value in request.body.items() if name not in _TRANSLATED}
        return {
            **rest,
            "model": self._model,
            "generation_config": json.dumps({**self._generation_settings(request), **self._drafting}),
        }

    def answer(self, request: Request, replies: Sequence[Mapping[str, JSON]]) -> Sequence[Mapping[str, JSON]]:
        """Return the replies with a greedy answer's token ids added.

        They are put into the last reply. The replies stay as they are if the ids are not certain, if a reply has no choice or
        several, and without the tokenizer. A sampled answer gets no ids, since it may spell its text by other tokens than
        the tokenizer would.
        """
        choices = [_only_choice(reply) for reply in replies]
        if self._tokenizer is None or not request.greedy or None in choices:
            return replies
        ids = self._answer_ids(self._tokenizer, request, replies)
        if ids is None:
            return replies
        return [*replies[:-1], {**replies[-1], "choices": [{**(choices[-1] or {}), "token_ids": list(ids)}]}]

    def _answer_ids(
        self, tokenizer: CheckpointTokenizer, request: Request, replies: Sequence[Mapping[str, JSON]]
    ) -> tuple[int, ...] | None:
        """Return the token ids of a greedy answer; None if uncertain.

        The ids are those that the tokenizer gives the answer's text, if they are as many as the server counted. A stream under speculation
        counts verify steps instead of tokens: its ids are certain only if they are as many as the request's token limit.

        If one is missing, it may be the end-of-sequence token, which is in no text. That is added if the checkpoint has one
        such token only, and nothing else can have ended the answer. At the token limit it is not added: the limit may have ended
        the answer, and the model may have spelt its text by one token more than the tokenizer does.
        """
        ids = tokenizer.encode_answer("".join(map(_reply_text, replies)))
        limit = _token_limit(request)
        is_stream = len(replies) > 1
        expected_tokens = (limit if is_stream and self._drafting else _counted_tokens(replies)) or 0
        missing_tokens = expected_tokens - len(ids)
        if missing_tokens == 0:
            return ids
        ends_by_eos = expected_tokens != limit and not _may_end_without_eos(request.body)
        if missing_tokens == 1 and ends_by_eos and len(self._eos) == 1:
            return (*ids, *self._eos)
        return None

    def prompt_token_ids(self, request: Request, ask: Ask) -> tuple[int, ...]:  # noqa: ARG002 - no route tokenizes
        """Return the prompt's ids by the checkpoint's tokenizer and template.

        Returns an empty tuple without the tokenizer.
        """
        if self._tokenizer is None:
            return ()
        prompt, messages = request.body.get("prompt"), request.body.get("messages")
        if request.route is not Route.CHAT:
            return self._tokenizer.encode(prompt) if isinstance(prompt, str) else ()
        arguments = request.body.get("chat_template_kwargs")
        conversation = messages if isinstance(messages, Sequence) else ()
        return self._tokenizer.encode_chat(conversation, arguments if isinstance(arguments, Mapping) else {})

    def _generation_settings(self, request: Request) -> dict[str, JSON]:
        """Return a request's sampling parameters under the library's names.

        Temperature, top-p and top-k get neutral values if the body leaves them out, and none with ``server_defaults``, so that the server's
        own show. A greedy request gets ``do_sample`` false, without these three. A logit bias becomes a sequence bias. ``eos_token_id``
        replaces the checkpoint's own: it has those ids and the request's stop ids. With ``ignore_eos`` it has the stop ids alone, or an id
        of no token.
        """
        body = request.body
        temperature = body.get("temperature", 1.0)
        is_greedy = temperature == 0
        config: dict[str, JSON] = {}
        if not request.server_defaults:
            config["do_sample"] = not is_greedy
            if not is_greedy:
                top_k = body.get("top_k", 0)
                config |= {"temperature": temperature, "top_p": 1.0, "top_k": 0 if top_k == -1 else top_k}
        for name, library_name in _RENAMED.items():
            if name in body and not (is_greedy and name == "top_p"):
                config[library_name] = body[name]
        ignores_eos = body.get("ignore_eos") is True
        stop_ids = body.get("stop_token_ids")
        end_ids = [*(() if ignores_eos else self._eos), *(stop_ids if isinstance(stop_ids, Sequence) else ())]
        if end_ids or ignores_eos:
            config["eos_token_id"] = end_ids or _NO_TOKEN
        bias = body.get("logit_bias")
        if isinstance(bias, Mapping):
            config["sequence_bias"] = [[[int(token)], _as_float(value)] for token, value in bias.items()]
        return config


def _as_float(value: JSON) -> JSON:
    return float(value) if isinstance(value, int) else value  # the library refuses a bias that is a whole number


def _counted_tokens(replies: Sequence[Mapping[str, JSON]]) -> int | None:
    """Return an answer's number of tokens by the last usage; None without one."""
    return next((count for reply in reversed(replies) if (count := _completion_tokens(reply)) is not None), None)


def _token_limit(request: Request) -> int | None:
    """Return the most tokens that a request asks for; None without a limit."""
    limit = request.body.get("max_completion_tokens", request.body.get("max_tokens"))
    return limit if isinstance(limit, int) else None


def _may_end_without_eos(body: Mapping[str, JSON]) -> bool:
    """Return True if an answer may end by another token than EOS.

    That is so with ``ignore_eos``, ``stop`` or ``stop_token_ids``.
    """
    return body.get("ignore_eos") is True or any(body.get(name) for name in ("stop", "stop_token_ids"))


def _only_choice(reply: Mapping[str, JSON]) -> Mapping[str, JSON] | None:
    """Return the only choice of a reply; None if it has none or several."""
    choices = reply.get("choices")
    (choice,) = choices if isinstance(choices, Sequence) and len(choices) == 1 else (None,)
    return choice if isinstance(choice, Mapping) else None


def _reply_text(reply: Mapping[str, JSON]) -> str:
    """Return the text in a reply or chunk; empty without one."""
    choice = _only_choice(reply) or {}
    message = choice.get("message") or choice.get("delta")
    text = message.get("content") if isinstance(message, Mapping) else choice.get("text")
    return text if isinstance(text, str) else ""


def _completion_tokens(reply: Mapping[str, JSON]) -> int | None:
    """Return the completion tokens of a usage; None without one."""
    usage = reply.get("usage")
    count = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
    return count if isinstance(count, int) else None


def _read_eos_ids(folder: Path) -> tuple[int, ...]:
    """Return the end-of-sequence ids of a checkpoint.

    They come from generation_config.json, else from config.json. Returns an empty tuple without any.
    """
    for name in ("generation_config.json", "config.json"):
        try:
            ids = json.loads((folder / name).read_text(encoding="utf-8")).get("eos_token_id")
        except (OSError, ValueError, AttributeError):
            continue
        if ids is not None:
            return tuple(token for token in (ids if isinstance(ids, list) else [ids]) if isinstance(token, int))
    return ()


def _read_drafting(args: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return the speculative settings in ``args``; empty without any.

    They are named as in the library. Raises EngineError for a setting that no variant may set.
    """
    setting = next((value for name, value in args.items() if plain(name) == _SETTING), None)
    if isinstance(setting, str):
        setting = json.loads(setting)  # the pair lint has seen that it is JSON of a mapping
    if not isinstance(setting, Mapping):
        return {}
    drafting: dict[str, JSON] = {plain(name).replace("-", "_"): value for name, value in setting.items() if value is not None}
    for name in drafting:
        if name not in _KEYS:
            suggestion = nearest(name, _KEYS)
            what = f"a variant sets no {name!r}" + (f"; {suggestion}" if suggestion else "")
            remedy = "sampling parameters come from each request, alike in both arms"
            raise EngineError(what, where=f"args.{_SETTING}.{name}", found=name, expected=f"one of {', '.join(_KEYS)}", remedy=remedy)
    return drafting


def _is_mixed(weight: object) -> bool:
    return weight is not None


class Transformers:
    """One engine of the registry (flags: ``transformers serve --help``).

    A variant's ``generation-config`` is an argument, so that the pair lint reads it as any other, although it is sent with requests.
    """

    kind = "transformers"
    protocol_version = PROTOCOL_VERSION
    pace = RoughRates(boot_s=9.0, tokens_per_s=60.0, scored_tokens_per_s=500.0)
    rules = EngineRules(
        prefixes=(_SETTING,),
        mappings=frozenset({_SETTING}),
        method=("drafting-method",),
        drafting=DraftingRule(methods=frozenset(), tokens=tuple((_SETTING, plain(name)) for name in (_LOOKUP, _TOKENS)), defaulted=True),
        lossy=(
            LossySetting(
                path=(_SETTING, plain(_WEIGHT)),
                is_lossy=_is_mixed,
                lossless="nothing: it accepts drafts by a mixture with their own distribution",
            ),
        ),
    )
    """No setting names the method: each has settings of its own."""
    scored_with = "name a `scorer:` of the same weights: transformers serve takes no token ids, and gives none of sampled answers"

    def dialect(self, config: Config, setup: ServerSetup) -> Dialect:
        """Return the dialect of the server's model.

        The variant's speculative settings go into every request, and the model's tokenizer is looked for under the server's variables.
        """
        return TransformersDialect(config.resolve(setup.model), _read_drafting(setup.args), {**os.environ, **setup.env})

    def draft(self, args: Mapping[str, JSON]) -> Draft | None:
        """Return the draft settings in ``args``; None without any.

        The server drafts by early exit or by prompt lookup; by early exit if both are set. With early exit the model's own first
        layers draw the drafts, by the request's sampling parameters. Drafts that are looked up are not drawn. Numbers that the
        settings leave out are the library's own. Raises EngineError for an unknown setting.
        """
        drafting = _read_drafting(args)
        if drafting.get(_EARLY_EXIT) is not None:
            tokens = integer_or_zero(drafting.get(_TOKENS)) or _DEFAULT_TOKENS
            return Draft(kind=DraftKind.HEAD, tokens=tokens, sampling=DraftSampling.PROBABILISTIC)
        if drafting.get(_LOOKUP) is not None:
            ngram_max = integer_or_zero(drafting.get(_NGRAM)) or _DEFAULT_NGRAM
            return Draft(kind=DraftKind.NGRAM, tokens=integer_or_zero(drafting[_LOOKUP]), ngram_min=1, ngram_max=ngram_max)
        return None

    def models(self, model: str, args: Mapping[str, JSON]) -> tuple[str, ...]:  # noqa: ARG002 - no request can name a draft model
        """Return ``model``; it may come from the hub."""
        return (model,)

    def check(self, config: Config) -> None:
        """Raise EngineError if the engine cannot run this config.

        No container image may be set. A variant's drafting has to use known settings, under ``args``: a ``generation_config`` in ``body``
        would replace the sampling parameters of every request. Then ``transformers`` and a model given as a path have to exist.
        """
        if config.engine.image:
            what = "transformers serve runs in no container here"
            raise EngineError(what, where="engine.image", found=config.engine.image, remedy="set engine.venv instead")
        for variant in config.variants:
            _read_drafting(variant.args)  # raises for an unknown setting
        variants = {f"variants.{variant.name}": variant.body for variant in config.variants}
        for where, body in {"engine": config.engine.body, "baseline": config.baseline.body, **variants}.items():
            if "generation_config" in body:
                what = "generation_config in `body` takes the place of what every request asks for"
                remedy = f"write the drafting as `args: {{{_SETTING}: {{...}}}}` of a variant"
                raise EngineError(what, where=f"{where}.body", found="generation_config", remedy=remedy)
        self._find_program(config)  # raises if it is missing
        checkpoint.require_model(config)

    def command(self, config: Config, setup: ServerSetup) -> Command:
        """Return the command ``transformers serve MODEL …`` with its flags.

        The variant's ``generation-config`` is left out, since it goes into requests.
        """
        args = {name: value for name, value in setup.args.items() if plain(name) != _SETTING}
        server_flags = flags({"host": HOST, **args, "port": setup.port})
        return Command(
            argv=(self._find_program(config), "serve", config.resolve(setup.model), *server_flags), env=setup.env, secrets=setup.secrets
        )

    def program(self, argv: Sequence[str]) -> EngineProgram:
        """Return the command lines that print the package's version and the server's flags."""
        version = "from importlib.metadata import version; print(version('transformers'))"
        return EngineProgram(version=(str(Path(argv[0]).parent / "python"), "-c", version), help=tuple(argv[:2]), abbreviates=False)

    def vocabulary(self, config: Config) -> int:
        """Return ``vocab_size`` of a local checkpoint's config.json; 0 without one."""
        return checkpoint.vocabulary(checkpoint.folder(config, config.engine.model))

    def footprint(self, config: Config, *, accelerated: bool) -> Footprint:
        """Return the memory or the accelerator that one server takes.

        Servers take an accelerator if there is one, unless every arm's ``device`` is the CPU. Which one, and how much of its memory, is
        unknown: it may be any of them, and all of it counts. On the CPU the memory is the interpreter's and twice the weights' files,
        since weights stored in 16 bits may be loaded in 32.
        """
        all_on_cpu = all(args.get("device") == "cpu" for args in arm_args(config))
        if accelerated and not all_on_cpu:
            return Footprint(device_share=1.0, takes_first=False)
        weights = checkpoint.gib(checkpoint.folder(config, config.engine.model))
        return Footprint(memory_gib=None if weights is None else _PROCESS_GIB + 2 * weights)

    def route(self, config: Config) -> ScoringRoute | None:  # noqa: ARG002 - it has none
        """Return None: the server cannot score tokens."""
        return None

    def single_precision(self, config: Config) -> bool:
        """Return True if every arm computes in float32, nothing quantised.

        Either ``dtype`` is float32, or it is the checkpoint's own and that is float32.
        """
        model = checkpoint.folder(config, config.engine.model)
        document = checkpoint.read_config(model)
        stored = document.get("dtype") or document.get("torch_dtype")  # the older name
        arms = list(arm_args(config))
        dtypes = {stored if args.get("dtype", "auto") == "auto" else args["dtype"] for args in arms}
        return dtypes == {"float32"} and not any("quantization" in args for args in arms) and not checkpoint.is_quantised(model)

    def _find_program(self, config: Config) -> str:
        return locate.program(config, "transformers", default=shutil.which("transformers"), remedy=_REMEDY)
