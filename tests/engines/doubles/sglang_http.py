"""The routes of SGLang's double: what they take, refuse, ignore and answer; files are of the wheel sglang-0.5.23, below ``sglang/srt``."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import sys
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route as At

from pytest_specdec.model.workload import Route
from specdec_reference import openai_request
from specdec_reference.engine import ReferenceEngine
from specdec_reference.openai_request import EngineRequest
from specdec_reference.request_fields import Refusal
from specdec_reference.server import _hand_to_event_loop

VERSION = "0.5.23"
NO_DETAILS = bool(os.environ.get("SGLANG_DOUBLE_NO_SPEC_DETAILS"))
COOL_CHATS = bool(os.environ.get("SGLANG_DOUBLE_COOL_CHATS"))
FIRST_LOGPROB = bool(os.environ.get("SGLANG_DOUBLE_FIRST_LOGPROB"))
COOL = {"temperature": 0.7}
SEED_WITHOUT_ONE = 42  # sampling/sampling_batch_info.py: deterministic inference draws requests without a seed from this one

# entrypoints/openai/protocol.py: CompletionRequest and ChatCompletionRequest; a field without None refuses null, others are ignored.
NONE, NUMBER = type(None), (int, float)
SHARED: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("frequency_penalty", "presence_penalty"), NUMBER),
    **dict.fromkeys(("n", "min_tokens"), (int,)),
    **dict.fromkeys(("stream", "ignore_eos", "no_stop_trim", "skip_special_tokens", "return_token_ids"), (bool,)),
    **dict.fromkeys(("return_spec_tokens_details", "return_routed_experts"), (bool,)),
    **dict.fromkeys(("logit_bias", "stream_options", "response_format"), (dict, NONE)),
    **dict.fromkeys(("regex", "ebnf", "user"), (str, NONE)),
    **dict.fromkeys(("stop_token_ids",), (list, NONE)),
    **dict.fromkeys(("stop", "stop_regex"), (str, list, NONE)),
    "seed": (int, NONE),
    "model": (str,),
}
FIELDS: dict[Route, dict[str, tuple[type, ...]]] = {
    Route.COMPLETIONS: SHARED
    | {"prompt": (str, list), "max_tokens": (int,), "logprobs": (int, NONE), "echo": (bool,), "json_schema": (str, NONE), "top_k": (int,)}
    | dict.fromkeys(("temperature", "top_p", "min_p", "repetition_penalty"), NUMBER),
    Route.CHAT: SHARED
    | {"messages": (list,), "max_tokens": (int, NONE), "max_completion_tokens": (int, NONE), "logprobs": (bool,)}
    | {"top_logprobs": (int, NONE), "top_k": (int, NONE), "return_prompt_token_ids": (bool,)}
    | dict.fromkeys(("return_output_ids_in_sglext", "return_input_ids_in_sglext"), (bool,))
    | dict.fromkeys(("temperature", "top_p", "min_p", "repetition_penalty"), (*NUMBER, NONE)),
}
DEFAULTS = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
"""Of completions; of chat where the checkpoint's generation_config.json says nothing else, unless --sampling-defaults openai."""
# proto/sglang/api/v1, as api/v1/api_types.py has it: /generate refuses other sampling_params, and ignores other fields.
SAMPLING_PARAMS = {
    *("max_new_tokens", "stop", "stop_token_ids", "stop_regex", "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "n"),
    *("presence_penalty", "repetition_penalty", "min_new_tokens", "json_schema", "regex", "ebnf", "structural_tag", "ignore_eos"),
    *("skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim", "stream_interval", "logit_bias", "sampling_seed"),
    *("custom_params", "beam_width", "watermark", "choice"),
}


def typed(route: Route, body: Any) -> dict[str, Any]:
    """Return the known fields of a body. Raises Refusal for one of another type; http_server.py answers those with 400."""
    if not isinstance(body, dict):
        raise Refusal(message="the body is no object")
    known = FIELDS[route]
    for name in {"prompt", "messages"} & known.keys() - body.keys():
        raise Refusal(message=f"[{{'type': 'missing', 'loc': ('body', '{name}'), 'msg': 'Field required'}}]")
    for name, value in body.items():
        allowed = known.get(name, (object,))
        if not isinstance(value, allowed) or (isinstance(value, bool) and not {bool, object} & set(allowed)):
            raise Refusal(message=f"[{{'loc': ('body', '{name}'), 'msg': 'Input should be a valid {allowed[0].__name__}'}}]")
    return {name: value for name, value in body.items() if name in known}


def verified(sampling: dict[str, Any]) -> None:
    """sampling/sampling_params.py, verify; and what the model underneath has not."""
    if sampling["top_k"] < 1 and sampling["top_k"] != -1:
        raise Refusal(message=f"top_k must be -1 (disable) or at least 1, got {sampling['top_k']}.")
    if not 0.0 < sampling["top_p"] <= 1.0:
        raise Refusal(message=f"top_p must be in (0, 1], got {sampling['top_p']}.")
    if sampling["temperature"] < 0.0:
        raise Refusal(message=f"temperature must be a non-negative finite number, got {sampling['temperature']}.")
    lacking = [name for name, off in (("min_p", 0), ("repetition_penalty", 1)) if sampling[name] != off]
    lacking += [name for name in ("min_tokens", "min_new_tokens", "regex", "ebnf", "stop_regex", "stop_token_ids") if sampling.get(name)]
    if lacking:
        raise Refusal(message=f"the double's model has no {lacking[0]}")


def openai_shape(status: int, message: str) -> Response:
    """entrypoints/openai/protocol.py, ErrorResponse: flat, without an ``error`` around it."""
    kind = "Bad Request" if status == 400 else "InternalServerError"
    return JSONResponse({"object": "error", "message": message, "type": kind, "param": None, "code": status}, status_code=status)


@dataclass
class Answering:
    """One request at work: its sequences and their deltas."""

    engine: ReferenceEngine
    request: EngineRequest
    queue: asyncio.Queue = field(default_factory=asyncio.Queue)
    sequences: tuple = ()

    def __post_init__(self) -> None:
        self.id = os.urandom(8).hex()
        self.sequences = self.engine.sequences(self.request, self.queue.put_nowait)
        self.engine.submit(self.sequences)

    async def deltas(self):
        running = len(self.sequences)
        try:
            while running:
                delta = await self.queue.get()
                if delta.finish_reason == "abort":
                    msg = "the scheduler is gone"
                    raise RuntimeError(msg)
                running -= delta.finish_reason is not None
                yield delta
        finally:
            if running:
                self.engine.drop(self.sequences)

    async def whole(self) -> tuple:
        async for _ in self.deltas():
            pass
        return self.sequences


class Served:
    """The routes of entrypoints/http_server.py that a client of ours may want."""

    def __init__(self, engine: ReferenceEngine, args: argparse.Namespace) -> None:
        self.engine, self.args = engine, args
        self.window = args.speculative_num_draft_tokens if args.speculative_algorithm else 1
        self.generated = {"true": 0, "false": 0}
        self.requests = {"true": 0, "false": 0}
        self.verify_calls = 0
        self.limits = openai_request.ServerLimits(
            model=engine.settings.name,
            max_model_len=engine.settings.max_model_len,
            max_logprobs=engine.shape.vocabulary,
            prompt_logprobs=True,
            token_prompts=True,
            grammar=engine.compile,
        )
        generation = Path(args.model_path) / "generation_config.json"
        self.checkpoints_own = json.loads(generation.read_text()) if generation.is_file() and args.sampling_defaults == "model" else {}
        # Before SGLang#11304 a chat's defaults were the fields' own, and no file was read.
        self.checkpoints_own = COOL if COOL_CHATS else self.checkpoints_own

    def application(self) -> Starlette:
        """utils/auth.py: a key guards everything but the paths of probes and metrics."""

        def guarded(endpoint):
            async def checked(request):
                if self.args.api_key and request.headers.get("authorization") != f"Bearer {self.args.api_key}":
                    return JSONResponse({"error": "Unauthorized"}, status_code=401)
                return await endpoint(request)

            return checked

        @asynccontextmanager
        async def lifespan(_app):
            loop = asyncio.get_running_loop()
            self.engine.start(lambda deltas: _hand_to_event_loop(loop, deltas))
            yield
            await asyncio.to_thread(self.engine.stop)

        return Starlette(
            routes=[
                At("/ready", self.ready),
                At("/health", self.health),
                At("/health_generate", self.health),
                At("/metrics", self.metrics),
                At("/server_info", guarded(self.server_info)),
                At("/get_server_info", guarded(self.server_info)),
                At("/v1/models", guarded(self.models)),
                At("/generate", guarded(self.generate), methods=["POST", "PUT"]),
                At("/v1/completions", guarded(self.completions), methods=["POST"]),
                At("/v1/chat/completions", guarded(self.chat), methods=["POST"]),
            ],
            lifespan=lifespan,
        )

    async def ready(self, _request) -> Response:
        return Response(status_code=200)

    async def health(self, _request) -> Response:
        """health_generate: one token of [0], looked for after a second at the earliest."""
        answering = asyncio.create_task(Answering(self.engine, EngineRequest(prompt=(0,), max_tokens=1, temperature=0.0)).whole())
        await asyncio.sleep(1)
        with suppress(RuntimeError):
            await answering
        return Response(status_code=200 if self.engine.failure is None else 503)

    async def server_info(self, _request) -> Response:
        """All resolved arguments, the state of the scheduler and the version; nothing is drafted before the first verify call."""
        steps = self.verify_calls
        # scheduler_components/metrics_reporter.py: tokens of verify calls over verify calls, the bonus token included.
        length = (sum(self.generated.values()) - sum(self.requests.values())) / steps if steps else None
        states = [{"avg_spec_accept_length": length} if length else {}]
        command = f"python -m sglang.launch_server {shlex.join(sys.argv[1:])}"
        named = {name: value for name, value in vars(self.args).items() if name != "api_key"}
        return JSONResponse({**named, "launch_command": command, "internal_states": states, "version": VERSION, "frontend": "python"})

    async def models(self, _request) -> Response:
        card = {"id": self.engine.settings.name, "object": "model", "owned_by": "sglang", "root": self.engine.settings.name, "parent": None}
        return JSONResponse({"object": "list", "data": [{**card, "max_model_len": self.engine.settings.max_model_len}]})

    async def metrics(self, _request) -> Response:
        """observability/metrics_collector.py, observe_one_finished_request; only with --enable-metrics."""
        if not self.args.enable_metrics:
            return JSONResponse({"detail": "Not Found"}, status_code=404)
        label = f'engine_type="unified",model_name="{self.engine.settings.name}",tp_rank="0"'
        lines = [f'sglang:generation_tokens_total{{{label},is_streaming="{s}"}} {float(n)}' for s, n in self.generated.items() if n]
        lines += [f'sglang:num_requests_total{{{label},is_streaming="{s}"}} {float(n)}' for s, n in self.requests.items() if n]
        lines += [f"sglang:spec_verify_calls_total{{{label}}} {float(self.verify_calls)}"] if self.verify_calls else []
        lines += [f"sglang:spec_accept_length{{{label}}} 2.0", f"sglang:num_running_reqs{{{label}}} 0.0"]
        # A gauge of the last batch, and a counter that has no series before the first retraction.
        retracted = self.engine.counters.preemptions
        lines += [f"sglang:num_retracted_reqs{{{label}}} 0.0"]
        lines += [f"sglang:num_retracted_requests_total{{{label}}} {float(retracted)}"] if retracted else []
        return PlainTextResponse("\n".join(lines) + "\n")

    def finished(self, sequences, *, streaming: bool = False) -> None:
        key = "true" if streaming else "false"
        for sequence in sequences:
            self.generated[key] += len(sequence.emitted)
            self.requests[key] += 1
            self.verify_calls += len(sequence.accepted)

    def seeded(self, request: EngineRequest) -> EngineRequest:
        """sampling/sampling_batch_info.py: seeds count in deterministic inference alone."""
        if not self.args.enable_deterministic_inference:
            return replace(request, seed=None)
        return replace(request, seed=SEED_WITHOUT_ONE if request.seed is None else request.seed)

    async def generate(self, incoming) -> Response:
        """http_server.py, generate_request: the contract of api/v1, then managers/io_struct.py, GenerateReqInput."""
        body = await incoming.json()
        sampling = body.get("sampling_params") or {}
        if unknown := sorted(sampling.keys() - SAMPLING_PARAMS):
            return JSONResponse({"error": f"unknown field `{unknown[0]}`"}, status_code=400)
        ids = body.get("input_ids") or list(self.engine.tokenizer.encode(body.get("text") or ""))
        try:
            request = self._native(ids, {**DEFAULTS, **sampling}, body)
        except Refusal as refusal:
            return JSONResponse({"error": {"message": refusal.message}}, status_code=400)
        (sequence,) = await Answering(self.engine, self.seeded(request)).whole()
        self.finished([sequence])
        start = len(ids) if body.get("logprob_start_len", -1) == -1 else body["logprob_start_len"]
        scored = self._scored(sequence, start, body.get("top_logprobs_num") or 0) if body.get("return_logprob") else {}
        meta = {"id": os.urandom(8).hex(), "prompt_tokens": len(ids), "completion_tokens": len(sequence.emitted), "cached_tokens": 0}
        meta["finish_reason"] = {"type": sequence.finish_reason, "length": len(sequence.emitted)}
        return JSONResponse(
            {"text": sequence.text.whole, "output_ids": sequence.emitted, "meta_info": meta | scored | (self.details([sequence])[0] or {})}
        )

    def _native(self, ids: list[int], sampling: dict[str, Any], body: dict[str, Any]) -> EngineRequest:
        verified(sampling)
        top = (body.get("top_logprobs_num") or 0) if body.get("return_logprob") else None
        parsed = {"prompt": ids, "max_tokens": sampling.get("max_new_tokens") or 128, "logprobs": top}
        parsed |= {"prompt_logprobs": top} if body.get("logprob_start_len", -1) >= 0 else {}
        parsed |= {name: sampling[name] for name in ("temperature", "top_p", "top_k")} | {"ignore_eos": bool(sampling.get("ignore_eos"))}
        if body.get("logprob_start_len", -1) > len(ids):
            raise Refusal(message="logprob_start_len is higher than the number of input tokens. Please use a smaller logprob_start_len.")
        return openai_request.parse(Route.COMPLETIONS, parsed, self.engine.tokenizer, self.limits)

    def _scored(self, sequence, start: int, top: int) -> dict[str, Any]:
        """scheduler_components/logprob_result_processor.py: the first entry of a prompt's part is empty, whatever stands there."""
        entries = sequence.prompt_entries[start:] if start < len(sequence.request.prompt) else []
        ids = sequence.request.prompt[start:]
        own = [[None if i == 0 else entries[i - 1].logprob, token, None] for i, token in enumerate(ids)]
        listed = [None if i == 0 else [[value, token, None] for token, value in entries[i - 1].top] for i in range(len(ids))]
        out = [[entry.logprob, entry.token, None] for entry in sequence.entries]
        out_listed = [[[value, token, None] for token, value in entry.top] for entry in sequence.entries]
        scored = {"input_token_logprobs": own, "output_token_logprobs": out}
        return scored | ({"input_top_logprobs": listed, "output_top_logprobs": out_listed} if top else {})

    async def completions(self, incoming) -> Response:
        return await self.answer(Route.COMPLETIONS, incoming)

    async def chat(self, incoming) -> Response:
        return await self.answer(Route.CHAT, incoming)

    async def answer(self, route: Route, incoming) -> Response:
        try:
            body = typed(route, await incoming.json())
            request = self._request(route, body)
        except Refusal as refusal:
            return openai_shape(400, refusal.message)
        except ValueError as error:
            return openai_shape(400, str(error))
        if self.engine.failure is not None:
            return openai_shape(500, "the scheduler is gone")
        answering = Answering(self.engine, request)
        reply = Reply(self, answering, body, route)
        if request.stream:
            return StreamingResponse(reply.events(), media_type="text/event-stream")
        try:
            sequences = await answering.whole()
        except RuntimeError as error:
            return openai_shape(500, str(error))
        self.finished(sequences)
        return JSONResponse(reply.whole(sequences))

    def _request(self, route: Route, body: dict[str, Any]) -> EngineRequest:
        if body.get("stream") and route is Route.CHAT and (body.get("return_prompt_token_ids") or body.get("return_token_ids")):
            # serving_chat.py, _convert_to_internal_request
            raise Refusal(message="return_prompt_token_ids is not supported with streaming. Please set stream=false when using it.")
        own = self.checkpoints_own if route is Route.CHAT else {}  # protocol.py, to_sampling_params
        stated = {name: body[name] for name in DEFAULTS if body.get(name) is not None}
        sampling = {**DEFAULTS, **{name: own[name] for name in DEFAULTS if name in own}, **stated}
        verified({**body, **sampling})
        kept = ("prompt", "messages", "max_tokens", "max_completion_tokens", "logprobs", "top_logprobs", "stop", "ignore_eos", "logit_bias")
        kept += ("frequency_penalty", "presence_penalty", "response_format", "seed", "stream", "stream_options")
        parsed = {name: body[name] for name in kept if name in body} | {name: sampling[name] for name in ("temperature", "top_p", "top_k")}
        if body.get("json_schema"):
            parsed["response_format"] = {"type": "json_schema", "json_schema": {"schema": json.loads(body["json_schema"])}}
        if not body.get("stream"):
            parsed.pop("stream_options", None)
        request = openai_request.parse(route, parsed, self.engine.tokenizer, self.limits)
        return self.seeded(replace(request, n=body.get("n", 1)))

    def details(self, sequences) -> list[dict[str, Any] | None]:
        """managers/tokenizer_manager.py, _calculate_spec_decoding_metrics; nothing of an answer without a verify call."""
        return [None if NO_DETAILS else self._details(sequence) for sequence in sequences]

    def _details(self, sequence) -> dict[str, Any] | None:
        accepted, steps = sum(sequence.accepted), len(sequence.accepted)
        proposed = steps * (self.window - 1)
        if not proposed:
            return None
        return {
            "spec_accept_rate": accepted / proposed,
            "spec_accept_length": len(sequence.emitted) / steps,
            "spec_num_correct_drafts": accepted,
            "spec_num_proposed_drafts": proposed,
            "spec_verify_ct": steps,
            "spec_correct_drafts_histogram": [sequence.accepted.count(n) for n in range(max(sequence.accepted) + 1)],
        }


@dataclass
class Reply:
    """entrypoints/openai/serving_completions.py and serving_chat.py: one request's answer, whole or streamed."""

    served: Served
    answering: Answering
    body: dict[str, Any]
    route: Route

    def head(self, kind: str = "") -> dict[str, Any]:
        chat = self.route is Route.CHAT
        name = f"chat.completion{kind}" if chat else "text_completion"
        return {"id": self.answering.id, "object": name, "created": int(time.time()), "model": self.body.get("model", "default")}

    def whole(self, sequences) -> dict[str, Any]:
        reply = {**self.head(), "choices": [self._choice(sequence) for sequence in sequences], "usage": self.usage(sequences)}
        return {**reply, **self.extension(sequences)}

    def _choice(self, sequence) -> dict[str, Any]:
        text, prompt = sequence.text.whole, list(sequence.request.prompt)
        choice = {"index": sequence.index, "logprobs": self.logprobs(sequence.entries), "finish_reason": sequence.finish_reason}
        choice["matched_stop"] = sequence.stop_reason
        if self.route is Route.COMPLETIONS:
            ids = {"token_ids": sequence.emitted, "prompt_token_ids": prompt} if self.body.get("return_token_ids") else {}
            return choice | {"text": text} | ids
        choice |= {"message": {"role": "assistant", "content": text, "reasoning_content": None, "tool_calls": None}}
        wants_prompt = self.body.get("return_prompt_token_ids") or self.body.get("return_token_ids")
        choice |= {"prompt_token_ids": prompt} if wants_prompt else {}
        return choice | ({"response_token_ids": sequence.emitted} if self.body.get("return_token_ids") else {})

    def usage(self, sequences) -> dict[str, Any]:
        prompt, emitted = len(self.answering.request.prompt), sum(len(sequence.emitted) for sequence in sequences)
        counted = {"prompt_tokens": prompt, "total_tokens": prompt + emitted, "completion_tokens": emitted}
        return counted | {"prompt_tokens_details": None, "reasoning_tokens": 0}

    def extension(self, sequences) -> dict[str, Any]:
        """Response-level: a list for n > 1, absent where nothing is in it."""
        found: dict[str, Any] = {}
        details = [each for each in self.served.details(sequences) if each is not None]
        if self.body.get("return_spec_tokens_details") and details:
            found["spec_tokens_details"] = details if len(sequences) > 1 else details[0]
        if self.route is Route.CHAT and self.body.get("return_input_ids_in_sglext"):
            found["input_ids"] = list(self.answering.request.prompt)
        if self.route is Route.CHAT and self.body.get("return_output_ids_in_sglext"):
            found["output_ids"] = [sequence.emitted for sequence in sequences]
        return {"sglext": found} if found else {}

    def logprobs(self, entries, *, first: bool = True) -> dict[str, Any] | None:
        """entrypoints/openai/utils.py, to_openai_style_logprobs: tokens by text, offsets of -1; ``first`` of those that begin an answer."""
        if self.answering.request.logprobs is None:
            return None
        if FIRST_LOGPROB and self.served.window > 1:
            entries = entries[: int(first)]
        words = self.served.engine.tokenizer.words
        if self.route is Route.CHAT:
            return {"content": [self._spoken(entry) for entry in entries]}
        return {
            "text_offset": [-1] * len(entries),
            "token_logprobs": [entry.logprob for entry in entries],
            "tokens": [words[entry.token] for entry in entries],
            "top_logprobs": [{words[token]: value for token, value in entry.top} for entry in entries] if self.body["logprobs"] else [],
        }

    def _spoken(self, entry) -> dict[str, Any]:
        tokenizer = self.served.engine.tokenizer

        def one(token: int, logprob: float) -> dict[str, Any]:
            return {"token": tokenizer.words[token], "bytes": list(tokenizer.pieces[token]), "logprob": logprob}

        return {**one(entry.token, entry.logprob), "top_logprobs": [one(token, value) for token, value in entry.top]}

    async def events(self):
        """One chunk a step; a chat names the role first, and its finish, its ids and its usage have chunks of their own."""
        chat, kind = self.route is Route.CHAT, ".chunk"
        if chat:
            for sequence in self.answering.sequences:
                yield self._event(self.head(kind), [{"index": sequence.index, "delta": {"role": "assistant", "content": ""}}])
        try:
            async for delta in self.answering.deltas():
                yield self._event(self.head(kind), [self._delta(delta)])
        except RuntimeError as error:
            yield f"data: {json.dumps({'error': {'message': str(error), 'code': 500}})}\n\n"
            return
        sequences = self.answering.sequences
        self.served.finished(sequences, streaming=True)
        for sequence in sequences if chat else ():
            ended = {"finish_reason": sequence.finish_reason, "matched_stop": sequence.stop_reason}
            yield self._event(self.head(kind), [{"index": sequence.index, "delta": {}, **ended}])
        if extension := self.extension(sequences):
            yield self._event({**self.head(kind), **extension}, [])
        if (self.body.get("stream_options") or {}).get("include_usage"):
            yield self._event({**self.head(kind), "usage": self.usage(sequences)}, [])
        yield "data: [DONE]\n\n"

    def _delta(self, delta) -> dict[str, Any]:
        choice = {"index": delta.sequence.index, "logprobs": self.logprobs(delta.entries, first=delta.first)}
        if self.route is Route.CHAT:
            return choice | {"delta": {"content": delta.text}, "finish_reason": None}
        choice |= {"text": delta.text, "finish_reason": delta.finish_reason, "matched_stop": delta.stop_reason}
        if self.body.get("return_token_ids"):
            choice |= {"token_ids": list(delta.tokens)}
            choice |= {"prompt_token_ids": list(self.answering.request.prompt)} if delta.first else {}
        return choice

    @staticmethod
    def _event(head: dict[str, Any], choices: list[dict[str, Any]]) -> str:
        return f"data: {json.dumps({**head, 'choices': choices})}\n\n"
