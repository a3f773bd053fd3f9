"""vLLM: ``vllm serve``, the dialect of its OpenAI server, its counters and its speculative setting."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.engines import docker, locate, top_logprobs
from pytest_specdec.engines.cli_args import filled, flags
from pytest_specdec.engines.protocol import HOST, Command, Dialect, Footprint, RoughRates, VerifySteps
from pytest_specdec.engines.top_logprobs import ListedToken
from pytest_specdec.errors import EngineError, RequestError
from pytest_specdec.model.pair import Draft, DraftKind, DraftSampling
from pytest_specdec.model.transcript import Position, ScoringRoute, SpecCounters

if TYPE_CHECKING:
    from pytest_specdec.config.config import Config
    from pytest_specdec.engines.protocol import ServerSetup
    from pytest_specdec.model.workload import JSON, Request

__all__ = ["FLAGS", "Vllm", "VllmDialect", "draft", "parse", "same_vocabulary", "speculative_setting", "vocabulary_of"]

_HEADS = ("eagle", "medusa", "mtp", "mlp_speculator", "dflash", "dspark")
_SHORT = {"spec-method": "method", "spec-model": "model", "spec-tokens": "num_speculative_tokens"}
FLAGS = ("speculative-config", "sc", *_SHORT)
"""Everything that :func:`setting` reads."""


def speculative_setting(args: Mapping[str, JSON]) -> Mapping[str, JSON]:
    """Return the speculative setting in ``args``, ``--speculative-config`` and its short flags together; empty without one."""
    named = {name.lstrip("-").replace("_", "-"): value for name, value in args.items()}
    whole = named.get("speculative-config", named.get("sc"))
    if isinstance(whole, str):
        whole = _opened(whole)
    found = dict(whole) if isinstance(whole, Mapping) else {}
    found.update({key: named[flag] for flag, key in _SHORT.items() if flag in named})
    return {name.replace("-", "_"): value for name, value in found.items()}


def _opened(text: str) -> JSON:
    try:
        return json.loads(text)  # type: ignore[no-any-return]
    except ValueError as error:
        what = "the speculative setting cannot be read"
        raise EngineError(
            what, where="speculative-config", found=f"{text[:60]!r}: {error}", expected="a mapping, or JSON that holds one"
        ) from None


def draft(args: Mapping[str, JSON]) -> Draft | None:
    """Return what the setting says about drafting; None without one."""
    found = speculative_setting(args)
    if not found:
        return None
    kind = _kind(str(found.get("method") or ""), str(found.get("model") or ""))
    longest = _integer(found.get("prompt_lookup_max"))
    return Draft(
        kind=kind,
        tokens=_integer(found.get("num_speculative_tokens")),
        sampling=DraftSampling.PROBABILISTIC if found.get("draft_sample_method") == "probabilistic" else DraftSampling.GREEDY,
        model=str(found["model"]) if kind is DraftKind.MODEL else None,
        ngram_min=_integer(found.get("prompt_lookup_min")) or longest,
        ngram_max=longest,
    )


def _kind(method: str, model: str) -> DraftKind:
    """Read the method, or, where it is left out, guess it from the model's name as vLLM does."""
    if "ngram" in (method or model):
        return DraftKind.NGRAM
    if any(head in (method or model).lower() for head in _HEADS):
        return DraftKind.HEAD
    if method in {"", "draft_model"} and model:
        return DraftKind.MODEL
    return DraftKind.UNKNOWN


def _integer(value: JSON) -> int:
    return int(value) if isinstance(value, int) or (isinstance(value, str) and value.isdecimal()) else 0


_SAMPLE = re.compile(r"^vllm:spec_decode_num_(drafts|draft_tokens|accepted_tokens|accepted_tokens_per_pos)_total(?:\{(.*)\})?\s+(\S+)")
_POSITION = re.compile(r'position="(\d{1,3})"')
_MOST = 2**53
"""Prometheus keeps counts as floats, which count up to there."""


def parse(text: str) -> SpecCounters | None:
    """Return vLLM's four ``spec_decode`` series, summed over engines and models; None where the page has none, or no counts in them."""
    try:
        return _parsed(text)
    except (ValueError, OverflowError):  # NaN, infinities, no number at all
        return None


