"""The dialect of vLLM's OpenAI server: its requests beyond the protocol, and its counters.

A scoring request asks for the server's distribution at tokens in its prompt. A continuation request asks for that after a prefix, a prompt
with an answer up to a token to score. A token's name is ``token_id:N``, or its text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.engines import top_logprobs
from pytest_specdec.engines.plain_dialect import PlainDialect, with_usage
from pytest_specdec.engines.protocol import COMPLETIONS, ApiRequest
from pytest_specdec.engines.server_counts import VerifySteps
from pytest_specdec.engines.top_logprobs import ListedToken
from pytest_specdec.engines.vllm import log_metrics
from pytest_specdec.errors import RequestError
from pytest_specdec.model.penalty_window import PenaltyWindow
from pytest_specdec.model.spec_counters import SpecCounters
from pytest_specdec.model.transcript import Position
from pytest_specdec.model.workload import Route

if TYPE_CHECKING:
    from pytest_specdec.engines.protocol import Ask
    from pytest_specdec.model.workload import JSON, Request

METRICS_FLAG = "per-request-spec-decode-metrics"
"""The argument that lets replies hold the verify steps."""
_SAMPLE = re.compile(r"^(\w+):spec_decode_num_(drafts|draft_tokens|accepted_tokens|accepted_tokens_per_pos)_total(?:\{(.*)\})?\s+(\S+)")
_POSITION = re.compile(r'position="(\d{1,3})"')
_MOST = 2**53
"""Prometheus keeps counts as floats, which count up to there."""


def parse(text: str, namespace: str = "vllm") -> SpecCounters | None:
    """Return vLLM's ``spec_decode`` counters, summed over engines and models.

    ``text`` is a Prometheus page. Returns None without the series of verify steps (``num_drafts``), or if a value is not
    a count. A total below 0 is kept, so that the judges report it. ``namespace`` is the prefix of the series: llama.cpp
    counts under the same names.
    """
    try:
        return _parse_counters(text, namespace)
    except (ValueError, OverflowError):  # NaN, infinities, no number at all
        return None


def _parse_counters(text: str, namespace: str) -> SpecCounters | None:
    """Return the counters; None without the series of verify steps.

    A position without a sample counts 0. Raises ValueError or OverflowError for a value that is not a count.
    """
    totals: dict[str, int] = {}
    positions: dict[int, int] = {}
    for name, labels, number in _read_samples(text, namespace):
        value = _parse_count(number)
        totals[name] = totals.get(name, 0) + value
        if name == "accepted_tokens_per_pos" and (match := _POSITION.search(labels)):
            positions[int(match[1])] = positions.get(int(match[1]), 0) + value
    # Before 0.9 verify steps are not counted; before 0.8 the other totals are wrong, added anew at every interval (engine/metrics.py).
    if "drafts" not in totals:
        return None
    return SpecCounters(
        drafts=totals.get("drafts", 0),
        draft_tokens=totals.get("draft_tokens", 0),
        accepted_tokens=totals.get("accepted_tokens", 0),
        accepted_per_position=tuple(positions.get(position, 0) for position in range(max(positions, default=-1) + 1)),
    )


def _read_samples(text: str, namespace: str) -> list[tuple[str, str, str]]:
    """Return the name, labels and value of every counter."""
    matches = (_SAMPLE.match(line) for line in text.splitlines())
    return [(match[2], match[3] or "", match[4]) for match in matches if match and match[1] == namespace]


def _parse_count(number: str) -> int:
    """Return the value of a Prometheus sample as a count.

    It is written as a float, such as ``12.0`` or ``1.5e+06``, and rounded. Raises ValueError for text that is no number,
    for NaN, and for 2**53 or more, up to which floats count exactly.
    """
    value = float(number)
    if not abs(value) < _MOST:
        msg = f"{number} is not a count"
        raise ValueError(msg)
    return round(value)


_UNPROCESSED: Mapping[str, JSON] = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
"""Parameters that change no distribution: log-probabilities after processing, which ``--logprobs-mode`` may ask for, are then those before
it, and a checkpoint's own parameters do not apply."""
_ID_PREFIX = "token_id:"
_NAMES_AS_IDS = "return_tokens_as_token_ids"
_TOKENIZED = {"prompt", "messages", "tools", "chat_template_kwargs"}
"""Fields that ``/tokenize`` takes; special tokens and the beginning of the answer are added by default, as to a completion."""
_ROUNDING = 1e-3
"""Nats by which a log-probability in half precision may come out above 0."""


