"""Replies: what a client is sent, whole or in chunks, in the shapes of OpenAI's API with vLLM's additions."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_specdec.model.workload import Route

if TYPE_CHECKING:
    from collections.abc import Sequence as Several

    from pytest_specdec.model.workload import JSON
    from pytest_specdec.reference.logprobs import Entry
    from pytest_specdec.reference.request import Request
    from pytest_specdec.reference.sequence import Delta, Sequence
    from pytest_specdec.reference.tokenizer import Tokenizer

__all__ = ["Reply", "error"]


def error(status: int, message: str, param: str | None = None) -> dict[str, JSON]:
    """Return the body of a failed request."""
    kind = {400: "BadRequestError", 404: "NotFoundError"}.get(status, "InternalServerError")
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """How one request is answered."""

    route: Route
    model: str
    request: Request
    tokenizer: Tokenizer
    metrics: str
    """``none``, ``summary`` or ``detailed``: what is said of speculation."""
    draft_tokens: int
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, sequences: Several[Sequence]) -> dict[str, JSON]:
        """Return the body for finished sequences."""
        chat = self.route is Route.CHAT
        body = self._head("chat.completion" if chat else "text_completion")
        body["choices"] = [self._choice(sequence) for sequence in sequences]
        body |= self._tail(sequences)
        if chat and self.request.return_token_ids:
            body["prompt_token_ids"] = self.request.prompt
        if chat and self.request.prompt_logprobs is not None:
            body["prompt_logprobs"] = self._prompt_logprobs(sequences[0])
        return body

    def opening(self, sequence: Sequence) -> dict[str, JSON] | None:
        """Return the chunk before any token: chat says who speaks."""
        if self.route is Route.COMPLETIONS:
            return None
        chunk = self._head("chat.completion.chunk")
        delta = {"role": "assistant", "content": ""}
        chunk["choices"] = [{"index": sequence.index, "delta": delta, "logprobs": None, "finish_reason": None}]
        if self.request.return_token_ids:
            chunk["prompt_token_ids"] = self.request.prompt
        return chunk

    def chunk(self, delta: Delta) -> dict[str, JSON]:
        """Return the chunk of one step."""
        chat = self.route is Route.CHAT
        choice: dict[str, JSON] = {"index": delta.sequence.index}
        choice |= {"delta": {"content": delta.text}} if chat else {"text": delta.text}
        choice["logprobs"] = self._logprobs(delta.entries)
        choice |= {"finish_reason": delta.finish_reason, "stop_reason": delta.stop_reason}
        if self.request.return_token_ids:
            choice["token_ids"] = delta.tokens
            if not chat and delta.first:
                choice["prompt_token_ids"] = self.request.prompt
        return self._head("chat.completion.chunk" if chat else "text_completion") | {"choices": [choice]}

    def closing(self, sequences: Several[Sequence]) -> dict[str, JSON]:
        """Return the chunk behind the last token, with the usage."""
        return (
            self._head("chat.completion.chunk" if self.route is Route.CHAT else "text_completion") | {"choices": []} | self._tail(sequences)
        )

    def _head(self, kind: str) -> dict[str, JSON]:
        prefix = "chatcmpl" if self.route is Route.CHAT else "cmpl"
        return {"id": f"{prefix}-{self.id}", "object": kind, "created": self.created, "model": self.model}

    def _tail(self, sequences: Several[Sequence]) -> dict[str, JSON]:
        emitted = sum(len(sequence.emitted) for sequence in sequences)
        prompt = len(self.request.prompt)
        usage = {"prompt_tokens": prompt, "completion_tokens": emitted, "total_tokens": prompt + emitted}
        return {"usage": usage} | self._metrics(sequences)

    def _metrics(self, sequences: Several[Sequence]) -> dict[str, JSON]:
        if self.metrics == "none" or len(sequences) != 1:
            return {}
        drafted, accepted = sequences[0].drafted, sequences[0].accepted
        steps = sum(1 for count in drafted if count)
        lengths = [kept for kept, count in zip(accepted, drafted, strict=True) if count]
        said: dict[str, JSON] = {
            "mean_acceptance_length": 1.0 + sum(accepted) / steps if steps else None,
            "draft_acceptance_rate": sum(accepted) / sum(drafted) if steps else None,
            "acceptance_histogram": [lengths.count(length) for length in range(self.draft_tokens + 1)],
            "num_spec_steps": steps,
            "num_accepted_draft_tokens": sum(accepted),
            "num_draft_tokens": sum(drafted),
            "num_spec_tokens": self.draft_tokens,
        }
        if self.metrics == "detailed":
            said |= {"per_step_accepted": accepted, "per_step_drafted": drafted}
        return {"metrics": {"speculative_decoding": said}}

    def _choice(self, sequence: Sequence) -> dict[str, JSON]:
        text = sequence.text.whole
        choice: dict[str, JSON] = {"index": sequence.index}
        choice |= {"message": {"role": "assistant", "content": text}} if self.route is Route.CHAT else {"text": text}
        choice["logprobs"] = self._logprobs(sequence.entries)
        choice |= {"finish_reason": sequence.finish_reason, "stop_reason": sequence.stop_reason}
        if self.request.return_token_ids:
            choice["token_ids"] = sequence.emitted
        if self.route is Route.COMPLETIONS:
            choice["prompt_token_ids"] = self.request.prompt if self.request.return_token_ids else None
            choice["prompt_logprobs"] = self._prompt_logprobs(sequence)
        return choice

    def _prompt_logprobs(self, sequence: Sequence) -> JSON:
        if self.request.prompt_logprobs is None or sequence.index != 0:
            return None
        return [None, *(self._position(entry) for entry in sequence.prompt_entries)]

    def _position(self, entry: Entry) -> dict[str, JSON]:
        words, own = self.tokenizer.words, entry.token
        said: dict[str, JSON] = {str(own): {"logprob": entry.logprob, "rank": entry.rank, "decoded_token": words[own]}}
        for rank, (token, logprob) in enumerate(entry.top, 1):
            if token != own:
                said[str(token)] = {"logprob": logprob, "rank": rank, "decoded_token": words[token]}
        return said

    def _logprobs(self, entries: Several[Entry]) -> JSON:
        if self.request.logprobs is None:
            return None
        if self.route is Route.CHAT:
            return {"content": [self._spoken(entry) for entry in entries]}
        words = [self._word(entry.token) for entry in entries]
        offsets = [sum(map(len, words[:i])) for i in range(len(words))]
        return {
            "text_offset": offsets,
            "token_logprobs": [entry.logprob for entry in entries],
            "tokens": words,
            "top_logprobs": [
                {self._word(token): logprob for token, logprob in [(entry.token, entry.logprob), *entry.top]} for entry in entries
            ],
        }

    def _spoken(self, entry: Entry) -> dict[str, JSON]:
        return self._one(entry.token, entry.logprob) | {"top_logprobs": [self._one(token, logprob) for token, logprob in entry.top]}

    def _one(self, token: int, logprob: float) -> dict[str, JSON]:
        return {"token": self._word(token), "logprob": logprob, "bytes": list(self.tokenizer.pieces[token])}

    def _word(self, token: int) -> str:
        return f"token_id:{token}" if self.request.tokens_as_ids else self.tokenizer.words[token]
