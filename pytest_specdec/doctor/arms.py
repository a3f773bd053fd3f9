"""The servers that a run would start: every arm's arguments, variables and command.

An arm is one server: the baseline, a variant, which speculates, a draft model served alone, or the scorer. It is attached if it runs
already at an address in the config. An overlay is the arm's own settings, laid over those of ``engine``. A stack is several processes that
are one server.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_specdec.capture.server.counters import sources
from pytest_specdec.config import variables
from pytest_specdec.config.rules import plain
from pytest_specdec.config.stack import port_names
from pytest_specdec.config.variables import expand, names
from pytest_specdec.engines.arguments import merge
from pytest_specdec.engines.protocol import ServerSetup
from pytest_specdec.engines.stack import StackCommands
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.pair import BASELINE, SCORER, DraftKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pytest_specdec.config.config import Config, Overlay, StackProcess, VariantSettings
    from pytest_specdec.engines.protocol import Command, Engine
    from pytest_specdec.files.yaml import KeyPath
    from pytest_specdec.model.workload import JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One server that a run would start, or visit."""

    name: str
    section: KeyPath
    """The place in the config of its own settings: ``("variants", NAME)``, ``("baseline",)``."""
    model: str
    paths: Mapping[str, KeyPath]
    """The place in the config of each argument, by its one spelling."""
    args: Mapping[str, JSON]
    """Overlays applied and ``${VAR}`` filled in; arguments with an unset variable are left out."""
    env: Mapping[str, str]
    """Filled in likewise."""
    speculative: bool
    attached: ServerSetup | None = None
    """How an attached server is reached; None for a server that a run starts."""

    def command(self, config: Config, engine: Engine) -> Command:
        """Return the command that serves this arm.

        The port is given apart from the arguments, as 0: the real one is chosen at boot. Raises EngineError if the engine or the model is
        missing.
        """
        args = {name: value for name, value in self.args.items() if name != "port"}
        setup = ServerSetup(model=self.model, port=0, args=args, env=self.env, speculative=self.speculative, secrets=Secrets())
        return engine.command(config, setup)


def arms(config: Config, engine: Engine, environ: Mapping[str, str]) -> tuple[Arm, ...]:
    """Return the servers of a run.

    They are the baseline, every variant, and draft models that can be served alone. If the config has settings for
    speed, the baseline with these comes second. An attached scorer comes last. A scorer that a run starts is left
    out: its engine may be another than ``engine``. With a stack there is a server for each process that runs the engine.

    Raises EngineError for an unreadable setting.
    """
    model = config.engine.model
    speculative = tuple(
        _make_arm(config, environ, variant.name, ("variants", variant.name), variant, model=model) for variant in config.variants
    )
    draft_models = _draft_models(config, engine, speculative)
    draft_arms = (_make_arm(config, environ, f"draft model {name}", ("draft",), config.draft, model=name) for name in draft_models)
    scorer_arm = scorer(config, environ)
    attached_scorer = [scorer_arm] if scorer_arm and scorer_arm.attached else []
    baseline = _make_arm(config, environ, BASELINE, ("baseline",), config.baseline, model=model)
    baseline_for_speed = (
        () if config.speed is None else (_make_arm(config, environ, f"{BASELINE} for speed", ("speed",), config.speed, model=model),)
    )
    engine_arms = (baseline, *baseline_for_speed, *speculative)
    engine_servers = (server for arm in engine_arms for server in _split_stack(config, engine, arm, environ))
    return (*engine_servers, *draft_arms, *attached_scorer)


def _draft_models(config: Config, engine: Engine, variants: Sequence[Arm]) -> Iterable[str]:
    """Return the draft models of variants, each once, to be served alone."""
    drafts = [draft for arm in variants if (draft := engine.draft(arm.args))]
    # Beside attached variants no draft model is started; the config has to give the address of its server.
    if any(arm.attached for arm in variants) and not config.draft.url:
        return ()
    return dict.fromkeys(draft.model for draft in drafts if draft.kind is DraftKind.MODEL and draft.model)


