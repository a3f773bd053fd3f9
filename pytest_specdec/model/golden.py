"""Golden lengths: mean accepted lengths that another project has published, and the floors that a config takes from them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["GoldenFile", "GoldenFloor", "GoldenForm", "GoldenLength", "Thinking"]


class GoldenForm(StrEnum):
    """Forms of files that are read. Both count the bonus token, and only steps with a draft."""

    BY_MODEL = "by model"
    """A file per model and way of drafting, mean lengths by thinking mode and draft tokens, as InferenceX commits them."""
    BY_TEST = "by test"
    """One file for all accuracy tests, mean and lowest length by test, as TensorRT-LLM commits them."""


class Thinking(StrEnum):
    """Whether answers were measured with reasoning."""

    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenLength:
    """One length of a file, in tokens per verify step with a draft, the bonus or recovered token included."""

    name: str
    """Its key in the file: ``qwen3.8-27b.thinking_on.3``, or the id of a test."""
    line: int
    """From 1."""
    length: float | None
    """The mean; None where the file has a lowest length alone."""
    at_least: float | None
    """The lowest length that passes; None where the file has none yet."""
    model: str = ""
    """The model by the file's name for it; empty where the file names none."""
    thinking: Thinking | None = None
    """None where the file does not say."""
    draft_tokens: int = 0
    """Per verify step; 0 where the file does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenFile:
    """A file of golden lengths."""

    name: str
    """Without its folder."""
    form: GoldenForm
    lengths: tuple[GoldenLength, ...]
    method: str = ""
    """The way of drafting, lower case, by the file's name; empty where that names none."""
    draft_model: str = ""
    """Empty where the file names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenFloor:
    """What a golden file asks of one variant, or why it asks nothing."""

    pair: str
    source: str
    """File, line and key; the file alone where nothing in it is for the variant."""
    at_least: float | None = None
    """Tokens per verify step with a draft, the bonus or recovered token included; None where it asks nothing."""
    length: float | None = None
    """The mean in the file; None where it has none."""
    origin: str = ""
    """How the floor follows from the file: ``95% of the mean``."""
    uncompared: tuple[str, ...] = ()
    """Conditions in which the variant may differ from what was measured."""
    reason: str = ""
    """Why it asks nothing; empty for a floor."""

    def __str__(self) -> str:
        """Return the floor with its conditions in one line, or the reason for none."""
        if self.at_least is None:
            return f"NO GOLDEN FLOOR for {self.pair} ({self.source}): {self.reason}"
        return f"golden floor of {self.pair}: {self.at_least:g} tokens per step with a draft, {self.origin} ({self.source}); {self.caveat}"

    @property
    def caveat(self) -> str:
        """The conditions that could not be compared, in words."""
        return f"not compared with the golden file: {', '.join(self.uncompared)}"
