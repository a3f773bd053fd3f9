"""mlx-lm's OpenAI server: ``mlx_lm.server``, with a draft model. It takes text alone, so that a further server has to score its tokens.

Read from and run on 0.32.2 on Linux: a completion's ``logprobs`` is true or false, ids come with log-probabilities, streams have neither,
and where ``top_logprobs`` are asked for they take the place of the emitted token's own id.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.config.rules import DraftingRule, EngineRules
from pytest_specdec.engines import checkpoint, json_reply, locate
from pytest_specdec.engines.arguments import flags
from pytest_specdec.engines.plain_dialect import PlainDialect, with_usage
from pytest_specdec.engines.protocol import HOST, PROTOCOL_VERSION, Command, Dialect, EngineProgram, Footprint, RoughRates
from pytest_specdec.errors import EngineError
from pytest_specdec.model.pair import Draft, DraftKind, DraftSampling
from pytest_specdec.model.penalty_window import PenaltyWindow

if TYPE_CHECKING:
    from pytest_specdec.config.config import Config
    from pytest_specdec.engines.protocol import Get, ServerSetup
    from pytest_specdec.model.transcript import ScoringRoute
    from pytest_specdec.model.workload import JSON, Request

_DRAFT_MODEL, _DRAFT_TOKENS, _ADAPTER = "draft-model", "num-draft-tokens", "adapter-path"
_DEFAULT_TOKENS = 3
"""mlx-lm's own ``--num-draft-tokens``."""
_PROCESS_GIB = 0.5
_SERVED = "default_model"
"""The server's name for the models that it was started with: any other name is looked up on the hub."""
_NEUTRAL: Mapping[str, JSON] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
"""Sent where a request leaves them out: the server would fill in the values of its command line, by default temperature 0."""
_ALL_TOKENS = 1_000_000
"""Tokens that penalties look back on: mlx-lm's own number is 20."""
_REMEDY = "pip install mlx-lm into engine.venv (on Linux with 'mlx[cpu]'), or set engine.executable"


class MlxLmDialect(PlainDialect):
    """Ids by way of ``logprobs``, and neutral values as its validation takes them."""

    health_path: str | None = "/health"
    penalty_window = PenaltyWindow(prompt=True, repetition_prompt=True)
    """The processors of all three penalties get prompt and answer (``GenerationBatch`` and ``generate_step`` of generate.py). With a draft
    model they get, of the prompt, its last token alone (``speculative_generate_step``).
    """

    def sent(self, request: Request, *, stream: bool) -> Mapping[str, JSON]:
        """Return the body with neutral parameters, asking for log-probabilities.

        Token ids come with the log-probabilities; ``top_logprobs`` is removed, since it would replace the emitted token's id. Parameters
        that the request leaves out get neutral values, which leave the distribution as it is, unless it has ``server_defaults``. Penalties
        count all tokens, not only the last 20. The model is called by the server's own name: any other is looked up on the hub.
        """
        body = {name: value for name, value in request.body.items() if name != "top_logprobs"}
        top_k = body.get("top_k")  # elsewhere -1 turns it off, here 0 does
        fields: dict[str, JSON] = {"model": _SERVED, "logprobs": True, **({"top_k": 0} if top_k == -1 else {})}
        for name in ("presence", "frequency", "repetition"):
            if body.get(f"{name}_penalty"):
                fields[f"{name}_context_size"] = _ALL_TOKENS
        return {**({} if request.server_defaults else _NEUTRAL), **body, **fields, **(with_usage(request) if stream else {})}

    def reply(self, data: Mapping[str, JSON]) -> Mapping[str, JSON]:
        """Return a reply with the token ids of its log-probabilities.

        The ids are copied from ``logprobs.content`` to ``token_ids`` of each choice, where the client reads the ids of every
        engine. A choice without log-probabilities gets an empty list.
        """
        choices = data.get("choices")
        if not isinstance(choices, Sequence):
            return data
        return {
            **data,
            "choices": [{**choice, "token_ids": _content_ids(choice)} if isinstance(choice, Mapping) else choice for choice in choices],
        }


def _content_ids(choice: Mapping[str, JSON]) -> list[JSON]:
    """Return the token ids in a choice's ``logprobs.content``."""
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    return [entry.get("id") for entry in content if isinstance(entry, Mapping)] if isinstance(content, Sequence) else []


_CARD = {"id", "object", "created"}
"""Keys of a model in the list."""


def _lists_models_with_keys(text: str | None, keys: set[str]) -> bool:
    """Return True if every listed model has exactly these keys.

    ``text`` is the reply of ``/v1/models``. Returns False for a list without models, and for anything but a list.
    """
    document = json_reply.value(text)
    models = document.get("data") if isinstance(document, Mapping) else None
    return isinstance(models, list) and bool(models) and all(isinstance(model, Mapping) and model.keys() == keys for model in models)


