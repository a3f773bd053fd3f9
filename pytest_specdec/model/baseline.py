"""A baseline: thresholds with the samples they came from, and the environment that these were measured in.

A gate is a threshold on a figure, such as the speedup of a speculative variant. Its key says what was measured, by part: ``engine`` with
its version, the checkpoints ``model`` and ``draft``, ``dtype`` and ``flags``, a digest of all arguments.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite

from pytest_specdec.model.golden import GoldenFloor

__all__ = [
    "ACCEPTANCE_LENGTH",
    "BOOT_SD",
    "FIGURES",
    "LAST_RUNS",
    "LEAST_SHARED",
    "MARGIN",
    "NOT_COMPARABLE",
    "SPEEDUP",
    "VERIFY_NOISE",
    "Environment",
    "Gate",
    "MeasuredGate",
    "PromptLength",
    "Slo",
    "StoredBaseline",
    "Variables",
    "stated_boot_sd",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The machine, the engine and the client of a capture."""

    engine: str
    engine_version: str
    model: str
    processor: str
    cores: int
    memory_gib: float
    devices: tuple[str, ...] = ()
    """Accelerators by name, empty without one."""
    driver: str = ""
    """Version of the accelerators' driver; empty without accelerators, and if it was not stored."""
    system: str = ""
    python: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Versions of what the client runs on: openai, numpy, pytest-specdec …"""
    variants: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Of each variant ``model``, ``draft``, ``dtype`` and ``flags``: checkpoints with their digests, and a digest of all arguments."""

    served: Mapping[str, str] = field(default_factory=dict)
    """Name of the model on the server, by arm with an attached server."""

    @property
    def machine(self) -> str:
        """A name of the machine, safe in the names of files.

        Figures of two machines with different names are never compared. The name depends on the accelerators, their number and the
        processor. Without accelerators it depends on the processor, its cores and the memory, in whole GiB.
        """
        # ``host`` is of a machine without accelerators. Its empty devices stay: stored names end in a digest of the list.
        host = [self.processor, self.cores, round(self.memory_gib) if isfinite(self.memory_gib) else None, self.devices]
        facts = json.dumps([self.devices, self.processor] if self.devices else host)
        label = f"{len(self.devices)}x {self.devices[0]}" if self.devices else self.processor or "machine"
        slug = "-".join("".join(c if c.isalnum() else " " for c in label.lower()).split())[:40]
        return f"{slug}-{hashlib.sha256(facts.encode()).hexdigest()[:8]}"

    def key(self, variant: str) -> Mapping[str, str]:
        """Return the conditions of a variant's measurements, apart from the machine.

        The keys are engine with its version, and model, draft, dtype and flags; engine alone for an unknown ``variant``.
        """
        return {"engine": f"{self.engine} {self.engine_version}".strip(), **self.variants.get(variant, {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class Variables:
    """Salted digests of the values of a config's ``${VAR}``."""

    salt: str
    """Hexadecimal, random for every run."""
    digests: Mapping[str, str]
    """By the variable's name, hexadecimal; without those that were not set."""


SPEEDUP = "speedup"
ACCEPTANCE_LENGTH = "acceptance_length"
FIGURES = (SPEEDUP, ACCEPTANCE_LENGTH)
"""Everything that a baseline file can gate."""
VERIFY_NOISE = "verify_noise"
"""Times decode's noise that the verify kernel's may be. A config alone gates it."""
NOT_COMPARABLE = ("model", "draft", "dtype")
"""Parts of an environment's key: figures that differ in one of them are of different things. Another engine version is what is judged."""
LEAST_SHARED = 10
"""Prompts that both runs must have for their accepted lengths to be compared, and that a run must have to be stored."""
BOOT_SD = 0.03
"""Standard deviation of the log of a server's speed from boot to boot, where none is stated; up to five times as much is as likely."""
LAST_RUNS = 10
"""Runs that a floor follows: the last ones of a baseline file."""
MARGIN = 0.05
"""Nats by which a run may be slower than the typical run of a baseline file, beyond chance, before its gate fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLength:
    """The mean accepted length of one request."""

    tokens_per_step: float
    steps: int
    """Verify steps that it is the mean of, of all stored runs."""
    request: str
    """Digest of the request: only what was asked in the same words is compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """One threshold on one figure of one pair, or the stored lengths that it is compared with."""

    figure: str
    """What is gated: ``speedup`` (response tokens per second, speculative over baseline), ``acceptance_length`` or ``verify_noise``."""
    at_least: float | None = None
    at_most: float | None = None
    """The highest value that passes, where less is better; None elsewhere."""
    source: str = ""
    """Where the threshold stands: ``reference.yaml: gates.speedup`` or a baseline file."""
    log_ratios: tuple[float, ...] = ()
    """The measured log-ratios behind it, one per run."""
    log_tokens_per_step: tuple[float, ...] = ()
    """The natural logs of the tokens per verify step in the same runs, where known. They show whether a later run is slower because its
    drafts are accepted less or because its steps take longer."""
    boot_log_ratios: tuple[float, ...] = ()
    """The logs of control over baseline, two boots of one server, one per run: how much boots vary on this machine."""
    boot_sd: float | None = None
    """The standard deviation of the log speed between boots that is assumed before any is measured; None where a config states none."""
    machine: str | None = None
    """The machine it was measured on; None for a floor stated by hand, which holds everywhere."""
    pair: str = ""
    """The variant it was measured on; empty for a floor that holds for all of them."""
    workload: str = ""
    """The workload it was measured on; empty for a floor that holds for all of them."""
    reason: str = ""
    """How the threshold came about."""
    accepted_regression: str = ""
    """Why the last loosening was accepted."""
    key: Mapping[str, str] = field(default_factory=dict)
    """What it was measured with: ``engine``, ``model``, ``draft``, ``dtype``, ``flags``; empty where unknown."""
    digest: str = ""
    """Of the traffic that the lengths were measured under."""
    runs: int = 0
    """Runs that the lengths are pooled from; those of another depth have fewer or more requests."""
    lengths: Mapping[str, PromptLength] = field(default_factory=dict)
    """Stored mean accepted lengths, by request id."""
    changes: tuple[str, ...] = ()
    """Parts of the key that are others in the run under judgement: ``draft model a -> model b``."""
    golden: GoldenFloor | None = None
    """The floor of a golden file that it states, in tokens per step with a draft; None for any other gate."""

    def __str__(self) -> str:
        """Return threshold and source: ``speedup at least 1.3 (reference.yaml:27 gates.speedup)``."""
        threshold = f" {self.threshold}" if self.threshold else ""
        return f"{self.figure.replace('_', ' ')}{threshold} ({self.source or 'no source given'})"

    @property
    def threshold(self) -> str:
        """The threshold in words: ``at least 1.3``; empty without one."""
        if self.at_most is not None:
            return f"at most {self.at_most:g}"
        return "" if self.at_least is None else f"at least {self.at_least:g}"

    @property
    def comparable(self) -> bool:
        """True if the run has the gate's model, draft and dtype.

        Figures are otherwise of different things. Another engine version does not matter here, since it is what a gate judges. Each of
        ``changes``, the parts of the gate's key that differ in the run, begins with the name of its part.
        """
        return not any(change.startswith(f"{part} ") for part in NOT_COMPARABLE for change in self.changes)

    def changed(self, now: Mapping[str, str]) -> tuple[str, ...]:
        """Return the parts of the key with another value in ``now``.

        ``now`` is the variant's :meth:`Environment.key` in the run under judgement. Each part is returned as a text such as
        ``dtype half -> float``. A part is left out if either side has no value for it: it is then unknown whether it changed.
        """
        values = ((part, self.key.get(part, ""), now.get(part, "")) for part in self.key)
        return tuple(f"{part} {before} -> {after}" for part, before, after in values if before and after and before != after)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredGate:
    """One gate of a baseline file, without its figures: what it gates, and what it was measured with."""

    figure: str
    pair: str
    workload: str
    key: Mapping[str, str]
    """As in the gate: ``engine``, ``model``, ``draft``, ``dtype``, ``flags``; empty where unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBaseline:
    """A baseline file as a run found it, by the conditions that its gates were measured under."""

    source: str
    """Folder and file: ``qwen3/1x-nvidia-h200-1a2b3c4d.yaml``."""
    environment: Environment | None
    """That of the run that changed the file last; the key of a gate may be an older run's. None if the file states none
    that this release can read."""
    gates: tuple[MeasuredGate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Latencies that every answer should keep: a service-level objective. It is shown how many do, and nothing is gated on it."""

    ttft_s: float | None = None
    """Seconds to the first token, of reasoning too; None without a limit, as below."""
    tpot_s: float | None = None
    """Seconds per output token after the first."""
    request_s: float | None = None
    """Seconds from sending to the last token."""

    def __str__(self) -> str:
        """Return the limits in words: ``time to first token 500 ms, time per token 50 ms``."""
        limits = {"time to first token": self.ttft_s, "time per token": self.tpot_s, "request": self.request_s}
        return ", ".join(f"{name} {seconds * 1e3:g} ms" for name, seconds in limits.items() if seconds is not None)


def stated_boot_sd(gates: Iterable[Gate]) -> float:
    """Return the standard deviation between boots stated by a gate.

    It tells how the speed of one server varies from boot to boot, as the deviation of its log, in nats. The first gate on the speedup that
    states any counts; BOOT_SD without one.
    """
    return next((gate.boot_sd for gate in gates if gate.figure == SPEEDUP and gate.boot_sd is not None), BOOT_SD)
