"""The dialect of vLLM's OpenAI server, which the reference engine speaks too."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_specdec.capture import counters, listing
from pytest_specdec.capture.engines.protocol import Steps
from pytest_specdec.capture.listing import Listed
from pytest_specdec.errors import RequestError
from pytest_specdec.model.score import Position

if TYPE_CHECKING:
    from pytest_specdec.model.transcript import SpecCounters
    from pytest_specdec.model.workload import JSON, Request

__all__ = ["VllmDialect"]

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

    def steps(self, reply: Mapping[str, JSON]) -> Steps | None:
        """Read ``metrics.speculative_decoding`` of ``--per-request-spec-decode-metrics detailed`` (vLLM 0.30 and later)."""
        metrics = reply.get("metrics")
        told = metrics.get("speculative_decoding") if isinstance(metrics, Mapping) else None
        if not isinstance(told, Mapping):
            return None
        accepted, drafted = _integers(told.get("per_step_accepted")), _integers(told.get("per_step_drafted"))
        if accepted is None or drafted is None:
            return None
        return Steps(accepted=accepted, drafted=drafted)

    def counters(self, text: str) -> SpecCounters | None:
        """Read the ``vllm:spec_decode_num_*`` series."""
        return counters.parse(text)

    def scoring_body(self, prompt_token_ids: Sequence[int], token_ids: Sequence[int], atoms: int) -> Mapping[str, JSON]:
        """Ask for one token, which is thrown away: the law at a prompt's tokens comes with the prompt."""
        prompt = [*prompt_token_ids, *token_ids]
        return {"prompt": prompt, "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": atoms}

    def positions(self, reply: Mapping[str, JSON], token_ids: Sequence[int], atoms: int) -> tuple[Position, ...]:
        """Read the last ``len(token_ids)`` entries of ``choices[0].prompt_logprobs``."""
        told = _first(reply).get("prompt_logprobs")
        if not isinstance(told, Sequence) or len(told) < len(token_ids):
            what = "the server returned no prompt log-probabilities"
            raise RequestError(what, found=str(told)[:200], expected=f"{len(token_ids)} entries in choices[0].prompt_logprobs")
        return tuple(_position(entry, token, atoms) for entry, token in zip(told[len(told) - len(token_ids) :], token_ids, strict=True))

    def continuation_body(self, prefix: Sequence[int], atoms: int) -> Mapping[str, JSON]:
        """Ask for one token at temperature 1, untruncated, with the most probable ones by id."""
        named: Mapping[str, JSON] = {"logprobs": atoms, "return_tokens_as_token_ids": True}
        return {"prompt": list(prefix), "max_tokens": 1, **_AS_IT_IS, **named}

    def position(self, reply: Mapping[str, JSON], token_id: int, atoms: int) -> Position:
        """Read the first token's list out of ``choices[0].logprobs``."""
        return listing.position(token_id, _listed(_first(reply).get("logprobs")), atoms)


def _first(reply: Mapping[str, JSON]) -> Mapping[str, JSON]:
    choices = reply.get("choices")
    first = choices[0] if isinstance(choices, Sequence) and choices else None
    return first if isinstance(first, Mapping) else {}


def _listed(told: JSON) -> list[Listed]:
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


def _token(name: str, logprob: JSON) -> Listed:
    number = name.removeprefix(_BY_ID)
    is_id = name.startswith(_BY_ID) and number.isdecimal()
    return Listed(logprob=_logprob(logprob), token_id=int(number) if is_id else None, text="" if is_id else name)


def _position(entry: JSON, token_id: int, atoms: int) -> Position:
    law = {int(key): value for key, value in entry.items() if isinstance(value, Mapping)} if isinstance(entry, Mapping) else {}
    if token_id not in law:
        what = "a scored token is missing from the prompt log-probabilities"
        raise RequestError(what, found=str(entry)[:200], expected=f'an entry "{token_id}"')
    ranked = sorted(law.items(), key=lambda item: (-_logprob(item[1].get("logprob")), _rank(item[1].get("rank"))))[:atoms]
    return Position(
        token_id=token_id,
        logprob=_logprob(law[token_id].get("logprob")),
        atom_ids=tuple(token for token, _ in ranked),
        atom_logprobs=tuple(_logprob(value.get("logprob")) for _, value in ranked),
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
