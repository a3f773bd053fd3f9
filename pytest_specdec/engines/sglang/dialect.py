"""The dialect of SGLang's server: its own names of fields, token ids, the native ``/generate`` for scores, and its counters.

Scores are the server's log-probabilities of tokens in a request, or of the tokens that may follow a prefix, a prompt with an answer's
beginning. In its replies a listed token is ``[log-probability, id, text]``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.engines import top_logprobs
from pytest_specdec.engines.plain_dialect import PlainDialect, total, with_usage
from pytest_specdec.engines.protocol import ApiRequest
from pytest_specdec.engines.top_logprobs import ListedToken
from pytest_specdec.errors import RequestError
from pytest_specdec.model.penalty_window import PenaltyWindow
from pytest_specdec.model.spec_counters import SpecCounters
from pytest_specdec.model.transcript import Position
from pytest_specdec.model.workload import Route

if TYPE_CHECKING:
    from pytest_specdec.engines.server_counts import Traffic
    from pytest_specdec.model.workload import JSON, Request

_GENERATE = "/generate"
_NEUTRAL: Mapping[str, JSON] = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
"""``--sampling-defaults model``, SGLang's own default, takes what a chat request leaves out from the checkpoint's generation config."""
_IDS: Mapping[str, JSON] = {"return_token_ids": True}
_CHAT_IDS: Mapping[str, JSON] = {**_IDS, "return_prompt_token_ids": True}
_STREAMED_CHAT: Mapping[str, JSON] = {"return_output_ids_in_sglext": True, "return_input_ids_in_sglext": True}
"""The fields for a streamed chat, which refuses those of ``_CHAT_IDS``; before 0.5.20 its chunks hold no ids."""
_SAMPLE = re.compile(r"^sglang:(spec_verify_calls|generation_tokens|num_requests)_total(?:\{.*\})?\s+(\S+)", re.MULTILINE)
_MOST = 2**53
"""Prometheus keeps counts as floats, which count up to there."""
_ROUNDING = 1e-3
"""Nats by which a log-probability in half precision may come out above 0."""


class SglangDialect(PlainDialect):
    """The dialect of SGLang 0.5.19 and newer.

    Releases 0.5.17 and 0.5.18 report no counts per answer, older ones no token ids.
    """

    health_path: str | None = "/health"
    version_path: str | None = "/server_info"
    counters_path: str | None = "/metrics"
    chunk_per_step = True
    counters_exact = False
    penalty_window = PenaltyWindow(repetition_prompt=False)
    """All three penalizers cumulate output tokens alone (srt/sampling/penaltylib of 0.5.23)."""

    def __init__(self, *, draft_tokens: int = 0, has_ready_path: bool = False) -> None:
        """Take the most draft tokens per verify step; 0 if unknown.

        ``has_ready_path`` is True if the release has ``/ready``. That is preferred as the health path, since ``/health``
        generates a token and takes a second.
        """
        self._draft_tokens = draft_tokens
        if has_ready_path:
            self.health_path = "/ready"

    def sent(self, request: Request, *, stream: bool) -> Mapping[str, JSON]:
        """Return the body under SGLang's names, asking for token ids.

        Sampling parameters that the request leaves out get neutral values, which leave the distribution as it is, unless it has
        ``server_defaults``. The answer's ids and its speculation counters are asked for, and the prompt's ids in a chat. A
        streamed chat has other fields for ids, and refuses those of a whole one.
        """
        body = {**({} if request.server_defaults else _NEUTRAL), **_rename_fields(request.body, request.route)}
        chat_fields = _STREAMED_CHAT if stream else _CHAT_IDS
        id_fields = chat_fields if request.route is Route.CHAT else _IDS
        return {**body, **id_fields, "return_spec_tokens_details": True, **(with_usage(request) if stream else {})}

    def reply(self, data: Mapping[str, JSON]) -> Mapping[str, JSON]:
        """Return a reply or chunk with a chat's ids as ``token_ids``.

        The client reads the ids of every engine there. SGLang has them in ``response_token_ids`` of a choice, or in the extension
        ``sglext`` of a stream's last chunk, in a list for each choice. That chunk has no choices: it gets one without text for each list.
        """
        extension, choices = data.get("sglext"), data.get("choices")
        if isinstance(extension, Mapping) and not choices and isinstance(ids := extension.get("output_ids"), Sequence):
            streamed = [{"index": index, "delta": {}, "token_ids": token_ids} for index, token_ids in enumerate(ids)]
            return {**data, "choices": streamed, "prompt_token_ids": extension.get("input_ids")}
        if not isinstance(choices, Sequence) or isinstance(choices, str):
            return data
        return {**data, "choices": [_add_token_ids(choice) for choice in choices]}

    def counted(self, reply: Mapping[str, JSON]) -> SpecCounters | None:
        """Return one answer's speculation counters, summed over its choices.

        They are in ``sglext.spec_tokens_details``. An answer of one token, the prefill's, had no verify step and comes
        without details: its counters are 0. Returns None if a longer answer has no details. Raises ValueError for a figure
        in them that is no count.
        """
        extension = reply.get("sglext")
        details = extension.get("spec_tokens_details") if isinstance(extension, Mapping) else None
        if isinstance(details, Mapping):
            return _read_counters(details)
        if isinstance(details, Sequence) and not isinstance(details, str):
            return sum(
                (_read_counters(choice_details) for choice_details in details if isinstance(choice_details, Mapping)), SpecCounters()
            )
        return SpecCounters() if _emitted_tokens(reply) == 1 else None

    def counters(self, text: str) -> SpecCounters | None:
        """Return speculation counters, estimated from the server's totals.

        ``text`` is a Prometheus page. The number of verify steps is exact. Accepted tokens are the generated ones without one per
        verify step and one per request, the prefill's; the sum is a little low, since tokens accepted after an answer's end
        are in no total. Draft tokens are the most that the steps can have. Returns None without the total of generated
        tokens, or if the draft tokens per step are unknown.
        """
        totals: dict[str, int] = {}
        for name, number in _SAMPLE.findall(text):
            totals[name] = totals.get(name, 0) + _count_in_range(number)
        drafts = totals.get("spec_verify_calls", 0)
        if not self._draft_tokens or "generation_tokens" not in totals:
            return None
        accepted = totals["generation_tokens"] - drafts - totals.get("num_requests", 0)
        drafted = drafts * self._draft_tokens
        return SpecCounters(drafts=drafts, draft_tokens=drafted, accepted_tokens=min(max(0, accepted), drafted))

    def traffic(self, text: str) -> Traffic:
        """Return the traffic counters, with SGLang's retractions as preemptions.

        A retracted request gives up its cache and is computed anew later. The counter of retractions appears only with the first
        one. A gauge of a similar name is there from the start, so that the gauge without the counter means 0.
        """
        base_traffic = super().traffic(text)
        retractions, gauge = (total(text, f"num_retracted_{name}") for name in ("requests_total", "reqs"))
        return replace(base_traffic, preemptions=0 if retractions is None and gauge is not None else retractions)

    def scoring(self, prompt_token_ids: Sequence[int], token_ids: Sequence[int], top_tokens: int) -> ApiRequest | None:
        """Return a request to ``/generate`` for the tokens' log-probabilities.

        All tokens are sent as the prompt. Its listed log-probabilities begin at the last token before ``token_ids``, whose
        entry is empty.
        """
        ids = [*prompt_token_ids, *token_ids]
        return _generate_request(ids, top_tokens, temperature=0.0, start=max(0, len(prompt_token_ids) - 1))

    def positions(self, reply: Mapping[str, JSON], token_ids: Sequence[int], top_tokens: int) -> tuple[Position, ...]:
        """Return the distributions in the reply to a scoring request.

        They are the last ``len(token_ids)`` entries of ``input_token_logprobs`` and ``input_top_logprobs`` in
        ``meta_info``. Raises RequestError if there are fewer.
        """
        emitted_entries = _last_entries(reply, "input_token_logprobs", len(token_ids))
        top_entries = _last_entries(reply, "input_top_logprobs", len(token_ids))
        return tuple(
            _read_position(emitted_entry, top_entry, token, top_tokens)
            for emitted_entry, top_entry, token in zip(emitted_entries, top_entries, token_ids, strict=True)
        )

    def continuations(self, prefixes: Sequence[Sequence[int]], top_tokens: int) -> ApiRequest | None:
        """Return a request to ``/generate`` to continue a prefix by one token.

        ``prefixes`` has one prefix, since ``prefixes_per_request`` is 1. The reply lists the ``top_tokens`` most probable tokens after it.
        """
        # Temperature 1 leaves their probabilities as they are; start -1 lists nothing for the prefix's own tokens.
        return _generate_request(prefixes[0], top_tokens, temperature=1.0, start=-1)

    def continued(self, reply: Mapping[str, JSON], token_ids: Sequence[int], top_tokens: int) -> tuple[Position, ...]:
        """Return the distribution after the one prefix of the request.

        ``token_ids`` has one token, the one after that prefix in the scored answer. The distribution is the only list in
        ``meta_info.output_top_logprobs``, since one token was generated. Raises RequestError without one.
        """
        (top_entry,) = _last_entries(reply, "output_top_logprobs", 1)
        listed = [_read_token(entry) for entry in _list_or_empty(top_entry)]
        return (top_logprobs.position(token_ids[0], listed, top_tokens),)


def _rename_fields(body: Mapping[str, JSON], route: Route) -> dict[str, JSON]:
    """Return ``body`` with structured fields under SGLang's names.

    They come in vLLM's form, ``structured_outputs``, and say which answers are allowed. A top-k of 0, which means no truncation
    elsewhere, becomes -1, since SGLang refuses 0.
    """
    renamed = {name: value for name, value in body.items() if name != "structured_outputs"}
    structured = body.get("structured_outputs")
    if isinstance(structured, Mapping):
        renamed.update(_structured_fields(structured, route))
    return {**renamed, **({"top_k": -1} if renamed.get("top_k") == 0 else {})}


def _structured_fields(structured: Mapping[str, JSON], route: Route) -> dict[str, JSON]:
    """Return vLLM's ``structured_outputs`` as fields under SGLang's own names.

    A choice becomes a regular expression, since SGLang has no field for it, and ``json_object`` the schema of any object. A
    schema goes into ``response_format`` of a chat, and into ``json_schema`` of a completion.
    """
    fields: dict[str, JSON] = {}
    if (choice := structured.get("choice")) and isinstance(choice, Sequence):
        fields["regex"] = "(" + "|".join(re.escape(str(option)) for option in choice) + ")"
    for vllm_name, sglang_name in (("regex", "regex"), ("grammar", "ebnf")):
        if vllm_name in structured:
            fields[sglang_name] = structured[vllm_name]
    schema = {"type": "object"} if structured.get("json_object") else structured.get("json")
    if schema is not None:
        schema = json.loads(schema) if isinstance(schema, str) else schema
        response_format: JSON = {"type": "json_schema", "json_schema": {"name": "schema", "schema": schema}}
        fields.update({"response_format": response_format} if route is Route.CHAT else {"json_schema": json.dumps(schema)})
    return fields


def _add_token_ids(choice: JSON) -> JSON:
    """Return a choice with its ``response_token_ids`` as ``token_ids``; unchanged without them."""
    ids = choice.get("response_token_ids") if isinstance(choice, Mapping) else None
    return choice if ids is None or not isinstance(choice, Mapping) else {**choice, "token_ids": ids}


def _read_counters(details: Mapping[str, JSON]) -> SpecCounters:
    """Return the speculation counters in one choice's ``spec_tokens_details``.

    Item n of ``spec_correct_drafts_histogram`` is the number of verify steps that accepted n draft tokens. The n-th draft token was
    accepted in the steps that accepted n or more: items n and later are added up. Raises ValueError for a figure that is no count.
    """
    step_counts = [_check_count(step_count) for step_count in _list_or_empty(details.get("spec_correct_drafts_histogram"))]
    return SpecCounters(
        drafts=_check_count(details.get("spec_verify_ct")),
        draft_tokens=_check_count(details.get("spec_num_proposed_drafts")),
        accepted_tokens=_check_count(details.get("spec_num_correct_drafts")),
        accepted_per_position=tuple(sum(step_counts[position:]) for position in range(1, len(step_counts))),
    )


def _emitted_tokens(reply: Mapping[str, JSON]) -> int | None:
    """Return the tokens of an answer; None if not reported."""
    usage = reply.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
    return tokens if isinstance(tokens, int) else None


def _check_count(value: JSON) -> int:
    """Return ``value``; raise ValueError unless it is a count."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MOST:
        msg = f"counts of speculation hold {str(value)[:100]}, expected a whole number"
        raise ValueError(msg)
    return value


