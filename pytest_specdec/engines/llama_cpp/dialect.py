"""The dialect of ``llama-server``'s OpenAI routes: its requests beyond the protocol, and its counters.

A slot holds one sequence of the server and its cache. A prefix is a prompt with an answer up to a token to score: the server continues it
by one token, and lists the most probable ones.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.engines import json_reply, top_logprobs, vllm
from pytest_specdec.engines.plain_dialect import PlainDialect, total
from pytest_specdec.engines.protocol import COMPLETIONS, ApiRequest
from pytest_specdec.engines.top_logprobs import ListedToken
from pytest_specdec.errors import RequestError
from pytest_specdec.model.penalty_window import PenaltyWindow
from pytest_specdec.model.spec_counters import SpecCounters
from pytest_specdec.model.workload import Route

if TYPE_CHECKING:
    from pytest_specdec.engines.protocol import Ask
    from pytest_specdec.engines.server_counts import Traffic
    from pytest_specdec.model.transcript import Position
    from pytest_specdec.model.workload import JSON, Request

_NEUTRAL: Mapping[str, JSON] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0}
"""The server's own values stand in for what a request leaves out: temperature 0.8, top-k 40, top-p 0.95 and min-p 0.05."""
_LAST_TOKENS = 64
"""``repeat_last_n`` of the server, unless its arguments or the model file give another: sent, so that they do not."""
_ASK_FOR_IDS: Mapping[str, JSON] = {"verbose": True, "return_tokens": True}
_BIAS_TOWARDS_A: Mapping[str, JSON] = {"logit_bias": [["a", 10_000.0]]}
"""Makes the server draw an ``a``, since a token that ends in the midst of a character comes without log-probabilities. They are those
from before the bias."""
_PREFIXES = 128
"""Prefixes of one request for continuations."""


class LlamaCppDialect(PlainDialect):
    """``__verbose.tokens``, ``/tokenize``, ``/apply-template``, and completions of several prompts at once."""

    health_path: str | None = "/health"
    version_path: str | None = "/props"
    counters_path: str | None = "/metrics"
    penalty_window = PenaltyWindow(prompt=True, repetition_prompt=True, last_tokens=_LAST_TOKENS)
    """Before the first token is drawn, the server hands the whole prompt to the sampler, whose ring of ``penalty_last_n`` tokens all three
    penalties count (``init_sampler`` of tools/server/server-context.cpp, ``llama_sampler_penalties_accept`` of src/llama-sampler.cpp).
    """

    def __init__(self, slots: int = 0) -> None:
        """Take the server's number of slots; 0 if unknown.

        All prefixes of one scoring request go to the same slot, the shortest first. Each then finds all but its last token in
        the slot's cache, measured 20 times as fast as on any free slot. Requests take the slots in turn. If the number of slots
        is unknown, prefixes are sent one by one, and the server chooses the slot.
        """
        self.prefixes_per_request = _PREFIXES if slots else 1
        self._slots = slots
        self._turns = itertools.count()

    def sent(self, request: Request, *, stream: bool) -> Mapping[str, JSON]:
        """Return the body with neutral values and fields for ids.

        Parameters that the request leaves out get neutral values, those that leave the distribution as it is, in place of the
        server's own defaults, unless it has ``server_defaults``. Token ids are asked for. The repetition penalty and structured
        fields get the server's own names.
        """
        # The length of the penalties' window is not neutral, but fixed: judges count as many tokens, by `penalty_window`.
        defaults = {} if request.server_defaults else {**_NEUTRAL, "repeat_last_n": _LAST_TOKENS}
        body = {**defaults, **super().sent(request, stream=stream), **_ASK_FOR_IDS}
        if "repetition_penalty" in body:
            body["repeat_penalty"] = body.pop("repetition_penalty")
        return _rename_structured_fields(body)

    def reply(self, data: Mapping[str, JSON]) -> Mapping[str, JSON]:
        """Return a reply with ``__verbose.tokens`` as its choice's ``token_ids``.

        The client reads the ids of every engine there. ``__verbose`` is about one choice, by its index, and is left out of the
        result. A reply without it, such as a chunk of a streamed chat, is returned unchanged.
        """
        verbose, choices = data.get("__verbose"), data.get("choices")
        if not isinstance(verbose, Mapping) or not isinstance(choices, Sequence):
            return data
        ids = verbose.get("tokens")
        choice_index = verbose.get("index", 0)
        choices_with_ids = [
            {**choice, "token_ids": ids} if isinstance(choice, Mapping) and choice.get("index", 0) == choice_index else choice
            for choice in choices
        ]
        return {**{name: value for name, value in data.items() if name != "__verbose"}, "choices": choices_with_ids}

    def prompt_token_ids(self, request: Request, ask: Ask) -> tuple[int, ...]:
        """Return the prompt's token ids, as the server tokenizes it.

        ``ask`` sends a request to the server, and returns None if it fails. ``/tokenize`` gets the flags that completions use. A chat goes
        through ``/apply-template`` first. A prompt of ids is returned as it is. Returns an empty tuple if a route fails.
        """
        prompt = request.body.get("prompt")
        if request.route is Route.CHAT:
            prompt = (ask(ApiRequest(path="/apply-template", body=request.body)) or {}).get("prompt")
        if not isinstance(prompt, str):
            return _ids_or_empty(prompt)
        tokenize_request = ApiRequest(path="/tokenize", body={"content": prompt, "add_special": True, "parse_special": True})
        return _ids_or_empty((ask(tokenize_request) or {}).get("tokens"))

    def version(self, text: str) -> str:
        """Return ``build_info`` of ``/props``; empty without one."""
        build = json_reply.document(text).get("build_info")
        return build if isinstance(build, str) else ""

    def counted(self, reply: Mapping[str, JSON]) -> SpecCounters | None:
        """Return one answer's speculation counters from its ``timings``; None without.

        ``drafts`` is the number of verify steps, which the server does not count. Each emits one token besides its accepted draft
        tokens, and the prefill emits one too: ``drafts`` is what is left of the answer's tokens. It includes steps without a draft, as
        prompt lookup has. Without ``draft_n``, or with 0, nothing was drafted, and ``drafts`` is 0.
        """
        timings = reply.get("timings")
        if not isinstance(timings, Mapping):
            return None
        tokens, drafted, accepted = timings.get("predicted_n"), timings.get("draft_n", 0), timings.get("draft_n_accepted", 0)
        if not isinstance(tokens, int) or not isinstance(drafted, int) or not isinstance(accepted, int):
            return None
        return SpecCounters(drafts=max(0, tokens - 1 - accepted) if drafted else 0, draft_tokens=drafted, accepted_tokens=accepted)

    def counters(self, text: str) -> SpecCounters | None:
        """Return the ``llamacpp:spec_decode_num_*`` counters, named as vLLM's are; None without any."""
        return vllm.parse(text, "llamacpp")

    def traffic(self, text: str) -> Traffic:
        """Return the traffic counters in a Prometheus page of the server.

        Generated tokens are in a series of another name than on most engines. The server's start is not reported.
        """
        return replace(super().traffic(text), generated_tokens=total(text, "tokens_predicted_total"))

    def continuations(self, prefixes: Sequence[Sequence[int]], top_tokens: int) -> ApiRequest | None:
        """Return a request to continue each prefix by one token.

        Its reply lists the ``top_tokens`` most probable tokens after each prefix. A first token is never drafted, so that the list is
        the target model's own. The drawn token is not used. If the number of slots is known, the requests take them in turn.
        """
        prompt = [list(prefix) for prefix in prefixes]
        slot_field = {"id_slot": next(self._turns) % self._slots} if self._slots else {}
        # With the bias the server draws an `a`: for a token that ends within a character it would list nothing.
        fields: Mapping[str, JSON] = {**_NEUTRAL, **_BIAS_TOWARDS_A, "logprobs": top_tokens, "cache_prompt": True}
        return ApiRequest(path=COMPLETIONS, body={"prompt": prompt, "max_tokens": 1, **fields, **slot_field})

    def continued(self, reply: Mapping[str, JSON], token_ids: Sequence[int], top_tokens: int) -> tuple[Position, ...]:
        """Return the distribution at each token, from its prefix's choice.

        The reply is that to :meth:`continuations`: a choice for each prefix, with its ``index`` and a list of the likeliest next tokens.
        ``token_ids`` has the token that the judged answer has after each prefix. Raises RequestError if choices and prefixes do not match,
        or if a choice lists no token.
        """
        choices = reply.get("choices")
        choice_objects = [choice for choice in choices if isinstance(choice, Mapping)] if isinstance(choices, Sequence) else []
        by_prefix = {choice.get("index", 0): _read_listed_tokens(choice.get("logprobs")) for choice in choice_objects}
        if by_prefix.keys() != set(range(len(token_ids))):
            what = "the server did not continue every prefix"
            raise RequestError(what, found=f"choices {sorted(map(str, by_prefix))}", expected=f"{len(token_ids)} choices")
        return tuple(top_logprobs.position(token, by_prefix[index], top_tokens) for index, token in enumerate(token_ids))


