"""The list of planted faults: what each does, where it can be planted, and which verdicts must turn red by which words."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from pytest_specdec.errors import EngineError
from pytest_specdec.model.workload import Family

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["FAULTS", "Expected", "Place", "PlantedFault", "planted_in", "refuse_unknown"]


class Place(StrEnum):
    """A place where a fault can be planted."""

    REFERENCE = "reference engine"
    """By ``--fault``; implemented in ``reference/faulty_rules.py``."""
    VLLM = "vLLM"
    """By ``SPECDEC_VLLM_PATCHES``; implemented in ``tests/engines/vllm_cpu/plugin``."""
    SIMULATION = "simulation"
    """Of the sampling judge alone; implemented in ``benchmarks/detection/faults.py``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The verdicts that the suites must come to on a server with the fault."""

    red: Mapping[Family, str] = field(default_factory=dict)
    """By family that must fail: words that its verdict must contain; alternatives are separated by ``|``."""
    may: Mapping[Family, str] = field(default_factory=dict)
    """By family that may fail as a consequence: the reason."""

    def surprises(self, verdicts: Mapping[str, str]) -> list[str]:
        """Return a line per family that is not as expected; ``verdicts`` holds the words of the red ones by family."""
        missing = [
            f"{family} should be red and say {words!r}; it is {verdicts.get(family, 'green')!r}"
            for family, words in self.red.items()
            if not any(word in verdicts.get(family, "") for word in words.split("|"))
        ]
        return missing + [f"{family} is red: {text}" for family, text in verdicts.items() if family not in {*self.red, *self.may}]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedFault:
    """A named, deliberate bug."""

    id: str
    """In kebab-case, the same wherever it can be planted."""
    does: str
    """One sentence."""
    expected: Mapping[Place, Expected]
    """By place where it can be planted."""


ENDS = (Family.GREEDY, Family.PARAMETERS, Family.SAMPLING, Family.LOGPROBS, Family.STRUCTURED, Family.LIVENESS)
"""Families that see how every answer ends."""
UNVERIFIED = "draft tokens accepted without verification"
UNLIKELY = "tokens that the grammar allows and the baseline would not choose"
STALE_BONUS = "the token behind a fully accepted draft is not the target's"
STALE_CACHE = "the KV cache is not rolled back"
SERVER_ERROR = "the server answers 5xx to a request with response_format|the server dies on"
BY_TIMING = "A wrong token breaks a grammar or not by the timing of the batch."


def _in(*places: Place, may: Mapping[Family, str] | None = None, **red: str) -> dict[Place, Expected]:
    """Return the same expectation for several places, families by name."""
    return dict.fromkeys(places, Expected(red={Family(name): words for name, words in red.items()}, may=may or {}))


_ROWS = (
    PlantedFault(
        id="accept-all",
        does="Accepts every draft token, whatever the target's distribution says.",
        expected=_in(Place.REFERENCE, greedy=UNVERIFIED, parameters=UNVERIFIED, sampling="accept-all", structured=UNLIKELY)
        | _in(Place.VLLM, greedy=UNVERIFIED, parameters=UNVERIFIED, sampling="accept-all", structured="would not choose")
        | _in(Place.SIMULATION, sampling="accept-all"),
    ),
    PlantedFault(
        id="accept-all-unseeded",
        does="Accepts every sampled draft token while no request of the batch has a seed, as an engine's fast sampler might.",
        expected=_in(Place.REFERENCE, Place.VLLM, sampling="accept-all"),
    ),
    PlantedFault(
        id="accept-all-late",
        does="Accepts every sampled draft token from the 65th token of an answer on.",
        expected=_in(Place.REFERENCE, sampling="accept-all|lenient acceptance"),
    ),
    PlantedFault(
        id="lenient",
        does="Accepts a draft token with probability min(1, 1.5 p/q).",
        expected=_in(Place.REFERENCE, Place.SIMULATION, sampling="lenient acceptance")
        | _in(Place.VLLM, sampling="lenient acceptance|acceptance too lenient"),
    ),
    PlantedFault(
        id="resample-from-p",
        does="Draws the recovered token from p instead of the residual max(p - q, 0).",
        expected=_in(Place.REFERENCE, Place.SIMULATION, sampling="resample from p")
        | _in(Place.VLLM, sampling="resample from p|recovered token"),
    ),
    PlantedFault(
        id="recover-argmax",
        does="Takes the target's most probable token as the recovered one.",
        expected=_in(Place.REFERENCE, Place.SIMULATION, sampling="recover by argmax")
        | _in(Place.VLLM, sampling="recover by argmax|acceptance too lenient"),
    ),
    PlantedFault(
        id="stale-bonus",
        does="Draws the bonus token from the distribution one position early: that of the last draft token.",
        expected=_in(
            Place.REFERENCE,
            greedy=STALE_BONUS,
            parameters=STALE_BONUS,
            sampling="bonus out of place|at the bonus",
            structured="the server dies on",
        )
        | _in(
            Place.VLLM,
            may={Family.LIVENESS: "A bonus token outside its grammar makes vLLM answer with a 5xx or die."},
            greedy=STALE_BONUS,
            parameters=STALE_BONUS,
            sampling="bonus out of place|at the bonus",
            structured=SERVER_ERROR,
        ),
    ),
    PlantedFault(
        id="kv-off-by-one",
        does="Keeps one entry too many in the KV cache after a rejection: the rejected token stays, and positions shift by one.",
        expected=_in(
            Place.REFERENCE,
            greedy=STALE_CACHE,
            parameters=STALE_CACHE,
            sampling=f"{STALE_CACHE}|KV cache not rolled back",
            logprobs="reported log-probabilities or verifier numerics",
            structured=UNLIKELY,
        ),
    ),
    PlantedFault(
        id="kv-stale",
        does="Keeps a rejected draft token's key and value: the token in its place never writes its own.",
        expected=_in(
            Place.VLLM,
            may={Family.STRUCTURED: BY_TIMING},
            greedy=STALE_CACHE,
            parameters=STALE_CACHE,
            sampling=f"{STALE_CACHE}|KV cache not rolled back",
        ),
    ),
    PlantedFault(
        id="penalties-ignored",
        does="Leaves penalties and biases out at draft positions; the bonus position still has them.",
        expected=_in(Place.REFERENCE, parameters="penalties or biases are ignored at draft positions")
        | _in(Place.VLLM, parameters="penalties or biases are ignored"),
    ),
    PlantedFault(
        id="report-draft-logprobs",
        does="Reports the draft model's log-probability of an accepted token; the tokens themselves are right.",
        expected=_in(Place.REFERENCE, logprobs="reported log-probabilities of accepted draft tokens"),
    ),
    PlantedFault(
        id="die-on-json",
        does="Kills the server when a request brings a grammar.",
        expected=_in(Place.REFERENCE, liveness="dies on request"),
    ),
    PlantedFault(
        id="near-tie",
        does="Accepts a draft token at temperature 0 that lies within 0.2 nats of the target's best one.",
        expected=_in(Place.REFERENCE, greedy="near-ties fall on the other side", parameters="near-ties fall on the other side"),
    ),
    PlantedFault(
        id="cut-short",
        does="Ends every answer after a tenth of its max_tokens, with finish_reason length.",
        expected={Place.REFERENCE: Expected(red=dict.fromkeys(ENDS, "answers are cut short"))},
    ),
    PlantedFault(
        id="stop-short",
        does="Ends every answer after a tenth of its max_tokens, with finish_reason stop.",
        expected={Place.REFERENCE: Expected(red=dict.fromkeys(ENDS, "answers are cut short"))},
    ),
    PlantedFault(
        id="past-the-end",
        does="Emits an end of sequence and goes on behind it up to max_tokens.",
        expected={Place.REFERENCE: Expected(red=dict.fromkeys(ENDS, "answers go on after their end"))},
    ),
    PlantedFault(
        id="wrong-finish",
        does="Gives every answer the finish_reason length.",
        expected={Place.REFERENCE: Expected(red=dict.fromkeys(ENDS, "answers are cut short"))},
    ),
    PlantedFault(
        id="die-in-company",
        does="Kills the server when a step verifies the drafts of four sequences or more.",
        expected=_in(Place.REFERENCE, greedy="dies with several requests in flight"),
    ),
    PlantedFault(
        id="grammar-skipped",
        does="Masks the last position of a verify step by the grammar, and none of the draft tokens' positions.",
        expected=_in(
            Place.VLLM,
            may={Family.LIVENESS: "A token outside its grammar makes vLLM answer with a 5xx or die."},
            structured=SERVER_ERROR,
        ),
    ),
)
FAULTS: dict[str, PlantedFault] = {row.id: row for row in _ROWS}
"""Every fault of a server, by id. Faults of the simulation alone follow in ``benchmarks/detection/faults.py``."""


def planted_in(place: Place) -> tuple[str, ...]:
    """Return the ids of the faults that can be planted in ``place``."""
    return tuple(fault.id for fault in FAULTS.values() if place in fault.expected)


def refuse_unknown(fault: str, *, speculating: bool) -> None:
    """Raise EngineError for a fault that the reference engine does not have, and for one without speculation."""
    known = planted_in(Place.REFERENCE)
    if fault not in known:
        raise EngineError(what="no such fault", where="--fault", found=fault, expected=", ".join(known), remedy=_remedy(fault, known))
    if not speculating:
        raise EngineError(
            what="a fault of speculation on a server that does not speculate",
            where="--fault",
            found=f"{fault} without --speculative-config",
            expected="--speculative-config beside it",
            remedy="plant the fault in the variant: the baseline is the judge",
        )


def _remedy(fault: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(fault, known, n=1)
    return f"did you mean {near[0]!r}?" if near else "name one of these"
