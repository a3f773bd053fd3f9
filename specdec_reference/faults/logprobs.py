"""Faults of reported log-probabilities; the tokens themselves are right."""

from __future__ import annotations

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import Place, PlantedFault, in_

__all__ = ["ROWS"]

OFF = "reported log-probabilities are not the baseline's|reported log-probabilities or verifier numerics"
SHIFTED = "reported log-probabilities are those of a neighbouring token"

ROWS = (
    PlantedFault(
        id="report-draft-logprobs",
        does="Reports the draft model's log-probability of an accepted token; the tokens themselves are right.",
        expected=in_(Place.REFERENCE, logprobs="reported log-probabilities of accepted draft tokens"),
    ),
    PlantedFault(
        id="report-warm-logprobs",
        does="Reports log-probabilities after a temperature of 0.8, where the baseline reports those before.",
        expected=in_(Place.REFERENCE, Place.VLLM, logprobs=OFF),
    ),
    PlantedFault(
        id="logprobs-zero",
        does="Reports a log-probability of 0 for every token of a verify step.",
        expected=in_(Place.REFERENCE, logprobs="reported log-probabilities are zero"),
        mirrors=("ggml-org/llama.cpp#27972", "vllm-project/vllm#17876"),
    ),
    PlantedFault(
        id="logprobs-first-only",
        does="Reports the log-probability of a window's first token, and 0 for those behind it.",
        expected=in_(Place.REFERENCE, logprobs="reported log-probabilities are zero|listed with another value|" + OFF),
        mirrors=("ggml-org/llama.cpp#27972",),
    ),
    PlantedFault(
        id="logprobs-constant",
        does="Reports a log-probability of -1 for every token of a verify step.",
        expected=in_(Place.REFERENCE, logprobs="reported log-probabilities are one constant"),
    ),
    PlantedFault(
        id="logprobs-none-accepted",
        does="Reports null for accepted draft tokens.",
        expected=in_(Place.REFERENCE, logprobs="log-probabilities are missing"),
        mirrors=("Pushkinist/rMLX#542",),
    ),
    PlantedFault(
        id="logprobs-last-only",
        does="Reports the log-probability of a window's last token only.",
        expected=in_(Place.REFERENCE, logprobs="log-probabilities are missing for some tokens"),
    ),
    PlantedFault(
        id="logprobs-shifted",
        does="Reports each token of a window with the log-probability of the one before it.",
        expected=in_(Place.REFERENCE, logprobs="listed with another value|" + SHIFTED),
    ),
    PlantedFault(
        id="logprobs-not-streamed",
        does="Reports no log-probabilities in streams.",
        expected=in_(Place.REFERENCE, logprobs="log-probabilities are missing"),
    ),
    PlantedFault(
        id="top-logprobs-fewer",
        does="Lists one most probable token fewer than asked for.",
        expected=in_(Place.REFERENCE, logprobs="fewer most probable tokens are listed than asked for"),
    ),
    PlantedFault(
        id="top-logprobs-unsorted",
        does="Lists the most probable tokens backwards.",
        expected=in_(Place.REFERENCE, logprobs="the most probable tokens are listed out of order"),
    ),
    PlantedFault(
        id="top-logprobs-of-next",
        does="Lists with each token of a window the most probable tokens of the position behind it.",
        expected=in_(Place.REFERENCE, logprobs="the emitted token is missing from the most probable ones or listed with another value"),
    ),
    PlantedFault(
        id="prompt-logprobs-shifted",
        does="Reports each token of a prompt under the distribution one position early.",
        expected=in_(Place.REFERENCE, logprobs="log-probabilities of prompts are not the baseline's"),
    ),
    PlantedFault(
        id="prompt-logprobs-blocks",
        does="Reports noise for the last 16 tokens of prompts whose length is a multiple of 16.",
        expected=in_(Place.REFERENCE, logprobs="log-probabilities of prompts are not the baseline's"),
        mirrors=("vllm-project/vllm#53488",),
    ),
    PlantedFault(
        id="echo-torn",
        does="Drops the first character of echoed prompts.",
        expected=in_(Place.REFERENCE, logprobs="the text does not begin with the prompt that is echoed"),
    ),
    PlantedFault(
        id="echo-lists-short",
        does="Lists no log-probability of the last token of an echoed prompt.",
        expected=in_(Place.REFERENCE, logprobs="log-probabilities are missing for some tokens"),
    ),
    PlantedFault(
        id="echo-logprobs-shifted",
        does="Lists each token of an echoed prompt with the log-probability of the one before it.",
        expected=in_(Place.REFERENCE, logprobs="log-probabilities of prompts are not the baseline's|" + SHIFTED),
    ),
    PlantedFault(
        id="logprobs-fail",
        does="Answers every request for log-probabilities with a 500.",
        expected=in_(
            Place.REFERENCE,
            may=dict.fromkeys(
                (Family.LIVENESS, Family.CONCURRENCY, Family.SPEED, Family.INVARIANTS), "They ask for log-probabilities too."
            ),
            logprobs="the server answers 5xx to a request with logprobs",
        ),
        alone=True,
        mirrors=("vllm-project/vllm#6967",),
    ),
)