class VllmDialect(PlainDialect):
    """``return_token_ids``, ``prompt_logprobs``, ``return_tokens_as_token_ids`` and ``metrics.speculative_decoding``."""

    health_path: str | None = "/health"
    version_path: str | None = "/version"
    counters_path: str | None = "/metrics"
    rank_label = "engine"
    chunk_per_step = True
    penalty_window = PenaltyWindow()
    """Presence and frequency take output tokens, repetition the prompt's too (``apply_penalties`` of model_executor/layers/utils.py)."""

    def __init__(self, draft_tokens: int = 0) -> None:
        """Take the draft tokens per verify step; 0 if unknown.

        They serve to work out the number of verify steps from lines of the log that leave it out.
        """
        self._draft_tokens = draft_tokens

    def sent(self, request: Request, *, stream: bool) -> Mapping[str, JSON]:
        """Return the body with token ids asked for.

        A stream is asked for its usage too, since the answer's verify steps come with that chunk.
        """
        return {**request.body, "return_token_ids": True, **(with_usage(request) if stream else {})}

    def prompt_token_ids(self, request: Request, ask: Ask) -> tuple[int, ...]:
        """Return the token ids of a request's prompt.

        vLLM's own replies hold the ids; the replies of another engine, for which vLLM is the scorer, may not. A text or a chat is sent to
        the server's ``/tokenize``. The result is empty if that fails. Raises ValueError if the reply's list has anything but ids.
        """
        prompt = request.body.get("prompt")
        if isinstance(prompt, Sequence) and not isinstance(prompt, str):
            # Token ids already: a prompt that is a list has nothing else in it, and the test is for the type checker.
            return tuple(token for token in prompt if isinstance(token, int))
        body = {name: value for name, value in request.body.items() if name in _TOKENIZED}
        reply = ask(ApiRequest(path="/tokenize", body=body)) or {}  # None if the route fails
        return _read_whole_numbers(reply.get("tokens")) or ()

    def steps(self, reply: Mapping[str, JSON]) -> VerifySteps | None:
        """Return the verify steps in a reply's ``metrics.speculative_decoding``.

        Servers of 0.30 and later report them under ``--per-request-spec-decode-metrics detailed``. An answer without a
        draft has no lists there, only ``num_spec_steps`` 0: it has no steps. Returns None without such metrics.
        """
        metrics = reply.get("metrics")
        steps = metrics.get("speculative_decoding") if isinstance(metrics, Mapping) else None
        if not isinstance(steps, Mapping):
            return None
        step_lists = steps.get("per_step_accepted"), steps.get("per_step_drafted")
        if step_lists == (None, None) and steps.get("num_spec_steps") == 0:
            return VerifySteps(accepted=(), drafted=())
        accepted, drafted = map(_read_whole_numbers, step_lists)
        if accepted is None or drafted is None:
            return None
        return VerifySteps(accepted=accepted, drafted=drafted)

    def counters(self, text: str) -> SpecCounters | None:
        """Return the ``vllm:spec_decode_num_*`` counters; None without any."""
        return parse(text)

    def logged(self, text: str) -> SpecCounters | None:
        """Return the counters in the log's lines of statistics; None without any."""
        return log_metrics.logged_counters(text, self._draft_tokens)

    def scoring(self, prompt_token_ids: Sequence[int], token_ids: Sequence[int], top_tokens: int) -> ApiRequest | None:
        """Return a request for the log-probabilities of a prompt.

        The prompt has ``token_ids`` at its end, so that they are scored with it. The one new token is not used: a
        completion has at least one.
        """
        prompt = [*prompt_token_ids, *token_ids]
        return ApiRequest(path=COMPLETIONS, body={"prompt": prompt, "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": top_tokens})

    def positions(self, reply: Mapping[str, JSON], token_ids: Sequence[int], top_tokens: int) -> tuple[Position, ...]:
        """Return the distributions in the reply to a scoring request.

        They are the last ``len(token_ids)`` entries of ``choices[0].prompt_logprobs``. Raises RequestError if there are
        fewer, or if an entry lacks its token.
        """
        entries = _first_choice(reply).get("prompt_logprobs")
        if not isinstance(entries, Sequence) or len(entries) < len(token_ids):
            what = "the server returned no prompt log-probabilities"
            raise RequestError(what, found=str(entries)[:200], expected=f"{len(token_ids)} entries in choices[0].prompt_logprobs")
        scored_entries = entries[len(entries) - len(token_ids) :]
        return tuple(_read_position(entry, token, top_tokens) for entry, token in zip(scored_entries, token_ids, strict=True))

    def continuations(self, prefixes: Sequence[Sequence[int]], top_tokens: int) -> ApiRequest | None:
        """Return a request to continue a prefix by one token.

        ``prefixes`` has one prefix, since ``prefixes_per_request`` is 1. The reply lists the ``top_tokens`` most probable tokens
        after it, named by id. Its sampling parameters change no probability.
        """
        list_fields: Mapping[str, JSON] = {"logprobs": top_tokens, _NAMES_AS_IDS: True}
        return ApiRequest(path=COMPLETIONS, body={"prompt": list(prefixes[0]), "max_tokens": 1, **_UNPROCESSED, **list_fields})

    def continued(self, reply: Mapping[str, JSON], token_ids: Sequence[int], top_tokens: int) -> tuple[Position, ...]:
        """Return the distribution after the one prefix of the request.

        ``token_ids`` has one token, the one after that prefix in the scored answer. Raises RequestError if the reply lists no
        log-probabilities.
        """
        listed = _read_listed_tokens(_first_choice(reply).get("logprobs"))
        return (top_logprobs.position(token_ids[0], listed, top_tokens),)


