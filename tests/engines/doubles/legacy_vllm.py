"""A double of vLLM 0.6 and 0.7 with its first engine (V0): its command line and HTTP, with the reference engine's model underneath.

It shows how we read vLLM, nothing about vLLM itself. Every behaviour names where it was read: a file of the wheels vllm-0.6.3, 0.6.6 and
0.7.3, below ``vllm``. Drafts of a model are drawn from its distribution, as there (``spec_decode/multi_step_worker.py``). What the model
underneath has not (typical acceptance, min_p, guided_regex) is refused. Environment variables of its own:

    VLLM_DOUBLE_RELEASE     the release it poses as (0.7.3); releases before 0.6.5 refuse unknown fields
    VLLM_DOUBLE_COLLECT_S   seconds between two readings of the counters (5, as spec_decode/metrics.py has it)
    SPECDEC_FAULT           a fault of the reference engine, planted where it speculates
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route as At

from pytest_specdec.errors import EngineError
from pytest_specdec.model.workload import Route
from specdec_reference import openai_request
from specdec_reference.build import build_engine
from specdec_reference.cli import ServerSettings, Speculation
from specdec_reference.engine import ReferenceEngine
from specdec_reference.metrics import Counters
from specdec_reference.openai_request import ServerLimits
from specdec_reference.openai_response import ResponseOptions, Stream, whole
from specdec_reference.request_fields import Refusal
from specdec_reference.server import _hand_to_event_loop

RELEASE = os.environ.get("VLLM_DOUBLE_RELEASE", "0.7.3")
NUMBERS = tuple(int(part) for part in RELEASE.split(".")[:3])
COLLECT_S = float(os.environ.get("VLLM_DOUBLE_COLLECT_S", "5"))
LOG_S = COLLECT_S  # engine/llm_engine.py, _LOCAL_LOGGING_INTERVAL_SEC, is the same 5 seconds
FORCED_LOG_S = 2 * COLLECT_S  # entrypoints/openai/api_server.py, _force_log: every 10 seconds
LEAST_LOGPROB = -9999.0  # entrypoints/openai/serving_completion.py and serving_chat.py, in the place of -inf

# entrypoints/openai/protocol.py: CompletionRequest and ChatCompletionRequest. No release of them knows return_token_ids.
SHARED = {
    *("model", "best_of", "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "n", "presence_penalty", "seed", "stop", "stream"),
    *("stream_options", "temperature", "top_p", "user", "use_beam_search", "top_k", "min_p", "repetition_penalty", "length_penalty"),
    *("stop_token_ids", "include_stop_str_in_output", "ignore_eos", "min_tokens", "skip_special_tokens", "spaces_between_special_tokens"),
    *("truncate_prompt_tokens", "prompt_logprobs", "add_special_tokens", "response_format", "guided_json", "guided_regex"),
    *("guided_choice", "guided_grammar", "guided_decoding_backend", "guided_whitespace_pattern", "priority", "echo"),
}
FIELDS = {
    Route.COMPLETIONS: SHARED | {"prompt", "suffix", "allowed_token_ids"},
    Route.CHAT: SHARED
    | {"messages", "top_logprobs", "tools", "tool_choice", "parallel_tool_calls", "add_generation_prompt", "continue_final_message"}
    | {"documents", "chat_template", "chat_template_kwargs"}
    | ({"max_completion_tokens", "request_id"} if NUMBERS >= (0, 6, 5) else set()),
}
REFUSES_UNKNOWN = NUMBERS < (0, 6, 5)  # OpenAIBaseModel: extra="forbid" in 0.6.3, "allow" with a warning in 0.6.6
CHAT_TEMPERATURE = 0.7 if NUMBERS < (0, 6, 5) else 1.0  # ChatCompletionRequest.temperature of 0.6.3; _DEFAULT_SAMPLING_PARAMS of 0.7.3
LACKING = ("guided_regex", "guided_choice", "guided_grammar", "use_beam_search", "suffix", "echo")
TOKENIZED = {"model", "prompt", "messages", "add_special_tokens", "add_generation_prompt", "continue_final_message"}
TOKENIZED |= {"chat_template", "chat_template_kwargs"} if NUMBERS >= (0, 6, 5) else set()


def boolean(text: str) -> bool:
    """utils.py, StoreBoolean: a flag that takes true or false as its value."""
    if text.lower() not in {"true", "false"}:
        msg = f"Invalid boolean value: {text}. Expected 'true' or 'false'."
        raise ValueError(msg)
    return text.lower() == "true"


def parser() -> argparse.ArgumentParser:
    """Return a parser of those flags of engine/arg_utils.py and entrypoints/openai/cli_args.py that a model this small can follow."""
    parser = argparse.ArgumentParser(prog="vllm serve")
    add = parser.add_argument
    add("model_tag")
    add("--host")
    add("--served-model-name")
    add("--api-key")
    add("--spec-decoding-acceptance-method", default="rejection_sampler", choices=["rejection_sampler", "typical_acceptance_sampler"])
    add("--speculative-model")
    add("--speculative-draft-tensor-parallel-size", "-spec-draft-tp", type=int)
    add("--disable-logprobs-during-spec-decoding", type=boolean)
    add("--dtype", default="auto", choices=["auto", "half", "float16", "bfloat16", "float", "float32"])
    add("--gpu-memory-utilization", type=float, default=0.9)
    for name, value in (("port", 8000), ("max-num-seqs", 256), ("max-model-len", 1024), ("max-logprobs", 20), ("seed", 0)):
        add(f"--{name}", type=int, default=value)
    for name in ("num-speculative-tokens", "ngram-prompt-lookup-max", "ngram-prompt-lookup-min", "speculative-disable-by-batch-size"):
        add(f"--{name}", type=int)
    for switch in ("return-tokens-as-token-ids", "disable-log-stats", "disable-log-requests", "enforce-eager"):
        add(f"--{switch}", action="store_true")
    add("--tensor-parallel-size", "-tp", type=int, default=1)
    return parser


def arguments(words: list[str]) -> argparse.Namespace:
    """utils.py, FlexibleArgumentParser: underscores in flags are dashes; ``--speculative-config`` is unknown, which ends the start."""
    return parser().parse_args(["--" + word[2:].replace("_", "-") if word.startswith("--") else word for word in words])


def speculation(args: argparse.Namespace) -> Speculation | None:
    """config.py, SpeculativeConfig.maybe_create_spec_config. Raises ValueError as it does."""
    tokens, longest, shortest = args.num_speculative_tokens, args.ngram_prompt_lookup_max, args.ngram_prompt_lookup_min
    if args.speculative_model is None:
        if tokens is not None:
            msg = "num_speculative_tokens was provided without speculative_model."
            raise ValueError(msg)
        return None
    if args.spec_decoding_acceptance_method != "rejection_sampler":
        msg = "the double's model has no typical acceptance"
        raise ValueError(msg)
    is_ngram = args.speculative_model == "[ngram]"
    if is_ngram and (longest is None or longest < 1):
        msg = f"ngram_prompt_lookup_max={longest} must be > 0"
        raise ValueError(msg)
    if tokens is None:
        msg = "num_speculative_tokens must be provided with speculative_model unless the draft model config contains an n_predict parameter"
        raise ValueError(msg)
    if is_ngram:
        return Speculation(method="ngram", tokens=tokens, n_min=shortest or 1, n_max=longest)
    return Speculation(method="draft_model", tokens=tokens, model=args.speculative_model, probabilistic=True)


def settings(args: argparse.Namespace) -> ServerSettings:
    """Return the arguments as the reference engine's settings."""
    speculative = speculation(args)
    return ServerSettings(
        model=args.model_tag,
        port=args.port,
        served_model_name=args.served_model_name or args.model_tag,
        max_num_seqs=min(args.max_num_seqs, 64),
        max_model_len=args.max_model_len,
        speculation=speculative,
        max_logprobs=args.max_logprobs,
        seed=args.seed,
        fault=os.environ.get("SPECDEC_FAULT", "") if speculative else "",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """spec_decode/metrics.py, SpecDecodeWorkerMetrics: totals since the start, as they were when they were copied from the device."""

    drafts: int
    accepted: int
    k: int

    @property
    def drafted(self) -> int:
        return self.drafts * self.k  # layers/spec_decode_base_sampler.py: batch size times k, however long the drafts are

    @property
    def emitted(self) -> int:
        return self.accepted + self.drafts

    @property
    def line(self) -> str:
        """engine/metrics.py, _format_spec_decode_metrics_str."""
        rate, efficiency = self.accepted / self.drafted, self.emitted / (self.drafts * (self.k + 1))
        return (
            f"Speculative metrics: Draft acceptance rate: {rate:.3f}, System efficiency: {efficiency:.3f}, "
            f"Number of speculative tokens: {self.k}, Number of accepted tokens: {self.accepted}, "
            f"Number of draft tokens: {self.drafted}, Number of emitted tokens: {self.emitted}."
        )


class LateCounters(Counters):
    """Totals that a step copies when the last copy is old enough, the next step reads, and the statistics write down later still.

    ``spec_decode/metrics.py``, AsyncMetricsCollector, and ``engine/metrics.py``, LoggingStatLogger and PrometheusStatLogger. A server at
    rest copies nothing. The model underneath does not count drafts that would have been accepted after a rejected one, as V0 does.
    """

    def __init__(self, k: int) -> None:
        super().__init__(draft_tokens_a_step=k)
        self.collected_s = self.logged_s = time.monotonic()
        self.in_flight: Snapshot | None = None
        self.unlogged: Snapshot | None = None
        self.totals = {"accepted": 0, "draft": 0, "emitted": 0}
        self.gauges: dict[str, float] = {}

    def count_step(self, drafted: int, accepted: int) -> None:
        super().count_step(drafted, accepted)
        if not self.drafts:
            return
        now_s = time.monotonic()
        if self.in_flight is not None:
            self.unlogged, self.in_flight, self.collected_s = self.in_flight, None, now_s
        elif now_s - self.collected_s >= COLLECT_S:
            self.in_flight = Snapshot(drafts=self.drafts, accepted=self.accepted_tokens, k=self.draft_tokens_a_step)
        if now_s - self.logged_s > LOG_S:
            self.log()

    def log(self) -> None:
        """Write what was collected last, once, and add its totals anew to the counters of Prometheus."""
        snapshot, self.unlogged, self.logged_s = self.unlogged, None, time.monotonic()
        if snapshot is None:
            return
        print(time.strftime("INFO %m-%d %H:%M:%S metrics.py:477]"), snapshot.line, flush=True)  # noqa: T201 - vLLM logs to stdout
        for name, value in (("accepted", snapshot.accepted), ("draft", snapshot.drafted), ("emitted", snapshot.emitted)):
            self.totals[name] += value
        self.gauges = {
            "draft_acceptance_rate": snapshot.accepted / snapshot.drafted,
            "efficiency": snapshot.emitted / (snapshot.drafts * (snapshot.k + 1)),
        }

    def prometheus(self, model_name: str) -> str:
        """engine/metrics.py, Metrics: no drafts, nothing by position; the series are there without speculation too, at no value."""
        label = f'model_name="{model_name}"'
        lines = [f"vllm:generation_tokens_total{{{label}}} {float(self.generation_tokens)}"]
        lines += [f"vllm:prompt_tokens_total{{{label}}} {float(self.prompt_tokens)}", f"vllm:num_requests_running{{{label}}} 0.0"]
        lines += [f"vllm:spec_decode_num_{name}_tokens_total{{{label}}} {float(value)}" for name, value in self.totals.items() if value]
        lines += [f"vllm:spec_decode_{name}{{{label}}} {value}" for name, value in self.gauges.items()]
        return "\n".join(lines) + "\n"


def failed(status: int, message: str, kind: str = "BadRequestError") -> Response:
    """entrypoints/openai/protocol.py, ErrorResponse: flat, without an ``error`` around it."""
    return JSONResponse({"object": "error", "message": message, "type": kind, "param": None, "code": status}, status_code=status)


def known(body: Any, fields: set[str], required: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields that the release knows. Raises Refusal for one that is missing, or unknown to a release that forbids those."""
    if not isinstance(body, dict):
        raise Refusal(message="[{'type': 'model_attributes_type', 'msg': 'Input should be a valid dictionary'}]")
    for name in required:
        if name not in body:
            raise Refusal(message=f"[{{'type': 'missing', 'loc': ('body', '{name}'), 'msg': 'Field required'}}]")
    unknown = sorted(body.keys() - fields)
    if unknown and REFUSES_UNKNOWN:
        raise Refusal(message=f"[{{'type': 'extra_forbidden', 'loc': ('body', '{unknown[0]}'), 'msg': 'Extra inputs are not permitted'}}]")
    return {name: value for name, value in body.items() if name in fields}


def _refuse_ids(prompt: Any) -> None:
    if not isinstance(prompt, str):
        raise Refusal(message="[{'type': 'string_type', 'loc': ('body', 'prompt'), 'msg': 'Input should be a valid string'}]")


def translated(route: Route, body: dict[str, Any], *, named: bool) -> dict[str, Any]:
    """Return a body of known fields as the model underneath takes it. Raises Refusal for what it lacks and what validators refuse."""
    if body.get("stream_options") and not body.get("stream"):
        raise Refusal(message="Stream options can only be defined when `stream=True`.")
    for name in LACKING:
        if body.get(name):
            raise Refusal(message=f"the double's model has no {name}")
    guided = {"guided_decoding_backend", "guided_whitespace_pattern", "guided_json", *LACKING, "priority", "documents", "request_id"}
    asked = {name: value for name, value in body.items() if name not in guided | {"continue_final_message", "chat_template"}}
    wanted = body.get("response_format") or {}
    if route is Route.COMPLETIONS and wanted.get("type") == "json_schema":
        del asked["response_format"]  # to_sampling_params of CompletionRequest looks at json_object alone
    if body.get("guided_json"):
        schema = body["guided_json"]
        schema = json.loads(schema) if isinstance(schema, str) else schema
        asked["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    if route is Route.CHAT and body.get("temperature") is None:
        asked["temperature"] = CHAT_TEMPERATURE
    return {**asked, "return_tokens_as_token_ids": named}


class Served:
    """The routes of entrypoints/openai/api_server.py that a client of ours may want."""

    def __init__(self, engine: ReferenceEngine, args: argparse.Namespace) -> None:
        self.engine, self.args = engine, args
        counters = LateCounters(engine.counters.draft_tokens_a_step)
        engine.counters = engine.batch._counters = counters
        self.counters = counters
        speculates = engine.settings.speculation is not None
        # config.py: None is True; without speculation the setting is not looked at.
        self.placeholders = speculates and args.disable_logprobs_during_spec_decoding is not False
        self.limits = ServerLimits(
            model=engine.settings.name,
            max_model_len=engine.settings.max_model_len,
            max_logprobs=engine.settings.max_logprobs,
            prompt_logprobs=True,
            token_prompts=True,
            grammar=engine.compile,
        )

    def application(self) -> Starlette:
        @asynccontextmanager
        async def lifespan(_app):
            loop = asyncio.get_running_loop()
            self.engine.start(lambda deltas: _hand_to_event_loop(loop, deltas))
            forced = asyncio.create_task(self.forced_log())
            yield
            forced.cancel()
            await asyncio.to_thread(self.engine.stop)

        return Starlette(
            routes=[
                At("/health", self.health),
                At("/version", self.version),
                At("/metrics", self.metrics),
                At("/v1/models", self.models),
                At("/tokenize", self.tokenize, methods=["POST"]),
                At("/v1/completions", self.completions, methods=["POST"]),
                At("/v1/chat/completions", self.chat, methods=["POST"]),
            ],
            lifespan=lifespan,
        )

    async def forced_log(self) -> None:
        while not self.args.disable_log_stats:
            await asyncio.sleep(FORCED_LOG_S)
            self.counters.log()

    async def health(self, _request) -> Response:
        return Response(status_code=200 if self.engine.failure is None else 500)

    async def version(self, _request) -> Response:
        return JSONResponse({"version": RELEASE})

    async def metrics(self, _request) -> Response:
        return PlainTextResponse(self.counters.prometheus(self.limits.model))

    async def models(self, _request) -> Response:
        card = {"id": self.limits.model, "object": "model", "owned_by": "vllm", "root": self.args.model_tag, "parent": None}
        return JSONResponse({"object": "list", "data": [{**card, "max_model_len": self.limits.max_model_len}]})

    async def tokenize(self, incoming) -> Response:
        """protocol.py, TokenizeCompletionRequest and TokenizeChatRequest: the model is required, and a prompt is a text."""
        try:
            body = await incoming.json()
            fields = known(body, TOKENIZED, ("model", "messages") if "messages" in body else ("model", "prompt"))
            _refuse_ids(fields.get("prompt", ""))
            ids = openai_request.prompt_of(fields, self.engine.tokenizer, self.limits)
        except Refusal as refusal:
            return failed(refusal.status, refusal.message)
        return JSONResponse({"count": len(ids), "max_model_len": self.limits.max_model_len, "tokens": ids})

    async def completions(self, incoming) -> Response:
        return await self.answer(Route.COMPLETIONS, incoming)

    async def chat(self, incoming) -> Response:
        return await self.answer(Route.CHAT, incoming)

    async def answer(self, route: Route, incoming) -> Response:
        engine = self.engine
        try:
            body = known(await incoming.json(), FIELDS[route], ("model", "prompt" if route is Route.COMPLETIONS else "messages"))
            asked = translated(route, body, named=self.args.return_tokens_as_token_ids)
            request = openai_request.parse(route, asked, engine.tokenizer, self.limits)
        except Refusal as refusal:
            return failed(refusal.status, refusal.message, "NotFoundError" if refusal.status == 404 else "BadRequestError")
        except ValueError as error:
            return failed(400, str(error))
        if engine.failure is not None:
            return failed(500, "the engine is dead", "InternalServerError")
        options = ResponseOptions(
            route=route,
            model=self.limits.model,
            request=replace(request, return_token_ids=False),
            tokenizer=engine.tokenizer,
            metrics="none",
            draft_tokens=0,
        )
        if request.stream:
            return Rewritten(Stream(options, engine), self.legacy)
        response = await whole(options, engine, incoming.receive)
        reply = json.loads(bytes(response.body))
        if "error" in reply:
            return failed(response.status_code, reply["error"]["message"], "InternalServerError")
        return JSONResponse(self.legacy(reply))

    def legacy(self, reply: dict[str, Any]) -> dict[str, Any]:
        """Return a reply or a chunk without what came later, with log-probabilities as this server gives them."""
        for choice in reply.get("choices", ()):
            choice.pop("prompt_token_ids", None)
            self._placed(choice)
            _of_answer(choice.get("logprobs"), placeholders=self.placeholders)
        self._placed(reply)
        return reply

    def _placed(self, holder: dict[str, Any]) -> None:
        """spec_decode_worker.py, _serialize_sampler_output_no_logprobs: of a prompt's token itself alone, 0.0 and of rank -1."""
        if self.placeholders and holder.get("prompt_logprobs"):
            # The token of the prompt is always listed first.
            own = [next(iter(listed.items())) if listed else None for listed in holder["prompt_logprobs"]]
            holder["prompt_logprobs"] = [{pair[0]: {**pair[1], "logprob": 0.0, "rank": -1}} if pair else None for pair in own]


def _of_answer(logprobs: dict[str, Any] | None, *, placeholders: bool) -> None:
    """spec_decode_worker.py, _create_dummy_logprob_lists, for an answer's tokens; -9999 stands for -inf elsewhere."""
    if logprobs is None:
        return
    if "content" in logprobs:
        for token in logprobs["content"]:
            if placeholders:
                token["top_logprobs"] = [dict(token, logprob=0.0)] if token["top_logprobs"] else []
                token["top_logprobs"] = [{name: one[name] for name in ("token", "logprob", "bytes")} for one in token["top_logprobs"]]
            token["logprob"] = 0.0 if placeholders else max(token["logprob"], LEAST_LOGPROB)
            for one in token["top_logprobs"]:
                one["logprob"] = max(one["logprob"], LEAST_LOGPROB)
        return
    if placeholders:
        logprobs["token_logprobs"] = [0.0] * len(logprobs["tokens"])
        logprobs["top_logprobs"] = [{token: 0.0} for token in logprobs["tokens"]]
    logprobs["token_logprobs"] = [max(value, LEAST_LOGPROB) for value in logprobs["token_logprobs"]]
    logprobs["top_logprobs"] = [{name: max(v, LEAST_LOGPROB) for name, v in listed.items()} for listed in logprobs["top_logprobs"]]


class Rewritten(Response):
    """A stream whose chunks are rewritten on their way out."""

    def __init__(self, inner: Stream, rewrite) -> None:
        super().__init__()
        self.inner, self.rewrite = inner, rewrite

    async def __call__(self, scope, receive, send):
        async def rewriting(message):
            if message["type"] == "http.response.body" and message["body"].startswith(b"data: {"):
                chunk = self.rewrite(json.loads(message["body"][len(b"data: ") :]))
                message = {**message, "body": b"data: " + json.dumps(chunk).encode() + b"\n\n"}
            await send(message)

        await self.inner(scope, receive, rewriting)


def main(words: list[str]) -> int:
    if words[:1] == ["--version"]:
        print(RELEASE)  # noqa: T201 - a command talks to its user
        return 0
    args = arguments(words[1:])  # after `serve`
    try:
        engine = build_engine(settings(args))
    except EngineError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command talks to its user
        return 1
    sys.setswitchinterval(0.0005)  # or else a chunk waits for a whole step of the engine's thread
    app = Served(engine, args).application()
    config = uvicorn.Config(app, host="127.0.0.1", port=args.port, log_level="warning", access_log=False, timeout_graceful_shutdown=1)
    uvicorn.Server(config).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