def _split_stack(config: Config, engine: Engine, arm: Arm, environ: Mapping[str, str]) -> Iterator[Arm]:
    """Yield an arm for each process of a stack that runs the engine.

    Without a stack it is the arm itself. A process with a variable that is not set is left out, since another check reports that.
    """
    if not config.stack:
        yield arm
        return
    setup = ServerSetup(model=arm.model, port=0, args=arm.args, env=arm.env, speculative=arm.speculative, secrets=Secrets())
    ports = dict.fromkeys(port_names(config.stack), 0)  # the real ones are chosen at boot
    commands = StackCommands(config=config, engine=engine, setup=setup, ports=ports, environ=environ)
    for at, process in enumerate(config.stack):
        if process.is_engine and are_variables_set(process, environ):
            own_setup = commands.process_setup(at, process)
            # Where the config states the arguments of the process, which are laid over the arm's.
            paths: dict[str, KeyPath] = {plain(name): ("stack", at, "args", name) for name in process.args}
            name = f"{arm.name}, process {process.name}"
            yield replace(
                arm, name=name, paths={**arm.paths, **paths}, args=own_setup.args, env=own_setup.env, speculative=own_setup.speculative
            )


def are_variables_set(process: StackProcess, environ: Mapping[str, str]) -> bool:
    """Return True if every variable of a process is set.

    They are those in its command, its arguments and its environment.
    """
    return environ.keys() >= set(names([process.command, process.args, process.env]))


def scorer(config: Config, environ: Mapping[str, str]) -> Arm | None:
    """Return the config's scorer as an arm; None without one.

    A scorer is a server that only scores the arms' tokens. Its engine may be another than the config's.
    """
    if config.scorer is None:
        return None
    scorer_config = config.scorer_config()
    arm = _make_arm(scorer_config, environ, SCORER, (SCORER,), scorer_config.baseline, model=scorer_config.engine.model)
    # Its arguments stand under ``scorer`` in the file, not under ``engine``.
    return replace(arm, paths={plain(key): (SCORER, "args", key) for key in scorer_config.engine.args})


def _make_arm(
    config: Config, environ: Mapping[str, str], name: str, path: KeyPath, overlay: Overlay | VariantSettings, *, model: str
) -> Arm:
    """Return an arm with its overlay applied and variables filled in.

    ``overlay`` are the arm's own settings, laid over those of ``engine``; ``path`` is their place in the config.
    Settings with a variable that is not set are left out, since another check reports them.
    """
    paths: dict[str, KeyPath] = {plain(key): ("engine", "args", key) for key in config.engine.args}  # where the config states each
    paths.update({plain(key): (*path, "args", key) for key in overlay.args})
    return Arm(
        name=name,
        section=path,
        model=model,
        paths=paths,
        args=_fill_variables(merge(config.engine.args, overlay.args), environ),
        env={key: str(value) for key, value in _fill_variables({**config.engine.env, **overlay.env}, environ).items()},
        speculative=path[0] == "variants",
        attached=_attached_setup(config, environ, overlay, is_draft=path[0] == "draft", model=model),
    )


def _attached_setup(
    config: Config, environ: Mapping[str, str], overlay: Overlay | VariantSettings, *, is_draft: bool, model: str
) -> ServerSetup | None:
    """Return the setup of an arm's attached server.

    Returns None without an address. Its own settings, ``overlay``, come before the engine's. Settings with a
    variable that is not set are left out, since another check reports them.
    """
    # A draft model has a server of its own: the engine's address, name of the model and counters are not that server's.
    engine_url, engine_name, engine_counters = (
        (None, "", ()) if is_draft else (config.engine.url, config.engine.served_as, config.engine.metrics_url)
    )
    url = overlay.url or engine_url
    if url is None:
        return None
    served_as = overlay.served_as or engine_name or ""
    key, headers = config.engine.api_key, {**config.engine.headers, **overlay.headers}
    return ServerSetup(
        model=model,
        port=0,
        counted=sources(overlay.metrics_url or engine_counters),
        api_key=str(expand(key, environ)) if key and environ.keys() >= set(names(key)) else None,
        headers={name: str(value) for name, value in _fill_variables(headers, environ).items()},
        body=_fill_variables({**config.engine.body, **overlay.body}, environ),
        served_as=_fill_text(served_as, environ),
        # The engine `attach` names a draft model "draft" if its config does not: the server's only model is then asked.
        any_model=is_draft and model == "draft",
        attached=_fill_text(url, environ).rstrip("/").removesuffix("/v1"),
        secrets=variables.secrets_of(config.text, environ),
    )


def _fill_variables(values: Mapping[str, JSON], environ: Mapping[str, str]) -> dict[str, JSON]:
    """Return the values with their variables filled in.

    A value is left out if one of its variables is not set.
    """
    return {name: expand(value, environ) for name, value in values.items() if environ.keys() >= set(names(value))}


def _fill_text(text: str, environ: Mapping[str, str]) -> str:
    """Return a text with its variables filled in; empty if one is not set."""
    return str(_fill_variables({"": text}, environ).get("", ""))
