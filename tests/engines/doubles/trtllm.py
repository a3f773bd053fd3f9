"""A double of trtllm-serve: its command line, options file and HTTP as documented, with the reference engine's model underneath.

It shows how we read TensorRT-LLM, nothing about TensorRT-LLM itself. Every behaviour names where it was read: a file of the repository
NVIDIA/TensorRT-LLM with the beginning of a commit, or a pull request. Environment variables of its own:

    TRTLLM_DOUBLE_RELEASE           the release it poses as (1.3.0); 1.2 and older report log-probabilities on the chat route only
    TRTLLM_DOUBLE_LISTENS_EARLY     accept connections while loading, and answer none of them
    TRTLLM_DOUBLE_SIGINT_ON         a text: a request that holds it ends the server
    TRTLLM_DOUBLE_REFUSES_LOGPROBS  refuse log-probabilities where it speculates, as releases do after August 2026
    TRTLLM_DOUBLE_GENERATION_CONFIG know the option generation_config, as releases do after August 2026 (TensorRT-LLM#17213)
    SPECDEC_FAULT                   a fault of the reference engine, planted where it speculates
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml

RELEASE = os.environ.get("TRTLLM_DOUBLE_RELEASE", "1.3.0")
NUMBERS = tuple(int(part) for part in RELEASE.split(".")[:2])
SIGINT_ON = os.environ.get("TRTLLM_DOUBLE_SIGINT_ON", "")
REFUSES_LOGPROBS = bool(os.environ.get("TRTLLM_DOUBLE_REFUSES_LOGPROBS"))
KNOWS_GENERATION_CONFIG = bool(os.environ.get("TRTLLM_DOUBLE_GENERATION_CONFIG"))
DEFAULT_ROWS = 1000  # pyexecutor keeps so many iterations where iter_stats_max_iterations is null

# llmapi/llm_args.py@0004396 and 1090804222 of the file index: StrictBaseModel, so that an unknown key ends the start.
OPTIONS = {
    *("enable_iter_perf_stats", "iter_stats_max_iterations", "enable_iter_req_stats", "return_perf_metrics", "perf_metrics_max_requests"),
    *("print_iter_log", "disable_overlap_scheduler", "enable_autotuner", "enable_attention_dp", "cuda_graph_config", "moe_config"),
    *("kv_cache_config", "speculative_config", "guided_decoding_backend", "dtype", "stream_interval", "attn_backend", "scheduler_config"),
    *("max_batch_size", "max_seq_len", "max_num_tokens", "trust_remote_code", "num_postprocess_workers", "enable_chunked_prefill"),
}
OPTIONS |= {"generation_config"} if KNOWS_GENERATION_CONFIG else set()
# docs/source/features/sampling.md@05ce57b: under `auto`, fields of generation_config.json stand in for those that a request leaves out.
GENERATION = ("temperature", "top_p", "top_k")
KV_CACHE = {"enable_block_reuse", "free_gpu_memory_fraction", "max_tokens", "max_gpu_total_bytes", "dtype", "tokens_per_block"}
# docs/source/features/speculative-decoding.md@04c8822: keys by decoding_type; speculative_model_dir is the older name of speculative_model.
DECODING = {
    *("decoding_type", "max_draft_len", "max_concurrency", "acceptance_window", "acceptance_length_threshold", "allow_advanced_sampling"),
}
DRAFT_TARGET = DECODING | {"speculative_model_dir"} | ({"speculative_model"} if NUMBERS >= (1, 2) else set())
NGRAM = DECODING | {"max_matching_ngram_size", "is_keep_all", "is_use_oldest", "is_public_pool"}
METHODS = {"DraftTarget": DRAFT_TARGET, "Draft_Target": DRAFT_TARGET, "NGram": NGRAM}

# serve/openai_protocol.py@54cf7be and @0076e93: OpenAIBaseModel has extra="forbid"; these are the fields of its two requests.
SAMPLING = {
    *("model", "frequency_penalty", "logit_bias", "n", "presence_penalty", "seed", "stop", "stream", "stream_options", "temperature"),
    *("top_p", "user", "lora_request", "best_of", "use_beam_search", "top_k", "top_p_min", "min_p", "repetition_penalty", "length_penalty"),
    *("early_stopping", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "min_tokens", "skip_special_tokens"),
    *("spaces_between_special_tokens", "truncate_prompt_tokens", "add_special_tokens", "response_format", "disaggregated_params"),
    *("logprobs", "max_tokens"),
}
COMPLETION = SAMPLING | {"prompt", "echo", "suffix", "return_context_logits", "detokenize"}
CHAT = SAMPLING | {
    *("messages", "prompt_token_ids", "top_logprobs", "max_completion_tokens", "tools", "tool_choice", "reasoning_effort", "echo"),
    *("add_generation_prompt", "documents", "chat_template", "chat_template_kwargs", "cache_salt"),
}
FORMAT_FIELDS = {"type", "schema", "json_schema", "regex", "ebnf", "format"}
FORMATS = {"text", "json", "json_object", "regex", "ebnf", "structural_tag"} | ({"json_schema"} if NUMBERS >= (1, 2) else set())


class InvalidError(Exception):
    """A body that pydantic would not take, or that ``to_sampling_params`` raises at."""


@dataclass
class Double:
    """What one server was started with, and what it counted."""

    engine: object
    limits: object
    model: str
    guided: bool
    rows: deque = field(default_factory=deque)
    counts: bool = False
    defaults: dict = field(default_factory=dict)

    @property
    def speculates(self):
        return self.engine.settings.speculation is not None


def arguments(argv):
    # commands/serve.py@00209af: click options with underscores; true ones are bare flags, and there are no --no- flags.
    parser = argparse.ArgumentParser(prog="trtllm-serve", allow_abbrev=False)
    parser.add_argument("model")
    parser.add_argument("--host", default="localhost")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--backend", choices=["pytorch", "tensorrt", "_autodeploy"], default="pytorch")
    for name in ("tp_size", "pp_size", "ep_size", "max_num_tokens", "max_beam_width", "gpus_per_node"):
        parser.add_argument(f"--{name}", type=int, default=1)
    parser.add_argument("--max_batch_size", type=int, default=32)
    parser.add_argument("--max_seq_len", type=int, default=1024)
    parser.add_argument("--kv_cache_free_gpu_memory_fraction", "--free_gpu_memory_fraction", type=float, default=0.9)
    for name in ("tokenizer", "reasoning_parser", "tool_parser", "chat_template", "log_level"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--trust_remote_code", action="store_true")
    names = ["--extra_llm_api_options", *(["--config"] if NUMBERS >= (1, 2) else [])]
    parser.add_argument(*names, dest="options")
    return parser.parse_args(argv[1:] if argv[:1] == ["serve"] else argv)


def refuse_unknown(given, known, where):
    for name in given:
        if name not in known:
            error = f"pydantic_core._pydantic_core.ValidationError: 1 validation error for {where}"
            sys.exit(f"{error}\n{name}\n  Extra inputs are not permitted")


def options_of(path):
    options = yaml.safe_load(Path(path).read_text()) if path else {}
    refuse_unknown(options, OPTIONS, "TorchLlmArgs")
    refuse_unknown(options.get("kv_cache_config") or {}, KV_CACHE, "KvCacheConfig")
    speculative = options.get("speculative_config")
    if speculative is not None:
        method = speculative.get("decoding_type")
        if method not in METHODS:
            sys.exit(f"ValueError: InvalidError decoding type: {method}")
        refuse_unknown(speculative, METHODS[method], f"{method}DecodingConfig")
    return options


def settings_of(given, options):
    from specdec_reference.cli import ServerSettings, Speculation

    speculative = options.get("speculative_config")
    speculation = None
    if speculative is not None and speculative["decoding_type"] == "NGram":
        longest = speculative.get("max_matching_ngram_size", 4)
        speculation = Speculation(method="ngram", tokens=speculative["max_draft_len"], n_min=1, n_max=longest)
    elif speculative is not None:
        model = speculative.get("speculative_model") or speculative["speculative_model_dir"]
        speculation = Speculation(method="draft_model", tokens=speculative["max_draft_len"], model=model)
    cache, policy = options.get("kv_cache_config") or {}, (options.get("scheduler_config") or {}).get("capacity_scheduler_policy")
    return ServerSettings(
        model=given.model,
        port=given.port,
        # docs/source/commands/trtllm-serve and openai_server.py@0005772: the name of a local folder is its last part.
        served_model_name=Path(given.model).name if Path(given.model).is_dir() else given.model,
        max_num_seqs=given.max_batch_size,
        max_model_len=given.max_seq_len,
        # CapacitySchedulerPolicy: under GUARANTEED_NO_EVICT, the default, none is paused.
        blocks=(cache.get("max_tokens") or 0) // 16 if policy == "MAX_UTILIZATION" else 0,
        speculation=speculation,
        spec_decode_metrics="detailed" if speculation else "none",
        fault=os.environ.get("SPECDEC_FAULT", "") if speculation else "",
    )


def booted(given, options):
    from specdec_reference.build import build_engine
    from specdec_reference.engine import ReferenceEngine
    from specdec_reference.metrics import Counters
    from specdec_reference.openai_request import ServerLimits

    settings = settings_of(given, options)
    rows = deque(maxlen=options.get("iter_stats_max_iterations") or DEFAULT_ROWS)
    paused = []

    class Iterations(Counters):
        """Keeps a row for every verify step, as ``/metrics`` of the real server has one for every iteration."""

        def count_step(self, drafted, accepted):
            super().count_step(drafted, accepted)
            # pyexecutor: len(scheduled_batch.paused_requests) of this iteration
            paused.append(self.preemptions - sum(paused))
            rows.append({**row(drafted, accepted), "inflightBatchingStats": {"numPausedRequests": paused[-1]}})
            paused[:] = [self.preemptions]

    class PromptPenalties(ReferenceEngine):
        """Counts the prompt for presence and frequency too (cpp/tensorrt_llm/kernels/penaltyKernels.cu)."""

        def sequences(self, request, tell):
            made = super().sequences(request, tell)
            for penalties in (sequence.penalties for sequence in made if sequence.penalties is not None):
                for token in request.prompt:
                    penalties.advance(token)
            return made

    engine = build_engine(settings, PromptPenalties)
    iterations = Iterations(draft_tokens_a_step=engine.counters.draft_tokens_a_step)
    engine.counters = engine.batch._counters = iterations
    limits = ServerLimits(
        model=settings.name,
        max_model_len=settings.max_model_len,
        max_logprobs=settings.max_logprobs,
        prompt_logprobs=False,  # openai_protocol.py@0076e93: no field asks for them
        token_prompts=True,
        grammar=engine.compile,
    )
    # docs: without guided_decoding_backend guided requests fail.
    guided = bool(options.get("guided_decoding_backend"))
    defaults = generation_of(given.model) if options.get("generation_config", "trtllm") == "auto" else {}
    return Double(engine, limits, settings.name, guided, rows, counts=bool(options.get("enable_iter_perf_stats")), defaults=defaults)


def generation_of(model):
    stated = json.loads((Path(model) / "generation_config.json").read_text())
    return {name: stated[name] for name in GENERATION if name in stated}


def row(drafted, accepted):
    # Iterations without drafts report an acceptanceLength all the same; NVIDIA's own tests filter on numDraftTokens.
    requests = int(drafted > 0)
    stats = {"numDraftTokens": drafted, "numAcceptedTokens": accepted, "numRequestsWithDraftTokens": requests}
    length = 1.0 + accepted if requests else 1.0
    return {"iterLatencyMS": 1.0, "specDecodingStats": {**stats, "acceptanceLength": length, "draftOverhead": 0.1}}


class Routes:
    """The HTTP of ``serve/openai_server.py@0005772``; no ``/tokenize``, no API key."""

    def __init__(self, double):
        self.double = double

    def application(self):
        from starlette.applications import Starlette
        from starlette.routing import Route

        from specdec_reference.server import _hand_to_event_loop

        @asynccontextmanager
        async def lifespan(_app):
            loop = asyncio.get_running_loop()
            self.double.engine.start(lambda deltas: _hand_to_event_loop(loop, deltas))
            yield
            await asyncio.to_thread(self.double.engine.stop)

        routes = [
            Route("/health", self.health),
            Route("/version", self.version),
            Route("/v1/models", self.models),
            Route("/metrics", self.metrics),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
        ]
        return Starlette(routes=routes, lifespan=lifespan)

    async def health(self, _request):
        return plain(200)

    async def version(self, _request):
        return reply({"version": RELEASE})

    async def models(self, _request):
        return reply({"object": "list", "data": [{"id": self.double.model, "object": "model", "created": 0, "owned_by": "tensorrt_llm"}]})

    async def metrics(self, _request):
        # get_iteration_stats: what came since the last reading; a queue, so that a second reader gets the rest.
        rows = []
        while self.double.counts and self.double.rows:
            rows.append(self.double.rows.popleft())
        return reply(rows)

    async def completions(self, incoming):
        return await self.answer(incoming, COMPLETION, self.completion_of)

    async def chat(self, incoming):
        return await self.answer(incoming, CHAT, self.chat_of)

    async def answer(self, incoming, known, asked_of):
        raw = await incoming.body()
        if SIGINT_ON and SIGINT_ON.encode() in raw:
            # CppExecutorError: the server signals itself, and the handler returns nothing, which is a null with status 200.
            signal.raise_signal(signal.SIGINT)
            return reply(None)
        try:
            body = json.loads(raw)
            check(body, known)
        except (ValueError, InvalidError) as error:
            return reply({"error": str(error)}, 400)  # the handler of RequestValidationError
        try:
            return await asked_of(body, incoming)
        except InvalidError as error:  # create_error_response
            return reply({"object": "error", "message": str(error), "type": "BadRequestError", "param": None, "code": 400}, 400)

    async def completion_of(self, body, incoming):
        detokenize = body.get("detokenize", True)
        prompt = body["prompt"]
        several = isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list))
        asked = {name: value for name, value in body.items() if name not in {"prompt", "detokenize", "echo"}}
        if body.get("echo") and not isinstance(prompt, str):
            msg = 'can only concatenate list (not "str") to list'  # postprocess_handlers.py@01bf192: args.prompt + text
            raise InvalidError(msg)
        if body.get("logprobs"):
            self.check_logprobs(NUMBERS < (1, 3))
        shape = CompletionShape(self.double, detokenize=detokenize)
        if body.get("stream"):
            return await self.streamed(asked, prompt, shape)
        replies = [await self.whole(asked, each, incoming) for each in (prompt if several else [prompt])]
        return reply(shape.merged(replies, body.get("n") or 1))

    async def chat_of(self, body, incoming):
        asked = {name: value for name, value in body.items() if name not in {"prompt_token_ids", "messages", "top_logprobs", "logprobs"}}
        if "max_completion_tokens" in asked:
            asked["max_tokens"] = asked.pop("max_completion_tokens")
        if body.get("logprobs"):
            self.check_logprobs(False)
            asked["logprobs"] = body.get("top_logprobs") or 1
        prompt = body.get("prompt_token_ids") or self.converse(body["messages"])
        shape = ChatShape(self.double, top=bool(body.get("top_logprobs")))
        if body.get("stream"):
            return await self.streamed(asked, prompt, shape)
        return reply(shape.whole(await self.whole(asked, prompt, incoming)))

    def check_logprobs(self, unsupported):
        if unsupported:
            msg = "logprobs is not supported"  # openai_protocol.py@54cf7be; since TensorRT-LLM#10809 they are
            raise InvalidError(msg)
        if REFUSES_LOGPROBS and self.double.speculates:
            msg = "Speculative decoding does not support the requested outputs: logprobs"  # TensorRT-LLM#18401
            raise InvalidError(msg)

    def converse(self, messages):
        tokenizer = self.double.engine.tokenizer
        return list(tokenizer.encode(tokenizer.format_chat(messages)))

    def reply_options(self, asked, prompt):
        from pytest_specdec.model.workload import Route
        from specdec_reference import openai_request
        from specdec_reference.openai_response import ResponseOptions
        from specdec_reference.request_fields import Refusal

        engine = self.double.engine
        body = {
            **self.double.defaults,
            **asked,
            "prompt": prompt,
            "model": self.double.model,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
        if (wanted := body.get("response_format")) and wanted.get("type") != "text":
            if not self.double.guided:
                msg = "guided decoding is not enabled: set guided_decoding_backend"
                raise InvalidError(msg)
            body["response_format"] = as_json_schema(wanted)
        try:
            request = openai_request.parse(Route.COMPLETIONS, body, engine.tokenizer, self.double.limits)
        except Refusal as refusal:
            raise InvalidError(refusal.message) from refusal
        return ResponseOptions(
            route=Route.COMPLETIONS,
            model=self.double.model,
            request=request,
            tokenizer=engine.tokenizer,
            metrics=engine.settings.spec_decode_metrics,
            draft_tokens=engine.counters.draft_tokens_a_step,
        )

    async def whole(self, asked, prompt, incoming):
        from specdec_reference.openai_response import whole

        response = await whole(self.reply_options(asked, prompt), self.double.engine, incoming.receive)
        return json.loads(response.body)

    async def streamed(self, asked, prompt, shape):
        from starlette.responses import Response

        from specdec_reference.openai_response import Stream

        inner = Stream(self.reply_options(asked, prompt), self.double.engine)

        class Rewritten(Response):
            async def __call__(self, scope, receive, send):
                async def rewriting(message):
                    if message["type"] == "http.response.body" and message["body"].startswith(b"data: {"):
                        chunk = json.loads(message["body"][len(b"data: ") :])
                        message = {**message, "body": b"data: " + json.dumps(shape.chunk(chunk)).encode() + b"\n\n"}
                    await send(message)

                await inner(scope, receive, rewriting)

        return Rewritten()


@dataclass
class CompletionShape:
    """Replies of ``completion_response_post_processor`` and its stream, postprocess_handlers.py@01bf192."""

    double: Double
    detokenize: bool

    def merged(self, replies, n):
        choices = [
            self._choice(choice, index * n + choice["index"], steps_of(reply))
            for index, reply in enumerate(replies)
            for choice in reply["choices"]
        ]
        usage = {name: sum(reply["usage"][name] for reply in replies) for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
        return head(replies[0]) | {"choices": choices, "usage": usage}

    def chunk(self, chunk):
        return head(chunk) | {
            "choices": [self._choice(choice, choice["index"], None) for choice in chunk["choices"]],
            "usage": chunk.get("usage"),
        }

    def _choice(self, choice, index, steps):
        ids = without_stop(self.double, choice) if choice.get("finish_reason") == "stop" else choice["token_ids"]
        return {
            "index": index,
            "text": choice["text"] if self.detokenize else "",
            "token_ids": None if self.detokenize else ids,
            "logprobs": by_string(self.double, choice.get("logprobs")),
            "context_logits": None,
            "finish_reason": choice.get("finish_reason"),
            "stop_reason": choice.get("stop_reason"),
            "disaggregated_params": None,
            "avg_decoded_tokens_per_iter": None if steps is None else len(choice["token_ids"]) / max(1, steps),
        }


@dataclass
class ChatShape:
    """Replies of ``chat_response_post_processor`` and its stream: no ids."""

    double: Double
    top: bool

    def whole(self, reply):
        choices = [
            {
                "index": choice["index"],
                "message": {"role": "assistant", "content": choice["text"], "reasoning_content": "", "tool_calls": []},
                "logprobs": spoken(self.double, choice.get("logprobs"), top=self.top),
                "finish_reason": choice.get("finish_reason"),
                "stop_reason": choice.get("stop_reason"),
                "avg_decoded_tokens_per_iter": len(choice["token_ids"]) / max(1, steps_of(reply)),
            }
            for choice in reply["choices"]
        ]
        return head(reply, "chat.completion") | {"choices": choices, "usage": reply["usage"], "prompt_token_ids": None}

    def chunk(self, chunk):
        choices = [
            {
                "index": choice["index"],
                "delta": {"content": choice["text"], "reasoning_content": ""},
                "logprobs": spoken(self.double, choice.get("logprobs"), top=self.top),
                "finish_reason": choice.get("finish_reason"),
            }
            for choice in chunk["choices"]
        ]
        return head(chunk, "chat.completion.chunk") | {"choices": choices, "usage": chunk.get("usage")}


def head(reply, kind="text_completion"):
    return {"id": reply["id"], "object": kind, "created": reply["created"], "model": reply["model"]}


def steps_of(reply):
    metrics = reply.get("metrics")
    if metrics is None:
        return reply["usage"]["completion_tokens"]
    return 1 + len(metrics["speculative_decoding"]["per_step_accepted"])


def without_stop(double, choice):
    # executor/result.py: the tokens of a stop word are cut off the ids, unless the request wants them.
    ids, tokenizer = choice["token_ids"], double.engine.tokenizer
    stop = choice.get("stop_reason")
    while isinstance(stop, str) and ids and stop in b"".join(tokenizer.pieces[token] for token in ids).decode("utf-8", "replace"):
        ids = ids[:-1]
    return ids


def by_string(double, logprobs):
    """create_completion_logprobs: objects by the string of each token alone, so that tokens of one string take each other's place."""
    if logprobs is None:
        return None
    return {
        "text_offset": logprobs["text_offset"],
        "token_logprobs": logprobs["token_logprobs"],
        "tokens": [word(double, name) for name in logprobs["tokens"]],
        "top_logprobs": [{word(double, name): value for name, value in listed.items()} for listed in logprobs["top_logprobs"]],
    }