class GuidedDialect(VllmDialect):
    """Releases before 0.11: grammars come in ``guided_*`` fields, and ``structured_outputs`` is left unread."""

    def sent(self, request: Request, *, stream: bool) -> Mapping[str, JSON]:
        """Return the body with grammars in the fields that these releases know."""
        return _guided_fields(super().sent(request, stream=stream))


class NamedTokensDialect(VllmDialect):
    """Releases before 0.10.2: token ids come as names in the log-probabilities of answers, under ``--return-tokens-as-token-ids``.

    Those before 0.6.5 refuse fields that they do not know. Before 0.9 the counters are lines of the log, written every five to ten seconds.
    """

    counters_late = True

    def sent(self, request: Request, *, stream: bool) -> Mapping[str, JSON]:
        """Return the body with log-probabilities, since they bring the ids.

        Chats ask for them by true, completions by a number of further tokens; a request's own value stays. Structured fields
        get the names that these releases know.
        """
        default: JSON = True if request.route is Route.CHAT else 0
        requested = request.body.get("logprobs")
        logprobs = default if requested is None or requested is False else requested
        stream_options = with_usage(request) if stream else {}
        return {**_guided_fields(request.body), "logprobs": logprobs, **stream_options}

    def reply(self, data: Mapping[str, JSON]) -> Mapping[str, JSON]:
        """Return a reply with ``token_ids`` added to its choices.

        The ids are read out of the names of each choice's tokens.
        """
        choices = data.get("choices")
        if not isinstance(choices, Sequence) or isinstance(choices, str):
            return data
        return {**data, "choices": [_add_token_ids(choice) if isinstance(choice, Mapping) else choice for choice in choices]}

    def continuations(self, prefixes: Sequence[Sequence[int]], top_tokens: int) -> ApiRequest | None:
        """Return the request without ``return_tokens_as_token_ids``, unknown to these releases.

        The server is started with the flag of that name instead.
        """
        request = super().continuations(prefixes, top_tokens)
        if request is None:
            return None
        return replace(request, body={name: value for name, value in request.body.items() if name != _NAMES_AS_IDS})


