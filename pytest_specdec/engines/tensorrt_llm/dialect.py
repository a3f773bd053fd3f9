"""The dialect of trtllm-serve: strict bodies, ids or text but not both, tokens named by strings, and counters that a reading empties.

A token's name is its text, decoded alone; several tokens of a vocabulary may have the same. A prefix is a prompt with an answer up to a
token to score: the server continues it by one token, and lists the most probable ones by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from pytest_specdec.engines import json_reply, top_logprobs
from pytest_specdec.engines.checkpoint_tokenizer import CheckpointTokenizer
from pytest_specdec.engines.plain_dialect import PlainDialect, with_usage
from pytest_specdec.engines.protocol import CHAT_COMPLETIONS, COMPLETIONS, ApiRequest
from pytest_specdec.engines.server_counts import Traffic
from pytest_specdec.engines.tensorrt_llm import structured
from pytest_specdec.engines.top_logprobs import ListedToken
from pytest_specdec.errors import RequestError
from pytest_specdec.model.penalty_window import PenaltyWindow
from pytest_specdec.model.spec_counters import SpecCounters
from pytest_specdec.model.workload import Route

if TYPE_CHECKING:
    from pytest_specdec.engines.protocol import Ask
    from pytest_specdec.model.transcript import Position
    from pytest_specdec.model.workload import JSON, Request

_NEUTRAL: Mapping[str, JSON] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
"""Sent wherever a request leaves them out: one without a temperature has been decoded greedily under speculation."""
_CONVERSATION = frozenset({"messages", "add_generation_prompt", "chat_template_kwargs"})
"""Fields of a conversation that are spent when its prompt is made."""
_EITHER_ROUTE = frozenset(
    {
        *("frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias", "logprobs", "top_logprobs", "n", "best_of", "seed"),
        *("max_tokens", "max_completion_tokens", "min_tokens", "ignore_eos", "stop", "stop_token_ids", "include_stop_str_in_output"),
        *("temperature", "top_p", "top_p_min", "top_k", "min_p", "response_format", "stream_options", "skip_special_tokens", "user"),
        "lora_request",
        *structured.FIELDS,
    }
)
"""Fields of a conversation that mean the same in a completion."""
_PREFIXES = 16
"""Prefixes of one request for continuations."""
_MOST_MISSING = 1e-3
"""The probability that may be missing from tokens of one name taken together: a tenth of the least rate that sampling verdicts look for."""
_NUMBER = (int, float)


class TensorRtLlmDialect(PlainDialect):
    """``detokenize: false`` and prompts of token ids, made and read with the checkpoint's own tokenizer.

    Without that tokenizer requests are sent as they are, and answers are texts alone. With it conversations go to the completions route as
    the ids that the checkpoint's chat template makes of them, since replies of the chat route hold no ids; those that ask for what only the
    chat route has (tools, a reasoning effort) go there, and are texts alone.
    """

    health_path: str | None = "/health"
    version_path: str | None = "/version"
    counters_path: str | None = "/metrics"
    counters_drain = True
    chunk_per_step = True
    penalty_window = PenaltyWindow(prompt=True, repetition_prompt=True)
    """All three penalties use one count of prompt and answer.

    Read from kernels/penaltyKernels.cu and _torch/pyexecutor/sampler/ops/penalties.py. There
    ``prompt_ignore_length`` would leave the prompt to repetition; it is not sent.
    """

    def __init__(self, model: str, environ: Mapping[str, str], *, completions_list_tokens: bool) -> None:
        """Take the checkpoint's name or folder, and the server's variables.

        The checkpoint's tokenizer is read from there. ``completions_list_tokens`` is True if the completions route
        reports log-probabilities; before 1.3 only the chat route does.
        """
        self._model = model
        self._environ = environ
        self._completions_list_tokens = completions_list_tokens
        self._loaded_tokenizer: CheckpointTokenizer | None = None
        self._ids_by_prompt: dict[str, tuple[int, ...]] = {}  # by Request.prompt_key, each made when it is first needed
        self.prefixes_per_request = _PREFIXES if completions_list_tokens else 1  # the chat route takes one prompt

    @property
    def _tokenizer(self) -> CheckpointTokenizer | None:
        """The checkpoint's tokenizer; None until it is found.

        Until then each access looks for it again, since the first boot may download the checkpoint.
        """
        self._loaded_tokenizer = self._loaded_tokenizer or CheckpointTokenizer.of(self._model, self._environ)
        return self._loaded_tokenizer

    def path(self, request: Request) -> str:
        """Return the completions route for a prompt sent as ids.

        Any other request goes to its own route.
        """
        return COMPLETIONS if self._prompt_ids(request) else super().path(request)

    def sent(self, request: Request, *, stream: bool) -> Mapping[str, JSON]:
        """Return a request's body under the engine's own names.

        Parameters that the request leaves out get neutral values, which leave the distribution as it is, unless it has
        ``server_defaults``. Structured fields, by which answers are constrained, become ``response_format``, and a top-k of -1
        becomes 0, which is no limit here. The prompt is sent as ids if they are known.
        """
        ids = self._prompt_ids(request)
        neutral = {} if request.server_defaults else _NEUTRAL
        body: dict[str, JSON] = {**neutral, **request.body, **(with_usage(request) if stream else {})}
        if body.get("top_k") == -1:
            body["top_k"] = 0
        body = structured.translate(body)
        return _completion_body(body, ids) if ids else body

    def text(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids; empty without the tokenizer."""
        return self._tokenizer.decode(token_ids) if self._tokenizer else ""

    def prompt_token_ids(self, request: Request, ask: Ask) -> tuple[int, ...]:  # noqa: ARG002 - no route tokenizes
        """Return the ids sent as the prompt."""
        return self._prompt_ids(request)

    def counters(self, text: str) -> SpecCounters | None:
        """Return the speculation counters of iterations since the last reading.

        ``text`` is a JSON list with an object for each iteration, one forward pass for all running requests, whose
        ``specDecodingStats`` are added up. Iterations without draft tokens are left out, since their other figures mean
        nothing. Returns None if ``text`` is no list.
        """
        rows = json_reply.value(text)
        if not isinstance(rows, list):
            return None
        stats = [row["specDecodingStats"] for row in rows if isinstance(row, Mapping) and isinstance(row.get("specDecodingStats"), Mapping)]
        drafting = [row for row in stats if _count_or_zero(row, "numDraftTokens")]
        return SpecCounters(
            drafts=sum(_count_or_zero(row, "numRequestsWithDraftTokens") for row in drafting),
            draft_tokens=sum(_count_or_zero(row, "numDraftTokens") for row in drafting),
            accepted_tokens=sum(_count_or_zero(row, "numAcceptedTokens") for row in drafting),
        )

    def traffic(self, text: str) -> Traffic:
        """Return the requests paused since the last reading, as preemptions.

        ``text`` is a JSON list with an object for each iteration, one forward pass for all running requests. Preemptions are None if no
        iteration has ``inflightBatchingStats``; statistics without paused requests count as 0. Other fields are None.
        """
        batches = [row.get("inflightBatchingStats") for row in _objects_in(json_reply.value(text))]
        paused = [_count_or_zero(batch, "numPausedRequests") for batch in batches if isinstance(batch, Mapping)]
        return Traffic(preemptions=sum(paused) if paused else None)

    def continuations(self, prefixes: Sequence[Sequence[int]], top_tokens: int) -> ApiRequest | None:
        """Return a request to continue each prefix by one token.

        The token is drawn at temperature 1 without truncation, and its reply lists the ``top_tokens`` most probable
        tokens. Before 1.3 only the chat route lists tokens, of one prefix per request: it is sent as ``prompt_token_ids``
        of a chat, whose message is a placeholder. Returns None without the tokenizer, since tokens are listed by text alone.
        """
        if self._tokenizer is None:
            return None
        if self._completions_list_tokens:
            prompts = [list(prefix) for prefix in prefixes]
            # Completions alone have the field `detokenize`: their text is not needed.
            return ApiRequest(
                path=COMPLETIONS, body={**_NEUTRAL, "prompt": prompts, "max_tokens": 1, "logprobs": top_tokens, "detokenize": False}
            )
        conversation: Mapping[str, JSON] = {"messages": [{"role": "user", "content": "-"}], "prompt_token_ids": list(prefixes[0])}
        return ApiRequest(
            path=CHAT_COMPLETIONS, body={**_NEUTRAL, **conversation, "max_tokens": 1, "logprobs": True, "top_logprobs": top_tokens}
        )

    def continued(self, reply: Mapping[str, JSON], token_ids: Sequence[int], top_tokens: int) -> tuple[Position, ...]:
        """Return the distributions in the reply to a continuation request.

        Choice i of ``reply`` lists the tokens after prefix i, by their texts. Raises RequestError if a choice lists none,
        or if its texts leave open which token is meant.
        """
        choices = _objects_in(reply.get("choices"))
        by_index = {choice.get("index"): _named_logprobs(choice.get("logprobs")) for choice in choices}
        return tuple(self._read_position(token, by_index.get(index, ()), top_tokens) for index, token in enumerate(token_ids))

    def _prompt_ids(self, request: Request) -> tuple[int, ...]:
        """Return the ids of a request's prompt, made once per prompt.

        Ids go to the completions route, a chat's too. Returns an empty tuple, so that the request is sent as it is, if the
        tokenizer is not here, or if a chat has a field that only the chat route takes.
        """
        tokenizer = self._tokenizer
        if tokenizer is None or (request.route is Route.CHAT and not request.body.keys() <= _CONVERSATION | _EITHER_ROUTE):
            return ()
        key = request.prompt_key
        if key not in self._ids_by_prompt:
            self._ids_by_prompt[key] = _make_prompt_ids(tokenizer, request)
        return self._ids_by_prompt[key]

    def _read_position(self, token_id: int, names_and_logprobs: Sequence[tuple[str, float]], top_tokens: int) -> Position:
        """Return the next-token distribution at the place of ``token_id``.

        ``names_and_logprobs`` are the listed tokens, named by text, which several tokens of the vocabulary may share. Raises
        RequestError if the list may therefore lack the most probable token, or tokens with the text of ``token_id``.
        """
        tokenizer = self._tokenizer
        assert tokenizer is not None, "nothing is asked for without one"
        # Best first; the server lists the token that it drew too, which is cut off if it is not among the best.
        ranked = sorted(names_and_logprobs, key=lambda pair: -pair[1])[:top_tokens]
        _refuse_list_without_best(ranked, top_tokens)
        listed = [_identify_token(tokenizer, name, logprob) for name, logprob in ranked]
        name = tokenizer.name(token_id)
        _refuse_incomplete_name(name, ranked, len(tokenizer.find_ids(name)), top_tokens)
        return top_logprobs.position(token_id, listed, top_tokens, text=name)