def _parsed(text: str) -> SpecCounters | None:
    totals: dict[str, int] = {}
    positions: dict[int, int] = {}
    for name, labels, told in _samples(text):
        value = _count(told)
        totals[name] = totals.get(name, 0) + value
        if name == "accepted_tokens_per_pos" and (found := _POSITION.search(labels)):
            positions[int(found[1])] = positions.get(int(found[1]), 0) + value
    if not totals:
        return None
    return SpecCounters(
        drafts=totals.get("drafts", 0),
        draft_tokens=totals.get("draft_tokens", 0),
        accepted_tokens=totals.get("accepted_tokens", 0),
        accepted_per_position=tuple(positions.get(i, 0) for i in range(max(positions, default=-1) + 1)),
    )


def _samples(text: str) -> list[tuple[str, str, str]]:
    found = (_SAMPLE.match(line) for line in text.splitlines())
    return [(match[1], match[2] or "", match[3]) for match in found if match]


def _count(told: str) -> int:
    value = round(float(told))
    if not 0 <= value < _MOST:
        msg = f"{told} is no count"
        raise ValueError(msg)
    return value


_AS_IT_IS: Mapping[str, JSON] = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
"""So that log-probabilities after processing, which ``--logprobs-mode`` may ask for, are those before; a checkpoint's own settings too."""
_BY_ID = "token_id:"
_ROUNDING = 1e-3
"""Nats by which a log-probability in half precision may come out above 0."""


class VllmDialect:
    """``return_token_ids``, ``prompt_logprobs``, ``return_tokens_as_token_ids`` and ``metrics.speculative_decoding``."""

    health_path: str | None = "/health"
    version_path: str | None = "/version"
    counters_path: str | None = "/metrics"

    def added(self, request: Request, *, stream: bool) -> Mapping[str, JSON]:
        """Token ids always; usage when streaming, since the per-request metrics ride on the usage chunk."""
        fields: dict[str, JSON] = {"return_token_ids": True}
        if stream:
            asked = request.body.get("stream_options")
            fields["stream_options"] = {"include_usage": True, **(asked if isinstance(asked, Mapping) else {})}
        return fields

    def steps(self, reply: Mapping[str, JSON]) -> VerifySteps | None:
        """Read ``metrics.speculative_decoding`` of ``--per-request-spec-decode-metrics detailed`` (vLLM 0.30 and later)."""
        metrics = reply.get("metrics")
        told = metrics.get("speculative_decoding") if isinstance(metrics, Mapping) else None
        if not isinstance(told, Mapping):
            return None
        accepted, drafted = _integers(told.get("per_step_accepted")), _integers(told.get("per_step_drafted"))
        if accepted is None or drafted is None:
            return None
        return VerifySteps(accepted=accepted, drafted=drafted)

    def counters(self, text: str) -> SpecCounters | None:
        """Read the ``vllm:spec_decode_num_*`` series."""
        return parse(text)

    def scoring_body(self, prompt_token_ids: Sequence[int], token_ids: Sequence[int], top_tokens: int) -> Mapping[str, JSON]:
        """Ask for one token, which is thrown away: the distribution at a prompt's tokens comes with the prompt."""
        prompt = [*prompt_token_ids, *token_ids]
        return {"prompt": prompt, "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": top_tokens}

    def positions(self, reply: Mapping[str, JSON], token_ids: Sequence[int], top_tokens: int) -> tuple[Position, ...]:
        """Read the last ``len(token_ids)`` entries of ``choices[0].prompt_logprobs``."""
        told = _first(reply).get("prompt_logprobs")
        if not isinstance(told, Sequence) or len(told) < len(token_ids):
            what = "the server returned no prompt log-probabilities"
            raise RequestError(what, found=str(told)[:200], expected=f"{len(token_ids)} entries in choices[0].prompt_logprobs")
        return tuple(
            _position(entry, token, top_tokens) for entry, token in zip(told[len(told) - len(token_ids) :], token_ids, strict=True)
        )

    def continuation_body(self, prefix: Sequence[int], top_tokens: int) -> Mapping[str, JSON]:
        """Ask for one token at temperature 1, untruncated, with the most probable ones by id."""
        named: Mapping[str, JSON] = {"logprobs": top_tokens, "return_tokens_as_token_ids": True}
        return {"prompt": list(prefix), "max_tokens": 1, **_AS_IT_IS, **named}

    def position(self, reply: Mapping[str, JSON], token_id: int, top_tokens: int) -> Position:
        """Read the first token's list out of ``choices[0].logprobs``."""
        return top_logprobs.position(token_id, _listed(_first(reply).get("logprobs")), top_tokens)


def _first(reply: Mapping[str, JSON]) -> Mapping[str, JSON]:
    choices = reply.get("choices")
    first = choices[0] if isinstance(choices, Sequence) and choices else None
    return first if isinstance(first, Mapping) else {}


