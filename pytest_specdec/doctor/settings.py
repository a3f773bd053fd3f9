"""The config itself: its schema, the pair that it makes, and the variables that it is filled in from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.config.lint import lint
from pytest_specdec.config.rules import RULES
from pytest_specdec.doctor.check import fail, failed, ok, warn
from pytest_specdec.doctor.started import unset

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.config.config import Config
    from pytest_specdec.config.problems import Problem
    from pytest_specdec.doctor.check import Check

__all__ = ["pair", "schema", "variables"]


def schema(config: Config) -> Check:
    """Return what a config says that could be read; one that could not has raised ConfigError."""
    names = ", ".join(variant.name for variant in config.variants)
    return ok("config", f"{config.engine.kind} serving {config.engine.model}, variants {names}")


def pair(config: Config) -> tuple[Check, ...]:
    """Return whether the arms differ in the speculative setting only, and whether a mode loses the distribution."""
    found = tuple(_linted(problem) for problem in lint(config))
    if config.engine.kind not in RULES:
        return (warn("pair", f"not linted: nothing is known of what {config.engine.kind} changes when it speculates"),)
    if config.lossy:
        found = (warn("pair", "lossy: true, so equivalence is reported and gates nothing"), *found)
    return found or (ok("pair", "the arms differ in the speculative setting only, and no mode is lossy"),)


def _linted(problem: Problem) -> Check:
    where = f"{problem.source}:{problem.line}  {problem.path}: found {problem.found}"
    expected = f"expected: {problem.expected}"
    if problem.refused:
        return fail("pair", where, expected, remedy=problem.suggestion or "edit the config")
    return warn("pair", where, expected, remedy=problem.suggestion)


def variables(config: Config, environ: Mapping[str, str]) -> tuple[Check, ...]:
    """Return whether every ``${VAR}`` of the config is set; values are not looked at."""
    missing = tuple(failed("variables", error) for error in unset(config, environ))
    if missing or "${" not in config.text:
        return missing
    return (ok("variables", "all set"),)