def _make_prompt_ids(tokenizer: CheckpointTokenizer, request: Request) -> tuple[int, ...]:
    """Return the ids of a request's prompt, by the tokenizer.

    A conversation goes through the checkpoint's chat template, with the request's variables for it. A prompt of ids is
    returned as it is. Returns an empty tuple for anything else, and if the template refuses the conversation.
    """
    if request.route is Route.CHAT:
        arguments = request.body.get("chat_template_kwargs")
        template_fields = {name: request.body[name] for name in ("add_generation_prompt",) if name in request.body}
        messages = request.body.get("messages")
        conversation = messages if isinstance(messages, Sequence) else ()
        return tokenizer.encode_chat(conversation, {**(arguments if isinstance(arguments, Mapping) else {}), **template_fields})
    prompt = request.body.get("prompt")
    if isinstance(prompt, str):
        return tokenizer.encode(prompt)
    return tuple(token for token in prompt if isinstance(token, int)) if isinstance(prompt, Sequence) else ()


def _completion_body(body: Mapping[str, JSON], ids: Sequence[int]) -> dict[str, JSON]:
    """Return a completion's body with token ids as its prompt.

    ``body`` may be that of a chat: its messages and what only its template reads are left out, and other fields take the names
    of a completion. The answer comes as ids too.
    """
    fields = {name: value for name, value in body.items() if name not in _CONVERSATION}
    if "max_completion_tokens" in fields:
        fields["max_tokens"] = fields.pop("max_completion_tokens")
    chat_count = fields.pop("top_logprobs", 0)  # a chat has `logprobs` true beside it, a completion the number itself
    requested = fields.pop("logprobs", None)
    if requested is not None and requested is not False:
        list_count = chat_count if requested is True else requested
        # In the OpenAI protocol 0 stands for the emitted token alone, here for no list: 1 is the least that has it.
        fields["logprobs"] = list_count or 1
    return {**fields, "prompt": list(ids), "detokenize": False}


