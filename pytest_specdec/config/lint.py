"""The pair lint: lossy modes, and whatever differs between the arms besides the speculative setting.

Arms are servers: the baseline, which does not speculate, and the variants, which do. Their settings are an overlay's, laid over those of
``engine``. Any other difference would be taken for an effect of speculation. Which settings speculate, an engine's rules state. A value
with ``${VAR}`` is unknown before launch. A problem that is not ``refused`` is a warning.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.config import validate
from pytest_specdec.config.rules import plain
from pytest_specdec.config.validate import Problem, dotted_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.config.config import Config, EngineSettings, Overlay, VariantSettings
    from pytest_specdec.config.rules import EngineRules, SilentChange
    from pytest_specdec.files.yaml import KeyPath
    from pytest_specdec.model.workload import JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One value and where it stands in the config."""

    value: JSON
    path: KeyPath


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSettings:
    """One server's settings after overlays, argument names in one spelling, without nulls."""

    where: KeyPath
    """The place of the arm's own settings: ``baseline``, or ``variants`` and the variant's name."""
    args: Mapping[str, Setting]
    env: Mapping[str, Setting]
    url: Setting | None
    asks: tuple[object, ...]
    """Address, headers and body fields: arms that agree in them ask one server for the same."""

    def at(self, path: tuple[str, ...]) -> Setting | None:
        """Return the setting at ``path`` in the arguments; None if absent.

        A nested value may stand in a mapping, in a string of JSON, or in a flag with dots, such as ``a.b``, which comes first.
        """
        if ".".join(path) in self.args:
            return self.args[".".join(path)]
        setting = self.args.get(path[0])
        for name in path[1:]:
            setting = _setting_inside(setting, name)
        return setting


def baseline(config: Config) -> ArmSettings:
    """Return the settings of the baseline's server."""
    return _arm_settings(config.engine, config.baseline, ("baseline",))


def variants(config: Config) -> Iterator[tuple[str, ArmSettings]]:
    """Yield every variant's name and the settings of its server."""
    for variant in config.variants:
        yield variant.name, _arm_settings(config.engine, variant, ("variants", variant.name))


def _arm_settings(engine: EngineSettings, overlay: Overlay | VariantSettings, where: KeyPath) -> ArmSettings:
    """Return one arm's settings, those of ``overlay`` replacing those of ``engine``.

    ``where`` is the overlay's place in the config. An argument that the overlay sets to null is left out. ``asks`` of the result is
    compared between arms.
    """
    layers: tuple[tuple[KeyPath, EngineSettings | Overlay | VariantSettings], ...] = ((("engine",), engine), (where, overlay))
    args: dict[str, Setting] = {}
    env: dict[str, Setting] = {}
    for path, layer in layers:
        args.update({plain(name): Setting(value=value, path=(*path, "args", name)) for name, value in layer.args.items()})
        env.update({name: Setting(value=value, path=(*path, "env", name)) for name, value in layer.env.items()})
    # The last one holds: it is the overlay's, if that has one.
    urls = [Setting(value=layer.url, path=(*path, "url")) for path, layer in layers if layer.url is not None]
    # In one spelling: an address may be given with /v1 and without.
    address = str(urls[-1].value).rstrip("/").removesuffix("/v1").lower() if urls else None
    return ArmSettings(
        where=where,
        args={name: setting for name, setting in args.items() if setting.value is not None},
        env=env,
        url=urls[-1] if urls else None,
        # A variant with the address, headers and body of the baseline would be the baseline itself.
        asks=(address, {**engine.headers, **overlay.headers}, {**engine.body, **overlay.body}),
    )


def _setting_inside(setting: Setting | None, name: str) -> Setting | None:
    """Return the setting called ``name`` in a mapping.

    The mapping may be JSON in a string. None if there is no such setting, or no mapping.
    """
    if setting is None:
        return None
    value = _parse_json(setting.value)
    for key, item in value.items() if isinstance(value, Mapping) else ():
        if plain(key) == name:
            return Setting(value=item, path=(*setting.path, key))
    return None