def _rename_structured_fields(body: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return ``body`` with structured fields under the server's names.

    They come in vLLM's form, ``structured_outputs``, and say which answers are allowed. A choice becomes a grammar of its
    options, and ``json_object`` the schema of any object. Of several settings a choice comes first, then a schema, then a
    grammar. A regular expression has no counterpart: its field stays, and the server ignores it.
    """
    structured = body.get("structured_outputs")
    if not isinstance(structured, Mapping):
        return dict(body)
    choice = structured.get("choice")
    if isinstance(choice, Sequence) and not isinstance(choice, str):
        options = " | ".join(json.dumps(str(option), ensure_ascii=False) for option in choice)
        grammar_fields: Mapping[str, JSON] = {"grammar": f"root ::= {options}"}
    elif schema := {"type": "object"} if structured.get("json_object") else structured.get("json"):
        grammar_fields = {"json_schema": schema}
    elif "grammar" in structured:
        grammar_fields = {"grammar": structured["grammar"]}
    else:
        return dict(body)
    return {**{name: value for name, value in body.items() if name != "structured_outputs"}, **grammar_fields}


def _read_listed_tokens(logprobs: JSON) -> list[ListedToken]:
    """Return the tokens listed for the first token of a choice.

    ``logprobs`` is a choice's field, in the form of chats on both routes. Returns an empty list without any.
    """
    content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    first = content[0] if isinstance(content, Sequence) and content else None
    tokens = first.get("top_logprobs") if isinstance(first, Mapping) else None
    return [listed_token for token in (tokens if isinstance(tokens, Sequence) else ()) if (listed_token := _read_token(token)) is not None]


def _read_token(token: JSON) -> ListedToken | None:
    """Return one listed token; None without id or log-probability."""
    token_id, logprob = (token.get("id"), token.get("logprob")) if isinstance(token, Mapping) else (None, None)
    if not isinstance(token_id, int) or not isinstance(logprob, (int, float)):
        return None
    return ListedToken(logprob=float(logprob), token_id=token_id)


def _ids_or_empty(value: JSON) -> tuple[int, ...]:
    """Return a list of ids; empty for anything else."""
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(item, int) for item in value):
        return ()
    return tuple(item for item in value if isinstance(item, int))