def _listed(told: JSON) -> list[ListedToken]:
    """Read the completions form, an object by name, or the chat form, a list of tokens."""
    if not isinstance(told, Mapping):
        return []
    top, content = told.get("top_logprobs"), told.get("content")
    if isinstance(top, Sequence) and top and isinstance(top[0], Mapping):
        return [_token(name, value) for name, value in top[0].items()]
    entry = content[0] if isinstance(content, Sequence) and content else None
    tokens = entry.get("top_logprobs") if isinstance(entry, Mapping) else None
    known = [token for token in tokens if isinstance(token, Mapping)] if isinstance(tokens, Sequence) else []
    return [_token(str(token.get("token")), token.get("logprob")) for token in known]


def _token(name: str, logprob: JSON) -> ListedToken:
    number = name.removeprefix(_BY_ID)
    is_id = name.startswith(_BY_ID) and number.isdecimal()
    return ListedToken(logprob=_logprob(logprob), token_id=int(number) if is_id else None, text="" if is_id else name)


def _position(entry: JSON, token_id: int, top_tokens: int) -> Position:
    distribution = {int(key): value for key, value in entry.items() if isinstance(value, Mapping)} if isinstance(entry, Mapping) else {}
    if token_id not in distribution:
        what = "a scored token is missing from the prompt log-probabilities"
        raise RequestError(what, found=str(entry)[:200], expected=f'an entry "{token_id}"')
    ranked = sorted(distribution.items(), key=lambda item: (-_logprob(item[1].get("logprob")), _rank(item[1].get("rank"))))[:top_tokens]
    return Position(
        token_id=token_id,
        logprob=_logprob(distribution[token_id].get("logprob")),
        top_ids=tuple(token for token, _ in ranked),
        top_logprobs=tuple(_logprob(value.get("logprob")) for _, value in ranked),
    )


def _logprob(value: JSON) -> float:
    """Return a log-probability, null as that of the impossible. Raises RequestError for what can be none."""
    if value is None:
        return -math.inf
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value <= _ROUNDING:
        what = "the server returned a log-probability that can be none"
        raise RequestError(what, found=str(value)[:200], expected="a number that is not above 0")
    return float(value)


def _rank(value: JSON) -> float:
    return float(value) if isinstance(value, (int, float)) else math.inf


def _integers(value: JSON) -> tuple[int, ...] | None:
    """Return a list of counts; None where there is no list. Raises ValueError when it holds anything else."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        return None
    counts = tuple(item for item in value if isinstance(item, int) and not isinstance(item, bool) and item >= 0)
    if len(counts) < len(value):
        msg = f"verify steps of {str(value)[:100]}, expected counts"
        raise ValueError(msg)
    return counts


METRICS = "per-request-spec-decode-metrics"
_METRICS_SINCE = (0, 30)
_SHARE = 0.92
"""vLLM's own ``gpu-memory-utilization``."""
_KV_GIB = "4"
"""vLLM's own ``VLLM_CPU_KVCACHE_SPACE``."""
_PROCESSES_GIB = 3.0
"""Of API server, engine core and worker without weights and KV space, roughly."""
_COPIES = 1.5
"""Weights in memory over weights on disk, roughly: a drafter and buffers included."""
_REMEDY = "pip install 'pytest-specdec[vllm]', or set engine.executable, engine.venv or engine.image"