def _parse_json(value: JSON) -> JSON:
    """Return the value of a string of JSON.

    Other values, and strings that are no JSON, are returned unchanged.
    """
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)  # type: ignore[no-any-return]
    except ValueError:
        return value


def check(config: Config, rules: EngineRules) -> tuple[Problem, ...]:
    """Return the problems of :func:`lint` if all are warnings.

    Raises ConfigError with all the problems for which the config is refused, if there are any.
    """
    problems = lint(config, rules)
    refused = [problem for problem in problems if problem.refused]
    if refused:
        raise validate.error(refused)
    return problems


def lint(config: Config, rules: EngineRules) -> tuple[Problem, ...]:
    """Return the reasons against a fair comparison of the arms.

    They are in the order of the file. ``rules`` are those of the config's engine.

    A config is refused for a missing address, for one server attached as both arms, for a speculative setting that
    cannot be read, for a baseline that speculates, for a drafting method or a number of draft tokens that no server
    boots with, and for lossy modes unless it sets ``lossy: true``. All other problems are warnings. If a speculative
    setting cannot be read, nothing else is checked. Values that still have a ``${VAR}`` are unknown and not checked.
    """
    pair = _Pair(config, rules)
    problems = dict.fromkeys(pair.check_readable())
    if not problems:
        checks = (
            pair.check_addresses,
            pair.check_baseline,
            pair.check_stack,
            pair.check_drafting,
            pair.check_lossy,
            pair.check_differences,
            pair.check_silent_changes,
        )
        problems = dict.fromkeys(problem for check in checks for problem in check())
    return tuple(sorted(problems, key=lambda problem: problem.line))