def _count_in_range(number: str) -> int:
    """Return a counter's value; 0 outside the range of counts."""
    value = float(number)
    return round(value) if 0 <= value < _MOST else 0


def _generate_request(ids: Sequence[int], top_tokens: int, *, temperature: float, start: int) -> ApiRequest:
    """Return a request to continue ``ids`` by one token.

    The reply lists the ``top_tokens`` most probable tokens at every token of ``ids`` from index ``start`` on, and at the
    new token; with ``start`` -1 at the new token only.
    """
    sampling: Mapping[str, JSON] = {**_NEUTRAL, "temperature": temperature, "max_new_tokens": 1}
    body: Mapping[str, JSON] = {
        "input_ids": list(ids),
        "sampling_params": sampling,
        "return_logprob": True,
        "logprob_start_len": start,
        "top_logprobs_num": top_tokens,
    }
    return ApiRequest(path=_GENERATE, body=body)


def _last_entries(reply: Mapping[str, JSON], name: str, count: int) -> Sequence[JSON]:
    """Return the last ``count`` entries of a ``meta_info`` list.

    Raises RequestError if there are fewer.
    """
    meta = reply.get("meta_info")
    entries = _list_or_empty(meta.get(name) if isinstance(meta, Mapping) else None)
    if len(entries) < count:
        what = "the server returned no log-probabilities"
        raise RequestError(what, found=str(entries)[:200], expected=f"{count} entries in meta_info.{name}")
    return entries[len(entries) - count :]


