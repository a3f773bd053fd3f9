"""The gates of a config: read, and checked against what a variant can reach.

A gate is a limit on one figure of a run, such as the speedup: a run beyond it fails. The gates of an upgrade limit what may change between
a run of the old engine and one of the new. A golden file has acceptance lengths that others have published, which become floors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date
from typing import TYPE_CHECKING, Any

from pytest_specdec.config import validate, waivers
from pytest_specdec.config.config import GoldenSettings
from pytest_specdec.model.baseline import ACCEPTANCE_LENGTH, SPEEDUP, VERIFY_NOISE, Gate
from pytest_specdec.model.golden import Thinking
from pytest_specdec.model.upgrade_gates import AcceptedChange, Tolerance, UpgradeGates

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_specdec.config.config import Config
    from pytest_specdec.config.validate import Problem
    from pytest_specdec.files.yaml import YamlDocument
    from pytest_specdec.model.pair import Pair

_NO_SLOWER = 1.0
_UPGRADE = "upgrade"


def read_gates(document: YamlDocument, name: str) -> Iterator[Gate]:
    """Yield the gates of the config called ``name``.

    A speedup without a stated floor has the floor 1: a variant must be no slower than the baseline. An acceptance length without one has no
    gate here; floors of a golden file are another matter (:func:`read_golden`). The noise of the verify kernel has a ceiling. Gates of an
    upgrade are left out (:func:`read_upgrade`).
    """
    data: Any = document.data
    stated = {figure: gate for figure, gate in data.get("gates", {}).items() if figure != _UPGRADE}
    gates = stated if SPEEDUP in stated else {SPEEDUP: {}, **stated}
    for figure, gate in gates.items():
        source = f"{name}:{document.line(('gates', figure))} gates.{figure}"
        if figure == VERIFY_NOISE:
            yield Gate(figure=figure, at_most=float(gate["at_most"]), source=source)
        elif "at_least" in gate:
            # boot_sd: how much the log of a server's speed varies from boot to boot, where the config states it.
            yield Gate(figure=figure, at_least=float(gate["at_least"]), source=source, boot_sd=gate.get("boot_sd"))
        elif figure == SPEEDUP:  # without a stated floor
            yield Gate(figure=figure, at_least=_NO_SLOWER, source=f"{name}: gates.{figure} (default)", boot_sd=gate.get("boot_sd"))


def read_golden(document: YamlDocument) -> GoldenSettings | None:
    """Return the golden file of a config with its settings; None without one.

    The config states it as a mapping, or as the file's path alone.
    """
    data: Any = document.data
    golden = data.get("gates", {}).get(ACCEPTANCE_LENGTH, {}).get("golden")
    if golden is None:
        return None
    if isinstance(golden, str):
        return GoldenSettings(file=golden)
    thinking = Thinking(golden["thinking"]) if "thinking" in golden else None
    return GoldenSettings(file=golden["file"], model=golden.get("model", ""), thinking=thinking, tests=golden.get("tests", {}))


def read_upgrade(document: YamlDocument, name: str) -> UpgradeGates:
    """Return the config's gates and accepted changes of an upgrade.

    They say whether a change of the baseline's answers fails, which changes are accepted until a day, and down to which ratio of the old
    figure a speed passes. ``name`` is the config's, for the source of each accepted change.
    """
    data: Any = document.data
    stated = data.get("gates", {}).get(_UPGRADE, {})
    accepted = (
        AcceptedChange(
            **{**entry, "expires": date.fromisoformat(entry["expires"])},
            source=f"{name}:{document.line(('gates', _UPGRADE, 'accept', index))}",
        )
        for index, entry in enumerate(stated.get("accept", ()))
    )
    return UpgradeGates(
        baseline_change=Tolerance(stated["baseline_change"]) if "baseline_change" in stated else None,
        accepted=tuple(accepted),
        **{figure: float(ratio) for figure, ratio in stated.get("slower", {}).items()},
    )


def check_upgrade(document: YamlDocument) -> Iterator[Problem]:
    """Yield the problems of accepted changes missed by the JSON Schema.

    These are last days that do not exist, and a second acceptance of one change.
    """
    gates = document.data.get("gates") if isinstance(document.data, Mapping) else None
    stated = gates.get(_UPGRADE) if isinstance(gates, Mapping) else None
    entries = stated.get("accept") if isinstance(stated, Mapping) else None
    accepted_changes: set[str] = set()
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        place = ("gates", _UPGRADE, "accept", index)
        if isinstance(entry, Mapping):
            yield from waivers.check_day(document, place, entry.get("expires"))
            change = str(entry.get("change"))
            if change in accepted_changes:
                yield validate.problem(document, place, "a second acceptance of one change", "one, with one reason")
            accepted_changes.add(change)


def check_finite(document: YamlDocument) -> Iterator[Problem]:
    """Yield a problem for each non-finite number in gates and SLO.

    The JSON Schema accepts such numbers, but a gate of ``.nan`` never fails, and no latency meets an ``slo`` of it.
    """
    data: Any = document.data if isinstance(document.data, Mapping) else {}
    gates = data.get("gates")
    limits_by_place: list[tuple[tuple[str, ...], Any]] = [(("slo",), data.get("slo"))]
    for figure, gate in gates.items() if isinstance(gates, Mapping) else ():
        # The gates of an upgrade have their ratios of speeds one level deeper.
        ratios = gate.get("slower") if figure == _UPGRADE and isinstance(gate, Mapping) else None
        limits_by_place += [(("gates", figure), gate), (("gates", figure, "slower"), ratios)]
    for place, limits in limits_by_place:
        for key, value in limits.items() if isinstance(limits, Mapping) else ():
            if isinstance(value, float) and not math.isfinite(value):
                yield validate.problem(document, (*place, key), f"{value:g}", "a number")


def check(config: Config, pairs: Sequence[Pair]) -> None:
    """Raise ConfigError if a variant cannot reach the gate on the acceptance length.

    A verify step of k draft tokens emits at most k + 1 tokens, the bonus token included. Variants whose number of draft tokens is unknown
    are left out.
    """
    at_least = next((gate.at_least for gate in config.gates if gate.figure == ACCEPTANCE_LENGTH), None)
    most_tokens = [(pair.variant.draft.tokens + 1, pair.name) for pair in pairs if pair.variant.draft.tokens > 0]
    if at_least is None or not most_tokens:
        return
    # The gate holds for every variant, so that the one with the shortest steps decides.
    tokens, variant = min(most_tokens)
    if at_least <= tokens:
        return
    document = config.document()
    expected = f"at most {tokens}: {variant} drafts {tokens - 1} a step, and one token comes on top"
    hint = f"ask for less, such as {(tokens + 1) / 2:g}"  # halfway between one token a step and the most
    raise validate.error(
        [validate.problem(document, ("gates", ACCEPTANCE_LENGTH, "at_least"), f"{at_least:g} tokens a step", expected, hint)]
    )
