"""Planted faults of reported log-probabilities, for suites to detect; the tokens themselves are right.

Each wraps the method named by its decorator. ``hand_out`` takes a step's logits to report, row after row from ``starts`` on; an entry of
``entries`` is one token of a verified window, accepted draft tokens first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import Place, fault, in_

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from specdec_reference.openai_request import EngineRequest
    from specdec_reference.rejection_sampler import DraftProposal, VerifyWindows
    from specdec_reference.sampler import Entry
    from specdec_reference.sequence import Delta, RunningSequence

HandOut: TypeAlias = "Callable[[DraftProposal, VerifyWindows, NDArray[np.float32]], list[Delta]]"
_NO_MASS: Final = 1e-30
"""Stands for a probability of 0, of which JSON has no logarithm."""
_WARM: Final = 0.8
_OFF_BY: Final = 0.4
_BLOCK: Final = 16
OFF = "reported log-probabilities are not the baseline's|reported log-probabilities or verifier numerics"
SHIFTED = "reported log-probabilities are those of a neighbouring token"


@fault(around="batch.hand_out", expected=in_(Place.REFERENCE, logprobs="reported log-probabilities of accepted draft tokens"))
def report_draft_logprobs(hand_out: HandOut, draft: DraftProposal, windows: VerifyWindows, logits: NDArray[np.float32]) -> list[Delta]:
    """Reports the draft model's log-probability of an accepted token; the tokens themselves are right."""
    rows = np.repeat(np.arange(len(draft.counts)), windows.accepted)  # of each accepted token
    positions = np.concatenate([np.arange(accepted) for accepted in windows.accepted])  # in its row's draft
    reported = logits.copy()
    # A softmax turns the logarithms back into the draft's probabilities.
    reported[draft.starts[rows] + positions] = np.log(np.maximum(draft.distribution(rows, positions, logits.shape[1]), _NO_MASS))
    return hand_out(draft, windows, reported)


@fault(around="batch.hand_out", expected=in_(Place.REFERENCE, Place.VLLM, logprobs=OFF))
def report_warm_logprobs(hand_out: HandOut, draft: DraftProposal, windows: VerifyWindows, logits: NDArray[np.float32]) -> list[Delta]:
    """Reports log-probabilities after a temperature of 0.8, where the baseline reports those before."""
    return hand_out(draft, windows, logits / np.float32(_WARM))


@fault(after="batch.report", expected=in_(Place.REFERENCE, logprobs="reported log-probabilities of bonus tokens|" + OFF))
def bonus_logprobs_off(entries: list[Entry], row: RunningSequence) -> list[Entry]:
    """Reports log-probabilities 0.4 nats too low for bonus tokens and their lists; the tokens themselves are right."""
    if not row.drafted[-1] or len(entries) <= row.drafted[-1]:  # no draft, or one not fully accepted: no bonus token
        return entries
    bonus = entries[-1]
    lowered = tuple((token, logprob - _OFF_BY) for token, logprob in bonus.top)
    return [*entries[:-1], replace(bonus, logprob=bonus.logprob - _OFF_BY, top=lowered)]


@fault(
    after="batch.report",
    expected=in_(Place.REFERENCE, logprobs="reported log-probabilities are zero"),
    mirrors=("ggml-org/llama.cpp#27972", "vllm-project/vllm#17876"),
)
def logprobs_zero(entries: list[Entry]) -> list[Entry]:
    """Reports a log-probability of 0 for every token of a verify step."""
    return [replace(entry, logprob=0.0) for entry in entries]


@fault(
    after="batch.report",
    expected=in_(Place.REFERENCE, logprobs="reported log-probabilities are zero|listed with another value|" + OFF),
    mirrors=("ggml-org/llama.cpp#27972",),
)
def logprobs_first_only(entries: list[Entry]) -> list[Entry]:
    """Reports the log-probability of a window's first token, and 0 for those after it."""
    return [*entries[:1], *(replace(entry, logprob=0.0) for entry in entries[1:])]


@fault(after="batch.report", expected=in_(Place.REFERENCE, logprobs="reported log-probabilities are one constant"))
def logprobs_constant(entries: list[Entry]) -> list[Entry]:
    """Reports a log-probability of -1 for every token of a verify step."""
    return [replace(entry, logprob=-1.0) for entry in entries]


@fault(after="batch.report", expected=in_(Place.REFERENCE, logprobs="log-probabilities are missing"), mirrors=("Pushkinist/rMLX#542",))
def logprobs_none_accepted(entries: list[Entry]) -> list[Entry]:
    """Reports null for accepted draft tokens."""
    return [*(replace(entry, logprob=None) for entry in entries[:-1]), *entries[-1:]]  # type: ignore[arg-type]


@fault(after="batch.report", expected=in_(Place.REFERENCE, logprobs="log-probabilities are missing for some tokens"))
def logprobs_last_only(entries: list[Entry]) -> list[Entry]:
    """Reports the log-probability of a window's last token only."""
    return entries[-1:]


@fault(after="batch.report", expected=in_(Place.REFERENCE, logprobs="listed with another value|" + SHIFTED))
def logprobs_shifted(entries: list[Entry]) -> list[Entry]:
    """Reports each token of a window with the log-probability of the one before it."""
    return [replace(entry, logprob=previous.logprob) for entry, previous in zip(entries, [*entries[-1:], *entries[:-1]], strict=True)]