def _identify_token(tokenizer: CheckpointTokenizer, name: str, logprob: float) -> ListedToken:
    """Return a listed token, with its id if unambiguous."""
    tokens = tokenizer.find_ids(name)
    return ListedToken(logprob=logprob, token_id=tokens[0] if len(tokens) == 1 else None, text=name)


def _named_logprobs(logprobs: JSON) -> tuple[tuple[str, float], ...]:
    """Return the first token's list of names and log-probabilities.

    ``logprobs`` is a choice's field. Completions have an object there with tokens' texts as keys, chats a list of
    objects. Returns an empty tuple without a list.
    """
    if not isinstance(logprobs, Mapping):
        return ()
    by_name = next(iter(_objects_in(logprobs.get("top_logprobs"))), None)
    if by_name is not None:
        return tuple((str(name), float(value)) for name, value in by_name.items() if isinstance(value, _NUMBER))
    first_token = next(iter(_objects_in(logprobs.get("content"))), {})
    entries = _objects_in(first_token.get("top_logprobs"))
    return tuple((str(entry.get("token")), float(value)) for entry in entries if isinstance(value := entry.get("logprob"), _NUMBER))


def _refuse_list_without_best(ranked: Sequence[tuple[str, float]], top_tokens: int) -> None:
    """Raise RequestError if the list may lack the most probable token.

    ``ranked`` are names and log-probabilities, best first. The server lists ``top_tokens`` of them in a JSON object, which keeps
    only one of several tokens with the same name. If fewer are left, a lost one may be the best of all. It cannot be if the
    probability missing from the list is at most that of its first token.
    """
    missing_probability = 1.0 - math.fsum(math.exp(logprob) for _, logprob in ranked)
    if ranked and len(ranked) < top_tokens and missing_probability > math.exp(ranked[0][1]):
        _raise_ambiguous(f"{len(ranked)} names, which leave {missing_probability:.1%} of the probability", f"{top_tokens} names")


