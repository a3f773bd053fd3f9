"""A config: one engine, its baseline, and the variants to be held against it.

An arm is one of the servers compared: the baseline, which does not speculate, or a variant, which does. An attached server runs already
and is reached by an address; others are started here. ``${VAR}`` is a variable of the environment, filled in at launch.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.files import yaml
from pytest_specdec.model.plan import Placement
from pytest_specdec.model.upgrade_gates import UpgradeGates

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import date

    from pytest_specdec.files.yaml import KeyPath, YamlDocument
    from pytest_specdec.model.baseline import Gate, Slo
    from pytest_specdec.model.event import EventStep
    from pytest_specdec.model.golden import Thinking
    from pytest_specdec.model.workload import JSON, Family


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """Settings of one arm, or of timed workloads, laid over those of ``engine``."""

    args: Mapping[str, JSON] = field(default_factory=dict)
    """By flag name without dashes; null takes an argument of ``engine`` out."""
    env: Mapping[str, str] = field(default_factory=dict)
    url: str | None = None
    """The address of a server that runs already; laid over ``engine.url``."""
    metrics_url: tuple[str, ...] = ()
    """Addresses of its counters, one for each rank; laid over ``engine.metrics_url``, and empty for its own."""
    served_as: str | None = None
    """The name that the server lists its model under; laid over ``engine.served_as``."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Laid over ``engine.headers`` name by name; so is ``body`` over ``engine.body``."""
    body: Mapping[str, JSON] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerSettings:
    """How the image of an engine is run."""

    options: tuple[str, ...] = ()
    """Options of ``docker run``, word by word; one that this package gives too replaces the package's."""
    volumes: Mapping[str, str] = field(default_factory=dict)
    """By the path here, absolute or relative to the config, the path in the container, with ``:ro`` after it where that is wanted."""
    gpus: str = ""
    """``all``, ``none``, or numbers with commas between them; empty for those that CUDA_VISIBLE_DEVICES leaves, or all."""
    entrypoint: str | None = None
    """The program in the image; None for the engine's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What both arms have in common."""

    kind: str
    model: str
    args: Mapping[str, JSON] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    executable: str | None = None
    """The engine's program; at most one of this, ``venv`` and ``image``."""
    venv: str | None = None
    """A virtual environment that the engine is installed in."""
    image: str | None = None
    """A container image."""
    environment: tuple[str, ...] = ()
    """The command that makes an environment of one release, with ``{version}`` and ``{folder}``; empty for the shipped one."""
    docker: DockerSettings = field(default_factory=DockerSettings)
    api_key: str | None = None
    """What servers ask of clients, as ``${VAR}``; written to no artifact."""
    url: str | None = None
    """The address of a server that runs already; an arm without one has its server started."""
    metrics_url: tuple[str, ...] = ()
    """Addresses of the counters, one for each rank; empty where the asked server counts."""
    served_as: str | None = None
    """The name that servers list the model under, where it is not ``model``."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers of every request, with ``${VAR}`` as written."""
    body: Mapping[str, JSON] = field(default_factory=dict)
    """Fields laid over the body of every request of a workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantSettings:
    """A named way of speculating: what is laid over ``engine`` to get it."""

    name: str
    drafting_depends_on_load: bool = False
    """Whether it drafts less, or nothing, with several requests in flight: such workloads are then no proof that it does not speculate."""
    draft_context: int = 0
    """Tokens of context up to which its drafts are accepted as often as at the beginning of a text; 0 if the config does not state it."""
    args: Mapping[str, JSON] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    url: str | None = None
    metrics_url: tuple[str, ...] = ()
    served_as: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, JSON] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StackProcess:
    """One of the processes that are a server together."""

    name: str
    command: tuple[str, ...] = ()
    """Word by word, with placeholders; empty for the engine's own command."""
    args: Mapping[str, JSON] = field(default_factory=dict)
    """Laid over those of the arm in this process; null takes an argument of the arm out."""
    env: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[str, ...] = ()
    """Names of further ports beside its own."""
    ready: str = ""
    """A path of its own that answers 200, or a text in its log; empty for the default of its kind."""
    is_asked: bool = False
    """Whether requests go to it."""
    is_counted: bool = False
    """Whether counters are read from it."""

    @property
    def is_engine(self) -> bool:
        """True if it is started by the engine's own command."""
        return not self.command

    @property
    def takes_args(self) -> bool:
        """True if it gets the arm's arguments."""
        return self.is_engine or ARGS in self.command