@fault(after="batch.report", expected=in_(Place.REFERENCE, logprobs="log-probabilities are missing"))
def logprobs_not_streamed(entries: list[Entry], row: RunningSequence) -> list[Entry]:
    """Reports no log-probabilities in streams."""
    return [] if row.request.stream else entries


@fault(after="batch.report", expected=in_(Place.REFERENCE, logprobs="fewer most probable tokens are listed than asked for"))
def top_logprobs_fewer(entries: list[Entry]) -> list[Entry]:
    """Lists one most probable token fewer than asked for."""
    return [replace(entry, top=entry.top[:-1]) for entry in entries]


@fault(after="batch.report", expected=in_(Place.REFERENCE, logprobs="the most probable tokens are listed out of order"))
def top_logprobs_unsorted(entries: list[Entry]) -> list[Entry]:
    """Lists the most probable tokens backwards."""
    return [replace(entry, top=entry.top[::-1]) for entry in entries]


@fault(
    after="batch.report",
    expected=in_(Place.REFERENCE, logprobs="the emitted token is missing from the most probable ones or listed with another value"),
)
def top_logprobs_of_next(entries: list[Entry]) -> list[Entry]:
    """Lists with each token of a window the most probable tokens of the position after it."""
    return [replace(entry, top=following.top) for entry, following in zip(entries, [*entries[1:], *entries[-1:]], strict=True)]


@fault(after="batch.prompt_logits", expected=in_(Place.REFERENCE, logprobs="log-probabilities of prompts are not the baseline's"))
def prompt_logprobs_shifted(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Reports each token of a prompt under the distribution one position early."""
    return np.concatenate([logits[:1], logits[:-1]])


@fault(
    after="batch.prompt_logits",
    expected=in_(Place.REFERENCE, logprobs="log-probabilities of prompts are not the baseline's"),
    mirrors=("vllm-project/vllm#53488",),
)
def prompt_logprobs_blocks(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Reports noise for the last 16 tokens of prompts whose length is a multiple of 16."""
    if (len(logits) + 1) % _BLOCK:
        return logits
    return np.concatenate([logits[:-_BLOCK], -logits[-_BLOCK:]])


def _find_echoing_choice(body: dict[str, Any]) -> dict[str, Any] | None:
    """Return the first choice of an answer that echoes its prompt; None for others.

    With an echo the first log-probability is null: nothing comes before the prompt's first token.
    """
    choice = body["choices"][0] if body["choices"] else {}
    logprobs = choice.get("logprobs") or {}
    return choice if (logprobs.get("token_logprobs") or [0.0])[0] is None else None


@fault(
    after=("response.whole", "response.closing"),
    expected=in_(Place.REFERENCE, logprobs="the text does not begin with the prompt that is echoed"),
)
def echo_torn(body: dict[str, Any]) -> dict[str, Any]:
    """Drops the first character of echoed prompts."""
    if (choice := _find_echoing_choice(body)) is not None:
        choice["text"] = choice["text"][1:]
    return body


@fault(
    after=("response.whole", "response.closing"), expected=in_(Place.REFERENCE, logprobs="log-probabilities are missing for some tokens")
)
def echo_lists_short(body: dict[str, Any]) -> dict[str, Any]:
    """Lists no log-probability of the last token of an echoed prompt."""
    if (choice := _find_echoing_choice(body)) is not None:
        for reported in choice["logprobs"].values():  # lists with an entry for each token, the prompt's first
            del reported[body["usage"]["prompt_tokens"] - 1]
    return body


@fault(
    after=("response.whole", "response.closing"),
    expected=in_(Place.REFERENCE, logprobs="log-probabilities of prompts are not the baseline's|" + SHIFTED),
)
def echo_logprobs_shifted(body: dict[str, Any]) -> dict[str, Any]:
    """Lists each token of an echoed prompt with the log-probability of the one before it."""
    if (choice := _find_echoing_choice(body)) is not None:
        values, prompt_tokens = choice["logprobs"]["token_logprobs"], body["usage"]["prompt_tokens"]
        values[2:prompt_tokens] = values[1 : prompt_tokens - 1]  # values[0] is null
    return body


@fault(
    before="engine.sequences",
    expected=in_(
        Place.REFERENCE,
        may=dict.fromkeys((Family.LIVENESS, Family.CONCURRENCY, Family.SPEED, Family.INVARIANTS), "They ask for log-probabilities too."),
        logprobs="the server answers 5xx to a request with logprobs",
    ),
    alone=True,
    mirrors=("vllm-project/vllm#6967",),
)
def logprobs_fail(request: EngineRequest) -> None:
    """Answers every request for log-probabilities with a 500."""
    if request.logprobs is not None:
        msg = "unsupported operand type(s) for +: 'NoneType' and 'float'"
        raise TypeError(msg)


@fault(
    before="engine.sequences",
    expected=in_(Place.REFERENCE, logprobs="the server answers 5xx to a request with"),
    alone=True,
    mirrors=("vllm-project/vllm#30059",),
)
def logprobs_without_list_fail(request: EngineRequest) -> None:
    """Answers a request for log-probabilities without a list of the most probable tokens with a 500."""
    if request.logprobs == 0:
        msg = "list index out of range"
        raise IndexError(msg)