class MlxLm:
    """One engine of the registry (flags: ``mlx_lm.server --help``)."""

    kind = "mlx_lm"
    protocol_version = PROTOCOL_VERSION
    pace = RoughRates(boot_s=3.0, tokens_per_s=100.0, scored_tokens_per_s=500.0)
    rules = EngineRules(
        prefixes=(_DRAFT_MODEL, _DRAFT_TOKENS),
        method=("draft-method",),
        drafting=DraftingRule(methods=frozenset(), tokens=((_DRAFT_TOKENS,),)),
    )
    """There is one method and no setting that names it: ``draft-method`` is in no config."""
    scored_with = "name a `scorer:` of the same weights: mlx-lm takes no token ids"

    def recognises(self, get: Get) -> bool:
        """Return True if the server answers as mlx-lm's does.

        Its models have an id and a date and no owner, unlike those of any other engine. ``/health`` gives its
        status, and there is no ``/version``. The server names itself nowhere; read in ``server.py`` of
        0.32.2.
        """
        return (
            _lists_models_with_keys(get("/v1/models"), _CARD)
            and json_reply.value(get("/health")) == {"status": "ok"}
            and get("/version") is None
        )

    def dialect(self, config: Config, setup: ServerSetup) -> Dialect:  # noqa: ARG002 - one for every release
        """Return the dialect, the same for every release."""
        return MlxLmDialect()

    def draft(self, args: Mapping[str, JSON]) -> Draft | None:
        """Return the draft settings in ``args``; None without a draft model.

        The settings are ``draft-model`` and ``num-draft-tokens``, 3 by default. mlx-lm draws drafts with the request's own
        sampling parameters, so that their sampling is probabilistic.
        """
        model, tokens = args.get(_DRAFT_MODEL), args.get(_DRAFT_TOKENS, _DEFAULT_TOKENS)
        if not isinstance(model, str):
            return None
        count = tokens if isinstance(tokens, int) else 0
        return Draft(kind=DraftKind.MODEL, tokens=count, sampling=DraftSampling.PROBABILISTIC, model=model)

    def models(self, model: str, args: Mapping[str, JSON]) -> tuple[str, ...]:
        """Return the names of ``model`` and of the draft model.

        Either may come from the hub.
        """
        drafter = args.get(_DRAFT_MODEL)
        return (model, drafter) if isinstance(drafter, str) else (model,)

    def check(self, config: Config) -> None:
        """Raise EngineError if the engine cannot run this config.

        It refuses a container image, looks for ``mlx_lm.server`` and for a model given as a path, and compares the size of
        each draft model's vocabulary with the target's.
        """
        if config.engine.image:
            what = "mlx-lm runs in no container here"
            raise EngineError(what, where="engine.image", found=config.engine.image, remedy="set engine.venv instead")
        self._find_program(config)
        checkpoint.require_model(config)
        target = Path(config.resolve(config.engine.model))
        for variant in config.variants:
            model = variant.args.get(_DRAFT_MODEL)
            if isinstance(model, str):
                checkpoint.require_same_vocabulary(Path(config.resolve(model)), target, f"variants.{variant.name}.args.{_DRAFT_MODEL}")

    def command(self, config: Config, setup: ServerSetup) -> Command:
        """Return ``mlx_lm.server --model MODEL …``; every path absolute."""
        args = {"model": config.resolve(setup.model), "host": HOST, **setup.args, "port": setup.port}
        args |= {name: config.resolve(value) for name in (_DRAFT_MODEL, _ADAPTER) if isinstance(value := args.get(name), str)}
        return Command(argv=(self._find_program(config), *flags(args)), env=setup.env, secrets=setup.secrets)

    def program(self, argv: Sequence[str]) -> EngineProgram:
        """Return the command lines that print the package's version and the server's flags."""
        version = "from importlib.metadata import version; print(version('mlx-lm'))"
        return EngineProgram(version=(str(Path(argv[0]).parent / "python"), "-c", version), help=tuple(argv[:1]), abbreviates=True)

    def vocabulary(self, config: Config) -> int:
        """Return ``vocab_size`` of a local checkpoint's config.json; 0 without one."""
        return checkpoint.vocabulary(Path(config.resolve(config.engine.model)))

    def footprint(self, config: Config, *, accelerated: bool) -> Footprint:  # noqa: ARG002 - its accelerator is the machine's memory
        """Return the memory of the interpreter and the weights.

        It is unknown (None) if the weights are not on this machine.
        """
        weights = checkpoint.gib(Path(config.resolve(config.engine.model)))
        return Footprint(memory_gib=None if weights is None else _PROCESS_GIB + weights)

    def route(self, config: Config) -> ScoringRoute | None:  # noqa: ARG002 - it has none
        """Return None: mlx-lm cannot score tokens."""
        return None

    def single_precision(self, config: Config) -> bool:
        """Return True if the checkpoint is float32 and not quantised.

        mlx-lm computes in the checkpoint's format.
        """
        model = Path(config.resolve(config.engine.model))
        document = checkpoint.read_config(model)
        return not checkpoint.is_quantised(model) and (document.get("dtype") or document.get("torch_dtype")) == "float32"

    def _find_program(self, config: Config) -> str:
        return locate.program(config, "mlx_lm.server", default=shutil.which("mlx_lm.server"), remedy=_REMEDY)