class Vllm:
    """The adapter of vLLM's OpenAI server (facts: its ``arg_utils.py`` and ``cli_args.py``)."""

    kind = "vllm"
    pace = RoughRates(boot_s=60.0, tokens_per_s=100.0, scored_tokens_per_s=1500.0)
    dialect: Dialect = VllmDialect()
    scored_with = "set max-logprobs to 20 or more (-1 for any number)"

    def draft(self, args: Mapping[str, JSON]) -> Draft | None:
        """Read ``--speculative-config``."""
        return draft(args)

    def check(self, config: Config) -> None:
        """Look for ``vllm`` (or ``docker`` for an image), and for a model that is a path of this machine; others may come from the hub."""
        if config.engine.image:
            locate.there(shutil.which("docker"), f"engine.image: {config.engine.image}", "`docker` on PATH", "install docker")
        else:
            self._program(config)
            locate.model_there(config)
            self._same_vocabularies(config)

    def command(self, config: Config, setup: ServerSetup) -> Command:
        """Return ``vllm serve MODEL …`` or its container."""
        model = config.resolve(setup.model)
        args = self._args(config, setup)
        argv = [model, *flags(args)]
        env = {"VLLM_NO_USAGE_STATS": "1", **setup.env, **({"VLLM_API_KEY": setup.api_key} if setup.api_key else {})}
        if config.engine.image:
            folders = [name for name in (model, str(speculative_setting(args).get("model", ""))) if Path(name).is_absolute()]
            return docker.command(
                config.engine.image, argv, env=env, folders=folders, accelerator=True, stop_s=config.limits.stop_s, secrets=setup.secrets
            )
        return Command(argv=(self._program(config), "serve", *argv), env=env, secrets=setup.secrets)

    def vocabulary(self, config: Config) -> int:
        """Read ``vocab_size`` of a local checkpoint's config.json."""
        return vocabulary_of(Path(config.resolve(config.engine.model)))

    def footprint(self, config: Config, *, accelerated: bool) -> Footprint:
        """Return the largest ``gpu-memory-utilization`` of the arms; without an accelerator weights, KV space and three processes."""
        layers = [config.baseline.args, *(variant.args for variant in config.variants)]
        if accelerated:
            return Footprint(device_share=max(_share({**config.engine.args, **args}) for args in layers))
        weights = locate.checkpoint_gib(Path(config.resolve(config.engine.model)))
        kv_gib = config.engine.env.get("VLLM_CPU_KVCACHE_SPACE", _KV_GIB)
        known = weights is not None and str(kv_gib).isdecimal()
        return Footprint(memory_gib=_PROCESSES_GIB + float(kv_gib) + _COPIES * (weights or 0.0) if known else None)

    def route(self, config: Config) -> ScoringRoute:  # noqa: ARG002 - every version serves them
        """Return prompt log-probabilities."""
        return ScoringRoute.PROMPT_LOGPROBS

    def _same_vocabularies(self, config: Config) -> None:
        """Hold draft models against the target where both lie on this machine and the setting does not map one vocabulary to the other."""
        for variant in config.variants:
            args = filled(config, variant, os.environ)
            draft = self.draft(args)
            if draft and draft.model and not any("vocab" in name for name in speculative_setting(args)):
                where = f"variants.{variant.name}.args.speculative-config.model"
                same_vocabulary(Path(config.resolve(draft.model)), Path(config.resolve(config.engine.model)), where)

    def _args(self, config: Config, setup: ServerSetup) -> dict[str, JSON]:
        args: dict[str, JSON] = {"host": HOST, **_with_paths(config, setup.args), "port": setup.port}
        if setup.speculative and self._version(config) >= _METRICS_SINCE:
            args.setdefault(METRICS, "detailed")
        return args

    def _program(self, config: Config) -> str:
        return locate.program(config, "vllm", default=shutil.which("vllm"), remedy=_REMEDY)

    def _version(self, config: Config) -> tuple[int, ...]:
        """Return the version, or the newest when it cannot be known: an unknown flag is refused in clear words."""
        image = config.engine.image
        found = locate.numbers(image.rpartition(":")[2]) if image else locate.version(self._program(config), "vllm")
        return found or _METRICS_SINCE


def _with_paths(config: Config, args: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return ``args`` with a drafter that lies beside the config as a path that holds wherever the server is started."""
    setting = speculative_setting(args)
    model = setting.get("model")
    if not isinstance(model, str) or config.resolve(model) == model:
        return dict(args)
    rest = {name: value for name, value in args.items() if name.lstrip("-").replace("_", "-") not in FLAGS}
    return {**rest, "speculative-config": {**setting, "model": config.resolve(model)}}


def _share(args: Mapping[str, JSON]) -> float:
    """Return the part of the accelerator's memory that a server with ``args`` takes; more than a half where they do not say."""
    named = {name.lstrip("-").replace("_", "-"): value for name, value in args.items()}
    share = named.get("gpu-memory-utilization")
    return float(share) if isinstance(share, (int, float)) and 0 < share <= 1 else _SHARE


def same_vocabulary(draft: Path, target: Path, where: str) -> None:
    """Raise EngineError when both checkpoints are folders here and the draft model's tokens are not the target's."""
    theirs, ours = vocabulary_of(draft), vocabulary_of(target)
    if theirs and ours and theirs != ours:
        raise EngineError(
            what="the draft model has another vocabulary than the target",
            where=where,
            found=f"vocab_size {theirs:,} in {draft}",
            expected=f"vocab_size {ours:,}, as in {target}",
            remedy="name a draft model of the target's family, trained with its tokenizer",
        )


def vocabulary_of(checkpoint: Path) -> int:
    """Return ``vocab_size`` of a checkpoint folder, that of its text model where it has several; 0 where unknown."""
    try:
        described = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
        return int(described.get("vocab_size") or described.get("text_config", {}).get("vocab_size") or 0)
    except (OSError, ValueError):
        return 0