def _refuse_incomplete_name(name: str, ranked: Sequence[tuple[str, float]], token_count: int, top_tokens: int) -> None:
    """Raise RequestError if the list may lack tokens of a listed name.

    ``name`` is the emitted token's text, and ``token_count`` the number of tokens in the vocabulary with that text.
    ``ranked`` are listed names and log-probabilities, best first, of which ``top_tokens`` were requested. Tokens of one name
    count as one, with the sum of their probabilities. If some are not listed, the sum is too low. That is tolerated if they
    cannot have more than a thousandth together.
    """
    listed_count = sum(listed_name == name for listed_name, _ in ranked)
    if token_count < 2 or not listed_count:  # noqa: PLR2004 - a name of one token is complete, and one without an entry has no sum
        return
    # Two bounds on their probability: what all listed tokens leave, and the most that each unlisted token can have.
    missing_probability = max(0.0, 1.0 - math.fsum(math.exp(logprob) for _, logprob in ranked))
    # In a full list no unlisted token has more than the last listed one; a shorter list may have lost any token of that name.
    most_of_one = math.exp(ranked[-1][1]) if len(ranked) >= top_tokens else 1.0
    if min(missing_probability, (token_count - listed_count) * most_of_one) > _MOST_MISSING:
        _raise_ambiguous(f"{name!r}, the name of {token_count} tokens", "the name of one token")


def _raise_ambiguous(found: str, expected: str) -> NoReturn:
    """Raise RequestError for tokens with the same string."""
    what, remedy = "the server names several tokens by one string", "name a `scorer:` in the config that names tokens by id"
    raise RequestError(what, where=top_logprobs.WHERE, found=found, expected=expected, remedy=remedy)


def _objects_in(value: JSON) -> list[Mapping[str, JSON]]:
    """Return the objects in a list; empty for anything else."""
    entries = value if isinstance(value, Sequence) and not isinstance(value, str) else ()
    return [entry for entry in entries if isinstance(entry, Mapping)]


def _count_or_zero(row: Mapping[str, JSON], name: str) -> int:
    """Return a field's count; 0 for anything else."""
    value = row.get(name)
    return value if isinstance(value, int) and value > 0 else 0
