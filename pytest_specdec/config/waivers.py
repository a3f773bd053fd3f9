"""The waivers of a config: known failures, each of one judgement, with its report, its owner and the last day on which it is expected."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import TYPE_CHECKING, Any

from pytest_specdec.config import validate
from pytest_specdec.config.config import Waiver
from pytest_specdec.model.workload import Family

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.config.validate import Problem
    from pytest_specdec.files.yaml import KeyPath, YamlDocument

_JUDGEMENT = ("family", "workload", "variant", "test")
"""Keys that name one judgement together."""


def read_waivers(document: YamlDocument, name: str) -> Iterator[Waiver]:
    """Yield the waivers of a config called ``name``, in file order."""
    data: Any = document.data
    for index, entry in enumerate(data.get("waivers", ())):
        where = f"{name}:{document.line(('waivers', index))}"
        yield Waiver(**{**entry, "family": Family(entry["family"]), "expires": date.fromisoformat(entry["expires"]), "source": where})


def problems(document: YamlDocument) -> Iterator[Problem]:
    """Yield the problems of waivers that the JSON Schema cannot express.

    These are days that do not exist, variants that the config does not have, and a second waiver of one judgement.
    """
    data = document.data if isinstance(document.data, Mapping) else {}
    entries, variants = data.get("waivers"), data.get("variants")
    judgements: set[tuple[object, ...]] = set()  # waived by the entries before
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        if isinstance(entry, Mapping):
            yield from check_day(document, ("waivers", index), entry.get("expires"))
            yield from _check_variant(document, index, entry.get("variant"), variants)
            judgement = tuple(entry.get(key) for key in _JUDGEMENT)
            if judgement in judgements:
                yield validate.problem(document, ("waivers", index), "a second waiver of one judgement", "one, with one bug")
            judgements.add(judgement)


def check_day(document: YamlDocument, place: KeyPath, expires: object) -> Iterator[Problem]:
    """Yield a problem if ``expires`` is a text of no existing day.

    ``expires`` is the last day stated in the entry at ``place``. The schema checks values that are no text.
    """
    if isinstance(expires, str) and day(expires) is None:
        yield validate.problem(document, (*place, "expires"), repr(expires), "a day, such as 2027-01-31")


def _check_variant(document: YamlDocument, index: int, variant: object, variants: object) -> Iterator[Problem]:
    """Yield a problem if the config does not have the variant."""
    if isinstance(variant, str) and isinstance(variants, Mapping) and variant not in variants:
        hint = validate.nearest(variant, variants)
        yield validate.problem(document, ("waivers", index, "variant"), repr(variant), f"one of {', '.join(variants)}", hint)


def day(text: str) -> date | None:
    """Return the day in ``text``; None if it does not exist."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None