def spoken(double, logprobs, *, top):
    """create_logprobs: a list of objects for every token."""
    if logprobs is None:
        return None
    positions = zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
    content = [
        one(double, name, logprob) | {"top_logprobs": [one(double, *pair) for pair in listed.items()] if top else None}
        for name, logprob, listed in positions
    ]
    return {"content": content}


def one(double, name, logprob):
    return {"token": word(double, name), "logprob": logprob, "bytes": list(word(double, name).encode())}


def word(double, name):
    """Name a token by what it alone decodes to."""
    return double.engine.tokenizer.words[int(name.removeprefix("token_id:"))]


def as_json_schema(wanted):
    if wanted["type"] in {"json", "json_schema"}:
        schema = wanted.get("schema") or wanted.get("json_schema") or {}
        return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema.get("schema", schema)}}
    if wanted["type"] == "json_object":
        return wanted
    msg = f"the double's model has no grammar for {wanted['type']}"
    raise InvalidError(msg)


def check(body, known):
    """The validators of the two request models."""
    for name in body:
        if name not in known:
            msg = f"[{{'type': 'extra_forbidden', 'loc': ('body', '{name}'), 'msg': 'Extra inputs are not permitted'}}]"
            raise InvalidError(msg)
    if body.get("stream_options") and not body.get("stream"):
        msg = "Stream options can only be defined when stream is true."
        raise InvalidError(msg)
    if body.get("suffix"):
        msg = "suffix is not supported"
        raise InvalidError(msg)
    if "top_logprobs" in body and not body.get("logprobs"):
        msg = "logprobs must be true when using top_logprobs"
        raise InvalidError(msg)
    top_k = body.get("top_k", 0)
    if not isinstance(top_k, int) or top_k < 0:
        msg = f"top_k must be a whole number from 0 on, not {top_k}"
        raise InvalidError(msg)
    wanted = body.get("response_format")
    if wanted is not None and (wanted.get("type") not in FORMATS or set(wanted) - FORMAT_FIELDS):
        msg = f"response_format: {wanted}"
        raise InvalidError(msg)


def reply(document, status=200):
    from starlette.responses import JSONResponse

    return JSONResponse(document, status_code=status)


def plain(status):
    from starlette.responses import Response

    return Response(status_code=status)


def main(argv):
    given = arguments(argv)
    options = options_of(given.options)
    # launch_server: the socket is bound before anything is loaded, so that a busy port fails at once, and listens when all is loaded.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as bound:
        bound.bind((given.host, given.port))
        if os.environ.get("TRTLLM_DOUBLE_LISTENS_EARLY"):
            bound.listen(8)
            time.sleep(0.5)
        double = booted(given, options)
        import uvicorn

        sys.setswitchinterval(0.0005)  # or else a chunk waits for a whole step of the engine's thread
        config = uvicorn.Config(Routes(double).application(), log_level="warning", timeout_graceful_shutdown=1)
        asyncio.run(uvicorn.Server(config).serve(sockets=[bound]))


if __name__ == "__main__":
    main(sys.argv[1:])