def _guided_fields(body: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return ``body`` with ``structured_outputs`` as ``guided_*`` fields.

    These releases do not know ``structured_outputs``.
    """
    structured = body.get("structured_outputs")
    guided = {f"guided_{kind}": value for kind, value in structured.items()} if isinstance(structured, Mapping) else {}
    return {**{name: value for name, value in body.items() if name != "structured_outputs"}, **guided}


def _add_token_ids(choice: Mapping[str, JSON]) -> Mapping[str, JSON]:
    """Return a choice with ``token_ids``, read from its tokens' names.

    Returns the choice unchanged if a name holds no id.
    """
    names = list(_token_names(choice.get("logprobs")))
    ids = [_read_token(name, None).token_id for name in names]
    return {**choice, "token_ids": ids} if names and None not in ids else choice


def _token_names(logprobs: JSON) -> Iterator[str]:
    """Yield the names of an answer's tokens.

    ``logprobs`` is a choice's field, with a list of names in completions, and of objects in chats. Yields nothing without
    either.
    """
    if isinstance(logprobs, Mapping):
        for key in ("tokens", "content"):
            tokens = logprobs.get(key)
            for token in tokens if isinstance(tokens, Sequence) and not isinstance(tokens, str) else ():
                yield str(token.get("token") if isinstance(token, Mapping) else token)


def _first_choice(reply: Mapping[str, JSON]) -> Mapping[str, JSON]:
    """Return the first choice of a reply; empty without one."""
    choices = reply.get("choices")
    first = choices[0] if isinstance(choices, Sequence) and choices else None
    return first if isinstance(first, Mapping) else {}


def _read_listed_tokens(logprobs: JSON) -> list[ListedToken]:
    """Return the tokens listed for the first token of a choice.

    ``logprobs`` is a choice's field. In completions the list is an object by name, in chats a list of objects. Returns
    an empty list without any.
    """
    if not isinstance(logprobs, Mapping):
        return []
    top, content = logprobs.get("top_logprobs"), logprobs.get("content")
    if isinstance(top, Sequence) and top and isinstance(top[0], Mapping):
        return [_read_token(name, value) for name, value in top[0].items()]
    entry = content[0] if isinstance(content, Sequence) and content else None
    tokens = entry.get("top_logprobs") if isinstance(entry, Mapping) else None
    token_objects = [token for token in tokens if isinstance(token, Mapping)] if isinstance(tokens, Sequence) else []
    return [_read_token(str(token.get("token")), token.get("logprob")) for token in token_objects]


def _read_token(name: str, logprob: JSON) -> ListedToken:
    """Return a listed token, named ``token_id:N`` or by its text."""
    id_text = name.removeprefix(_ID_PREFIX)
    is_id = name.startswith(_ID_PREFIX) and id_text.isdecimal()
    return ListedToken(logprob=_read_logprob(logprob), token_id=int(id_text) if is_id else None, text="" if is_id else name)


def _read_position(entry: JSON, token_id: int, top_tokens: int) -> Position:
    """Return the distribution in one entry of ``prompt_logprobs``.

    The server adds the scored token to the most probable ones, so that only ``top_tokens`` of them count as listed.
    Tokens of the same log-probability are in the order of the server's ranks. Raises RequestError if the entry lacks
    ``token_id``, or for an impossible log-probability.
    """
    distribution = {int(key): value for key, value in entry.items() if isinstance(value, Mapping)} if isinstance(entry, Mapping) else {}
    if token_id not in distribution:
        what = "a scored token is missing from the prompt log-probabilities"
        raise RequestError(what, found=str(entry)[:200], expected=f'an entry "{token_id}"')
    logprobs = {token: _read_logprob(value.get("logprob")) for token, value in distribution.items()}
    ranks = {token: _rank_or_last(value.get("rank")) for token, value in distribution.items()}
    top_ids = sorted(logprobs, key=lambda token: (-logprobs[token], ranks[token]))[:top_tokens]
    return Position(
        token_id=token_id,
        logprob=logprobs[token_id],
        top_ids=tuple(top_ids),
        top_logprobs=tuple(logprobs[token] for token in top_ids),
    )


def _read_logprob(value: JSON) -> float:
    """Return a log-probability; null stands for probability 0.

    A value may lie above 0 by the rounding of half precision. Raises RequestError for anything else.
    """
    if value is None:
        return -math.inf
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value <= _ROUNDING:
        what = "the server returned an impossible log-probability"
        raise RequestError(what, found=str(value)[:200], expected="a number not above 0")
    return float(value)


def _rank_or_last(value: JSON) -> float:
    return float(value) if isinstance(value, (int, float)) else math.inf


def _read_whole_numbers(value: JSON) -> tuple[int, ...] | None:
    """Return a list of counts or token ids; None for anything but a list.

    Raises ValueError if the list holds anything but whole numbers from 0 on.
    """
    if isinstance(value, str) or not isinstance(value, Sequence):
        return None
    counts = tuple(item for item in value if isinstance(item, int) and not isinstance(item, bool) and item >= 0)
    if len(counts) < len(value):
        msg = f"verify steps of {str(value)[:100]}, expected counts"
        raise ValueError(msg)
    return counts
