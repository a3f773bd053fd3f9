"""Metrics: counters since boot, under vLLM's names for Prometheus."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class Counters:
    """Counted by the engine's thread, read by the server's."""

    draft_tokens_a_step: int
    """k; 0 on a baseline, which then has no speculation series."""
    prompt_tokens: int = 0
    generation_tokens: int = 0
    """Tokens handed out: what a limit cut off is not in it."""
    running: int = 0
    waiting: int = 0
    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int = 0
    """Those of them that were there."""
    preemptions: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    started_s: float = field(default_factory=time.time)
    """Since 1970."""

    def count_step(self, drafted: int, accepted: int) -> None:
        """Count the draft tokens of one sequence in one verify step.

        They are counted before any limit cuts off accepted ones. A sequence without a draft is not counted.
        """
        if not drafted:
            return
        self.accepted_per_position.extend([0] * (self.draft_tokens_a_step - len(self.accepted_per_position)))
        self.drafts += 1
        self.draft_tokens += drafted
        self.accepted_tokens += accepted
        for position in range(accepted):
            self.accepted_per_position[position] += 1

    def prometheus(self, model_name: str) -> str:
        """Return the text of the /metrics route."""
        label = f'engine="0",model_name="{_escape_label(model_name)}"'
        lines = [
            *_format_series("prompt_tokens_total", "counter", "Prefill tokens processed.", {label: self.prompt_tokens}),
            *_format_series("generation_tokens_total", "counter", "Generation tokens processed.", {label: self.generation_tokens}),
            *_format_series("num_requests_running", "gauge", "Sequences in the batch.", {label: self.running}),
            *_format_series("num_requests_waiting", "gauge", "Sequences that wait for a slot.", {label: self.waiting}),
            *_format_series(
                "prefix_cache_queries_total", "counter", "Prompt tokens looked up in the prefix cache.", {label: self.prefix_queries}
            ),
            *_format_series("prefix_cache_hits_total", "counter", "Prompt tokens found in the prefix cache.", {label: self.prefix_hits}),
            *_format_series(
                "num_preemptions_total", "counter", "Sequences that left the batch for want of blocks.", {label: self.preemptions}
            ),
        ]
        lines += ["# TYPE process_start_time_seconds gauge", f"process_start_time_seconds {self.started_s}"]
        if self.draft_tokens_a_step:
            lines += self._format_speculation(label)
        return "\n".join(lines) + "\n"

    def _format_speculation(self, label: str) -> list[str]:
        """Return the lines of the speculation series."""
        positions = self.accepted_per_position + [0] * (self.draft_tokens_a_step - len(self.accepted_per_position))
        by_position = {f'{label},position="{i}"': count for i, count in enumerate(positions)}
        return [
            *_format_series("spec_decode_num_drafts_total", "counter", "Verify steps with a draft.", {label: self.drafts}),
            *_format_series("spec_decode_num_draft_tokens_total", "counter", "Draft tokens.", {label: self.draft_tokens}),
            *_format_series("spec_decode_num_accepted_tokens_total", "counter", "Accepted draft tokens.", {label: self.accepted_tokens}),
            *_format_series("spec_decode_num_accepted_tokens_per_pos_total", "counter", "Accepted draft tokens by position.", by_position),
        ]


def _format_series(name: str, kind: str, text: str, values: dict[str, int]) -> list[str]:
    """Return the lines of one metric family, ``values`` by label set."""
    family = f"vllm:{name}"
    samples = [f"{family}{{{labels}}} {float(value)}" for labels, value in values.items()]
    return [f"# HELP {family} {text}", f"# TYPE {family} {kind}", *samples]


def _escape_label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