ARGS = "{args}"
"""The placeholder for the arm's arguments in a process's command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds that are waited, and what a session may use at once."""

    boot_s: float = 600.0
    """For a server to answer."""
    request_s: float = 120.0
    """For an answer, unless the workload says otherwise."""
    stop_s: float = 20.0
    """For a server to end before it is killed."""
    servers: int = 4
    """Servers that run at once where they are placed side by side."""
    concurrency: int | None = None
    """Requests in flight at most, whatever a workload asks for; None where nothing is said."""
    devices: int | tuple[str, ...] | None = None
    """The devices that a session may use: how many, or their numbers or UUIDs; None for all that are visible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """The needs of a capture of this config on a cluster's node (``--specdec-cluster``)."""

    cpus: float = 1.0
    """Processors that the capture reserves, its servers' included."""
    resources: Mapping[str, float] = field(default_factory=dict)
    """Amounts of resources that the cluster's owner has named."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that the node must have, such as ``ray.io/accelerator-type: H100``."""
    runtime_env: Mapping[str, JSON] = field(default_factory=dict)
    """What the cluster sets up for the capture, such as an image."""


_ATTACHED_CONCURRENCY = 4
"""Requests in flight at most, where the config sets no limit: others may need the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    """How chat requests ask for reasoning, and the room that it takes."""

    tokens: int = 0
    """Tokens for the reasoning, added to ``max_tokens`` of answers that a grammar binds: their document comes after it."""
    effort: tuple[str, ...] = ()
    """``reasoning_effort`` of chat requests; empty for the server's own. Of several, each prompt gets one, in turn."""
    template: tuple[Mapping[str, JSON], ...] = ()
    """Arguments of the chat template, such as ``enable_thinking``. Of several, each prompt gets one, in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endurance:
    """For how long the same traffic goes on."""

    minutes: float = 0.0
    """Minutes for each arm but the control; 0 for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiver:
    """A known failure of one judgement, expected until a day."""

    family: Family
    workload: str
    variant: str
    bug: str
    """Address of the report."""
    owner: str
    """Who sees to it."""
    expires: date
    """The last day on which the failure is expected, UTC."""
    words: str = ""
    """A text that the verdict's name or headline must contain; empty where any failure is the known one."""
    test: str = ""
    """A text that the test's id must contain; empty where any test of the judgement is meant."""
    source: str = ""
    """File and line."""

    def __str__(self) -> str:
        return f"{self.bug} (owner {self.owner}, until {self.expires})"


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenSettings:
    """A golden file, another project's published accepted lengths, and its use as floors."""

    file: str
    """A path relative to the config."""
    model: str = ""
    """The file's name of the model; empty where it is that of ``engine.model``."""
    thinking: Thinking | None = None
    """The mode that chat requests ask for; None where ``reasoning`` says it, or nothing does."""
    tests: Mapping[str, str] = field(default_factory=dict)
    """By variant, the test of a file that has its lengths by test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Figures that others have published: shown together with those of a run, never gated."""

    speedup: float
    setup: str
    """Device, traffic and date."""
    source: str
    """Who published them."""
    baseline_tokens_per_s: float | None = None
    speculative_tokens_per_s: float | None = None
    acceptance_length: float | None = None

    def __str__(self) -> str:
        speeds = [f"{speed:g}" for speed in (self.baseline_tokens_per_s, self.speculative_tokens_per_s) if speed]
        length = [f"acceptance length {self.acceptance_length:g}"] if self.acceptance_length else []
        figures = (*([f"{' -> '.join(speeds)} tokens/s"] if speeds else []), f"{self.speedup:g}x", *length)
        return f"published, never gated: {', '.join(figures)} ({self.setup}; {self.source})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything a config file says, with ``${VAR}`` as written."""

    name: str
    """The stem of the file."""
    path: Path
    text: str
    """The text to be kept with the run: that of the file, or one written for a group of its matrix or for one of its two engines."""
    engine: EngineSettings
    variants: tuple[VariantSettings, ...]
    """In the order of the file; at least one."""
    baseline: Overlay = field(default_factory=Overlay)
    draft: Overlay = field(default_factory=Overlay)
    """For the draft model served alone."""
    speed: Overlay | None = None
    """Laid over the engine where seconds count: timed workloads are then sent to servers of their own."""
    old: EngineSettings | None = None
    """The engine in use, where ``engines`` names it: ``engine`` is then the one that may replace it."""
    stack: tuple[StackProcess, ...] = ()
    """The processes that are one server of an arm together, in the order in which they are started; empty for a server of one process."""
    scorer: EngineSettings | None = None
    """A further server of the same weights that scores tokens."""
    may_kill: bool = False
    """Whether attached servers are sent requests that have taken servers down."""
    images: bool | None = None
    """Whether the model takes images in chats; None where the engine says, or its checkpoint."""
    public: tuple[str, ...] = ()
    """Variables of the environment whose values may be shown, though headers, bodies or servers' environments take them."""
    placement: Placement = Placement.IN_TURN
    lossy: bool = False
    """Whether the variants may change the distribution: then equivalence is reported and does not gate."""
    require: tuple[str, ...] = ()
    """Features that every arm must honour: a refusal fails instead of being skipped."""
    allow_inconclusive: tuple[Family, ...] = ()
    """Families whose inconclusive and suspicious verdicts do not fail."""
    waivers: tuple[Waiver, ...] = ()
    """Known failures, each of one judgement."""
    gates: tuple[Gate, ...] = ()
    golden: GoldenSettings | None = None
    """None where no golden file gates."""
    upgrade: UpgradeGates = field(default_factory=UpgradeGates)
    """What an upgrade may change, where a run is compared with an earlier one."""
    slo: Slo | None = None
    """Latencies that answers should keep; None where none are stated."""
    published: tuple[Published, ...] = ()
    limits: Limits = field(default_factory=Limits)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    prompts: str = ""
    """The file of the user's own prompts, a path relative to the config; empty without one."""
    reasoning: Reasoning = field(default_factory=Reasoning)
    between: Mapping[str, tuple[EventStep, ...]] = field(default_factory=dict)
    """The config's own events by name, with ``${VAR}`` as written; one without steps takes the engine's event of that name out."""
    endurance: Endurance = field(default_factory=Endurance)
    """The same traffic for minutes, at deep depth."""
    lines: Mapping[KeyPath, int] | None = field(default=None, compare=False)
    """Line in the file of each place, if ``text`` was written for a group or one engine; None if ``text`` is the file."""

    def document(self) -> YamlDocument:
        """Return the data of ``text`` with the lines of the file, for errors."""
        document = yaml.load(self.text, str(self.path))
        return document if self.lines is None else replace(document, lines=self.lines)

    def resolve(self, text: str) -> str:
        """Return ``text`` as an absolute path if that exists.

        Otherwise it is returned unchanged. A relative path starts at the config file's folder, and ``~`` is the home
        directory. So ``Qwen/Qwen3-8B`` stays a model's name unless there is such a folder.
        """
        resolved = self.path.parent / Path(text).expanduser()
        return str(resolved.absolute()) if text and resolved.exists() else text

    def scorer_config(self) -> Config:
        """Return a config with the scorer as its engine, to start its server.

        The scorer only scores the arms' tokens: variants, stack and scorer are left out, and so are the overlays of baseline and draft.
        Raises ValueError without a scorer.
        """
        if self.scorer is None:
            msg = f"{self.name} has no scorer"
            raise ValueError(msg)
        return replace(self, engine=self.scorer, baseline=Overlay(), variants=(), draft=Overlay(), stack=(), scorer=None)

    def old_engine_config(self) -> Config:
        """Return this config with the old engine as its engine.

        The old engine is the one in use, which the file names under ``engines.old``; the variants stay. Raises ValueError if it names none.
        """
        if self.old is None:
            msg = f"{self.name} has no engines.old"
            raise ValueError(msg)
        return replace(self, engine=self.old, old=None)

    @property
    def builds(self) -> Mapping[str, Config]:
        """The config of each engine by its place: ``engines.old`` and ``engines.new``.

        A config with one engine has itself under ``engine``.
        """
        return {"engine": self} if self.old is None else {"engines.old": self.old_engine_config(), "engines.new": self}

    def concurrency(self, *, attached: bool) -> int | None:
        """Return the limit on requests in flight at one server.

        It is the config's. If the config states none, it is four for an attached server, since others may need that server, and None (no
        limit) for a server started here.
        """
        return self.limits.concurrency or (_ATTACHED_CONCURRENCY if attached else None)

    def variant(self, name: str) -> VariantSettings:
        """Return the variant called ``name``; KeyError without one."""
        return {variant.name: variant for variant in self.variants}[name]

    def __repr__(self) -> str:
        return f"<Config {self.name}: {self.engine.kind} {self.engine.model}, {', '.join(variant.name for variant in self.variants)}>"
