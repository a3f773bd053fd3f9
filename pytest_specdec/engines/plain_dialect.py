"""The OpenAI protocol and nothing beyond it: no token ids, no counters, no scores. Other dialects begin here.

A dialect writes the requests to an engine's server and reads its replies. Scores are log-probabilities of tokens that are in the request.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_specdec.engines import json_reply
from pytest_specdec.engines.protocol import CHAT_COMPLETIONS, COMPLETIONS, RESPONSES
from pytest_specdec.engines.server_counts import Traffic
from pytest_specdec.errors import RequestError
from pytest_specdec.model.penalty_window import PenaltyWindow
from pytest_specdec.model.workload import Route

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.engines.protocol import ApiRequest, Ask, Get
    from pytest_specdec.engines.server_counts import VerifySteps
    from pytest_specdec.model.spec_counters import SpecCounters
    from pytest_specdec.model.transcript import Position
    from pytest_specdec.model.workload import JSON, Request

__all__ = ["PlainDialect", "owner", "with_usage"]


class PlainDialect:
    """Every member of the protocol's ``Dialect``, for a server of which nothing more is known."""

    health_path: str | None = None
    version_path: str | None = None
    counters_path: str | None = None
    counters_drain = False
    counters_exact = True
    counters_late = False
    prefixes_per_request = 1
    chunk_per_step = False
    closing_event = True
    penalty_window = PenaltyWindow()

    def path(self, request: Request) -> str:
        """Return the path of the request's route."""
        return {Route.CHAT: CHAT_COMPLETIONS, Route.COMPLETIONS: COMPLETIONS, Route.RESPONSES: RESPONSES}[request.route]

    def sent(self, request: Request, *, stream: bool) -> Mapping[str, JSON]:
        """Return the body unchanged, plus a request for stream usage."""
        return {**request.body, **(with_usage(request) if stream else {})}

    def reply(self, data: Mapping[str, JSON]) -> Mapping[str, JSON]:
        """Return the reply unchanged."""
        return data

    def answer(self, request: Request, replies: Sequence[Mapping[str, JSON]]) -> Sequence[Mapping[str, JSON]]:  # noqa: ARG002
        """Return the replies unchanged."""
        return replies

    def text(self, token_ids: Sequence[int]) -> str:  # noqa: ARG002 - replies hold text
        """Return an empty text: replies hold the text already."""
        return ""

    def prompt_token_ids(self, request: Request, ask: Ask) -> tuple[int, ...]:  # noqa: ARG002 - the protocol has no tokenizer
        """Return (): the OpenAI protocol has no tokenizer."""
        return ()

    def version(self, text: str) -> str:
        """Return the field ``version`` of a JSON object; empty without one."""
        version = json_reply.document(text).get("version")
        return version if isinstance(version, str) else ""

    def wrong_build(self, log: str) -> str:  # noqa: ARG002 - the protocol knows no log
        """Return an empty text: any build passes."""
        return ""

    def steps(self, reply: Mapping[str, JSON]) -> VerifySteps | None:  # noqa: ARG002 - the protocol has none
        """Return None: the OpenAI protocol reports no verify steps."""
        return None

    def counted(self, reply: Mapping[str, JSON]) -> SpecCounters | None:
        """Return the counters of the reply's verify steps; None without any."""
        steps = self.steps(reply)
        return steps.counters if steps else None

    def counters(self, text: str) -> SpecCounters | None:  # noqa: ARG002 - as above
        """Return None: the OpenAI protocol has no speculation counters."""
        return None

    def logged(self, text: str) -> SpecCounters | None:  # noqa: ARG002 - as above
        """Return None: the OpenAI protocol knows no log."""
        return None

    def traffic(self, text: str) -> Traffic:
        """Return the traffic counters, those of all clients' requests, in a Prometheus page.

        Apart from a prefix, most engines use the same names for the start of the process, prompt tokens, generated tokens and
        preemptions. A missing one is None.
        """
        return Traffic(
            started_s=_first_value(text, "process_start_time_seconds"),
            prompt_tokens=total(text, "prompt_tokens_total"),
            generated_tokens=total(text, "generation_tokens_total"),
            preemptions=total(text, "num_preemptions_total"),
        )

    def scoring(self, prompt_token_ids: Sequence[int], token_ids: Sequence[int], top_tokens: int) -> ApiRequest | None:  # noqa: ARG002
        """Return None: the OpenAI protocol has no log-probabilities of a prompt."""
        return None

    def positions(self, reply: Mapping[str, JSON], token_ids: Sequence[int], top_tokens: int) -> tuple[Position, ...]:  # noqa: ARG002
        """Raise RequestError: :meth:`scoring` makes no request."""
        return _refuse_scores()

    def continuations(self, prefixes: Sequence[Sequence[int]], top_tokens: int) -> ApiRequest | None:  # noqa: ARG002 - as for scoring
        """Return None: a plain server is not asked to continue prefixes.

        A prefix is a prompt and the beginning of an answer, as token ids. To score its next token, a server has to take ids and to
        list the ``top_tokens`` most probable tokens by id. Engines that can have dialects of their own.
        """
        return None

    def continued(self, reply: Mapping[str, JSON], token_ids: Sequence[int], top_tokens: int) -> tuple[Position, ...]:  # noqa: ARG002
        """Raise RequestError: :meth:`continuations` makes no request."""
        return _refuse_scores()


def with_usage(request: Request) -> dict[str, JSON]:
    """Return the field ``stream_options`` to ask a stream for its usage.

    The stream then ends with a chunk of token counts, unless the request's own stream options say otherwise.
    """
    options = request.body.get("stream_options")
    return {"stream_options": {"include_usage": True, **(options if isinstance(options, Mapping) else {})}}


def owner(get: Get) -> str:
    """Return the owner of the first model in ``/v1/models``.

    Most engines name themselves there. ``get`` returns the text at a path of the server; None without one. Returns an empty
    string without an owner.
    """
    data = json_reply.document(get("/v1/models")).get("data")
    first = data[0] if isinstance(data, list) and data else None
    return str(first.get("owned_by") or "") if isinstance(first, Mapping) else ""


_SAMPLE = r"^(?:\w+:)?{}(?:\{{.*\}})?\s+(\S+)\s*$"


def _series_values(text: str, name: str) -> list[float]:
    """Return the values of a Prometheus series under all its labels.

    ``text`` is the page, and ``name`` the series without the engine's prefix, such as ``vllm:``. Returns an empty list without
    the series, or if one of the values is not a finite number.
    """
    matches = re.findall(_SAMPLE.format(name), text, re.MULTILINE)
    try:
        values = [float(value) for value in matches]
    except ValueError:
        return []
    return values if all(map(math.isfinite, values)) else []


def _first_value(text: str, name: str) -> float | None:
    return next(iter(_series_values(text, name)), None)


def total(text: str, name: str) -> int | None:
    """Return the sum of a Prometheus series; None without it.

    It is summed over all labels. The engine's prefix, such as ``vllm:``, is not part of ``name``.
    """
    values = _series_values(text, name)
    return round(math.fsum(values)) if values else None


def _refuse_scores() -> tuple[Position, ...]:
    """Raise RequestError: the engine serves no scores."""
    what = "the engine serves no distribution at given tokens"
    raise RequestError(what, remedy="name a `scorer:` in the config")