def _read_position(emitted_entry: JSON, top_entry: JSON, token_id: int, top_tokens: int) -> Position:
    """Return the next-token distribution at one scored token's place.

    ``emitted_entry`` is the scored token's log-probability, id and text, ``top_entry`` those of the most probable
    tokens. Raises RequestError if the entry is that of another token.
    """
    emitted = _read_token(emitted_entry)
    if emitted.token_id != token_id:
        what = "a scored token is missing from the prompt's log-probabilities"
        raise RequestError(what, found=str(emitted_entry)[:200], expected=f"an entry of token {token_id}")
    ranked = sorted((_read_token(entry) for entry in _list_or_empty(top_entry)), key=lambda token: -token.logprob)[:top_tokens]
    return Position(
        token_id=token_id,
        logprob=emitted.logprob,
        top_ids=tuple(token.token_id for token in ranked if token.token_id is not None),  # it never is: for the type checker
        top_logprobs=tuple(token.logprob for token in ranked),
    )


def _read_token(entry: JSON) -> ListedToken:
    """Return the token in an entry ``[log-probability, id, text]``.

    A log-probability of null stands for minus infinity, which JSON does not have. One in half precision may lie above 0 by its
    rounding. Raises RequestError for any other value that is no log-probability, and without an id.
    """
    values = _list_or_empty(entry)
    logprob, token_id = values[:2] if len(values) > 1 else (0.0, None)
    is_number = isinstance(logprob, (int, float)) and not isinstance(logprob, bool) and logprob <= _ROUNDING
    if not isinstance(token_id, int) or not (logprob is None or is_number):
        what = "the server returned an impossible log-probability"
        raise RequestError(what, found=str(entry)[:200], expected="a number not above 0, and a token id")
    # str() is for the type checker alone.
    return ListedToken(logprob=-math.inf if logprob is None else float(str(logprob)), token_id=token_id)


def _list_or_empty(value: JSON) -> Sequence[JSON]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()
