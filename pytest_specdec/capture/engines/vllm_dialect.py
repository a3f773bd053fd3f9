"""The dialect of vLLM's OpenAI server, which the reference engine speaks too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_specdec.capture import counters
from pytest_specdec.capture.engines.protocol import Steps
from pytest_specdec.errors import RequestError
from pytest_specdec.model.score import Position

if TYPE_CHECKING:
    from pytest_specdec.model.transcript import SpecCounters
    from pytest_specdec.model.workload import JSON, Request

__all__ = ["VllmDialect"]


class VllmDialect:
    """``return_token_ids``, ``prompt_logprobs`` and ``metrics.speculative_decoding``."""

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
        choices = reply.get("choices")
        first = choices[0] if isinstance(choices, Sequence) and choices else None
        told = first.get("prompt_logprobs") if isinstance(first, Mapping) else None
        if not isinstance(told, Sequence) or len(told) < len(token_ids):
            what = "the server returned no prompt log-probabilities"
            raise RequestError(what, found=str(told)[:200], expected=f"{len(token_ids)} entries in choices[0].prompt_logprobs")
        return tuple(_position(entry, token, atoms) for entry, token in zip(told[len(told) - len(token_ids) :], token_ids, strict=True))


def _position(entry: JSON, token_id: int, atoms: int) -> Position:
    law = {int(key): value for key, value in entry.items() if isinstance(value, Mapping)} if isinstance(entry, Mapping) else {}
    if token_id not in law:
        what = "a scored token is missing from the prompt log-probabilities"
        raise RequestError(what, found=str(entry)[:200], expected=f'an entry "{token_id}"')
    ranked = sorted(law.items(), key=lambda item: (-_number(item[1].get("logprob")), _number(item[1].get("rank"))))[:atoms]
    return Position(
        token_id=token_id,
        logprob=_number(law[token_id].get("logprob")),
        atom_ids=tuple(token for token, _ in ranked),
        atom_logprobs=tuple(_number(value.get("logprob")) for _, value in ranked),
    )


def _number(value: JSON) -> float:
    return float(value) if isinstance(value, (int, float)) else float("-inf")


def _integers(value: JSON) -> tuple[int, ...] | None:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return None
    return tuple(item for item in value if isinstance(item, int))