class _Pair:
    """The arms of one config under one engine's rules."""

    def __init__(self, config: Config, rules: EngineRules) -> None:
        self._lossy_allowed = config.lossy
        self._stack = config.stack
        self._rules = rules
        self._document = config.document()
        self._baseline = baseline(config)
        self._variants = dict(variants(config))

    def check_readable(self) -> Iterator[Problem]:
        """Yield a problem for every speculative setting without a mapping.

        The settings in the rules' ``mappings``, such as vLLM's ``speculative-config``, must be a mapping, or a string of JSON with one,
        since the other checks read it. One with a ``${VAR}`` passes.
        """
        for arm in (self._baseline, *self._variants.values()):
            for name in self._rules.mappings & arm.args.keys():
                setting = arm.args[name]
                if not _has_variable(setting.value) and not isinstance(_parse_json(setting.value), Mapping):
                    opening = "a string that holds no JSON mapping: " if isinstance(setting.value, str) else ""
                    expected = "a mapping, or JSON that holds one"
                    yield self._problem(setting.path, f"{opening}{setting.value!r:.42}", expected, refused=True)

    def check_addresses(self) -> Iterator[Problem]:
        """Yield a problem for every arm without the server it needs.

        Attached servers run already, at ``url``; others are started here. An arm needs ``url`` if this engine's servers are
        never started here. A variant must not be started here beside an attached baseline (a warning), nor send the
        baseline's own requests to the baseline's server.
        """
        expected = "the address of a server that runs already: http://HOST:PORT"
        for arm in (self._baseline, *self._variants.values()):
            if self._rules.attached and arm.url is None:
                yield self._problem((*arm.where, "url"), "nothing", expected, refused=True)
        baseline_url = self._baseline.url
        for variant in self._variants.values():
            if baseline_url is not None and variant.url is None and not self._rules.attached:
                address = "no url: its server is started here, and the baseline's runs elsewhere"
                yield self._problem(variant.where, address, "both attached, or both started here")
            # With the same headers and body too, nothing makes that server speculate for the variant alone.
            if variant.url is not None and variant.asks == self._baseline.asks:
                address = f"{_describe_value(variant.url)}, the baseline's own address"
                hint = "attach a second server, or give the variant a `body` or `headers` that make this one speculate"
                yield self._problem(variant.url.path, address, "the address of the server that speculates", hint, refused=True)

    def check_baseline(self) -> Iterator[Problem]:
        """Yield a problem for every speculative setting of the baseline."""
        for name, setting in self._baseline.args.items():
            if self._rules.speculates(name):
                yield self._problem(setting.path, "a speculative setting in the baseline", "none", "put it under variants", refused=True)

    def check_stack(self) -> Iterator[Problem]:
        """Yield a problem for every speculative setting under ``stack``.

        The processes of a stack are one server together, and every arm has them: the baseline would have the setting too. Null
        is allowed, since it takes a variant's setting out of the process.
        """
        for at, process in enumerate(self._stack):
            for name, value in process.args.items():
                if value is not None and self._rules.speculates(plain(name)):
                    hint = "put it under variants; null here takes it out of this process"
                    path = ("stack", at, "args", name)
                    yield self._problem(path, "a speculative setting, which the baseline would have too", "none", hint, refused=True)

    def check_drafting(self) -> Iterator[Problem]:
        """Yield a problem for every unknown method and unusable number of draft tokens.

        Variants without a speculative argument are left out, since they may speculate by their address alone.
        """
        for variant in self._variants.values():
            if any(self._rules.speculates(name) for name in variant.args):
                yield from self._check_method(variant)
                yield from self._check_draft_tokens(variant)

    def _check_method(self, variant: ArmSettings) -> Iterator[Problem]:
        """Yield a problem if the engine does not know the drafting method.

        It is a warning if a newer release may have that method and no known name is similar. A method that is not stated, or
        has a ``${VAR}``, passes.
        """
        setting, rule = variant.at(self._rules.method), self._rules.drafting
        if setting is None or _has_variable(setting.value):
            return
        unknown = next((str(name) for name in rule.split_methods(setting.value) if str(name) not in rule.methods), None)
        if unknown is None:
            return
        hint = validate.nearest(unknown, rule.methods)
        text = f"{_describe_value(setting)}, an unknown drafting method"
        yield self._problem(setting.path, text, _join_names(rule.methods), hint, refused=rule.complete or bool(hint))

    def _check_draft_tokens(self, variant: ArmSettings) -> Iterator[Problem]:
        """Yield a problem for each missing or invalid draft token count.

        It must be a whole number above 0, and may be missing if the engine has a number of its own, or if the method needs none.
        A count with a ``${VAR}`` passes.
        """
        rule, method = self._rules.drafting, variant.at(self._rules.method)
        settings = [setting for path in rule.tokens if (setting := variant.at(path)) is not None]
        expected = "the number of draft tokens, a whole number above 0"
        for setting in settings:
            if not _has_variable(setting.value) and not _is_count(setting.value):
                yield self._problem(setting.path, _describe_value(setting), expected, refused=True)
        # ``defaulted``: the engine has a number of its own. ``uncounted``: methods that need none.
        needs_none = method is not None and all(str(name) in rule.uncounted for name in rule.split_methods(method.value))
        if not settings and not rule.defaulted and not needs_none:
            yield self._problem((*variant.where, "args"), f"no {rule.tokens[0][-1].replace('-', '_')}", expected, refused=True)

    def check_lossy(self) -> Iterator[Problem]:
        """Yield a problem for every lossy mode.

        Such a mode changes the distribution of answers. It is a warning if the config sets ``lossy: true``.
        """
        for variant in self._variants.values():
            for mode in self._rules.lossy:
                setting = variant.at(mode.path)
                if setting is not None and mode.is_lossy(setting.value):
                    text = f"{_describe_value(setting)}, which changes the answers"
                    hint = "" if self._lossy_allowed else "or say lossy: true, and equivalence is reported without gating"
                    yield self._problem(setting.path, text, mode.lossless, hint, refused=not self._lossy_allowed)

    def check_differences(self) -> Iterator[Problem]:
        """Yield a problem for every unwanted difference between the arms' settings.

        These are the arguments and variables with another value in a variant than in the baseline, but for those of :meth:`_may_differ`.
        """
        for variant in self._variants.values():
            yield from self._compare_settings(variant.args, self._baseline.args, (*variant.where, "args"))
            yield from self._compare_settings(variant.env, self._baseline.env, (*variant.where, "env"))

    def check_silent_changes(self) -> Iterator[Problem]:
        """Yield a problem for every setting that speculation changes silently.

        The engine changes it by itself when it speculates. A setting that the config states keeps its value, and is left out.
        """
        for variant in self._variants.values():
            for change in self._rules.silent:
                if self._applies_to(change, variant) and not self._is_pinned(change, variant):
                    change_text = f"no {change.name}: the engine {change.what}"
                    yield self._problem(variant.where, change_text, self._describe_place(change))

    def _compare_settings(self, variant: Mapping[str, Setting], baseline: Mapping[str, Setting], where: KeyPath) -> Iterator[Problem]:
        """Yield a problem for each setting with two different values.

        Settings that may differ are left out. ``where`` is the place of these settings of the variant, such as its ``args``.
        """
        for name in dict.fromkeys((*variant, *baseline)):
            in_variant, in_baseline = variant.get(name), baseline.get(name)
            if not self._may_differ(name) and _value_or_none(in_variant) != _value_or_none(in_baseline):
                values = f"{_describe_value(in_variant)} in {dotted_path(where[:-1])} and {_describe_value(in_baseline)} in the baseline"
                yield self._problem(_overlay_path(in_variant, in_baseline) or (*where, name), values, "the same in both arms")

    def _may_differ(self, name: str) -> bool:
        """Return True for a speculative setting, or one to count drafts only, for which a baseline would not start."""
        return self._rules.speculates(name) or name in self._rules.statistics

    def _applies_to(self, change: SilentChange, variant: ArmSettings) -> bool:
        method = variant.at(self._rules.method)
        return method is not None and any(name in change.methods for name in self._rules.drafting.split_methods(method.value))

    def _is_pinned(self, change: SilentChange, variant: ArmSettings) -> bool:
        """Return True if the config states a setting that speculation changes.

        The engine changes it only where it is not stated. ``change`` has its names, those of arguments or, with ``env``, of variables.
        """
        names = (change.name, *change.also)
        # The baseline has to state it; another value of the variant is a problem of check_differences.
        if change.env:
            return any(name in self._baseline.env for name in names)
        # A speculative setting is the variant's, since a baseline has none.
        stated_by = variant if self._rules.speculates(change.name) else self._baseline
        return any(stated_by.at(tuple(name.split("."))) is not None for name in names)

    def _describe_place(self, change: SilentChange) -> str:
        """Return in words where the config should state a setting."""
        if self._rules.speculates(change.name):
            return "it in the variant's args, true or false"
        return f"it in engine.{'env' if change.env else 'args'}, for both arms"

    def _problem(self, path: KeyPath, found: str, expected: str, suggestion: str = "", *, refused: bool = False) -> Problem:
        """Return a problem at ``path``, a warning unless it is ``refused``."""
        return Problem(
            source=self._document.source,
            line=self._document.line(path),
            path=dotted_path(path),
            found=found,
            expected=expected,
            suggestion=suggestion,
            refused=refused,
        )


def _overlay_path(in_variant: Setting | None, in_baseline: Setting | None) -> KeyPath | None:
    """Return the path of a setting that an arm itself states, the variant's first.

    None if no arm states a value: one has the engine's, and the other has none, by a null.
    """
    settings = (in_variant, in_baseline)
    return next((setting.path for setting in settings if setting is not None and setting.path[0] != "engine"), None)


def _has_variable(value: JSON) -> bool:
    """Return True if the value has a ``${VAR}``, and so is unknown yet."""
    return isinstance(value, str) and "${" in value


def _is_count(value: JSON) -> bool:
    """Return True for a whole number above 0, also one in a string."""
    if isinstance(value, str):
        return value.isdecimal() and int(value) > 0
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _join_names(names: frozenset[str], most: int = 12) -> str:
    ordered = sorted(names, key=lambda name: (name.endswith("_mtp"), name))
    return "one of " + ", ".join(ordered[:most]) + (" …" if len(ordered) > most else "")


def _value_or_none(setting: Setting | None) -> object:
    return None if setting is None else setting.value


def _describe_value(setting: Setting | None) -> str:
    return "nothing" if setting is None else json.dumps(setting.value, ensure_ascii=False)
