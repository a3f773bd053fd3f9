"""Wrappers run at their moment, with the arguments that they name, in the one engine that they were built into."""

from __future__ import annotations

import pytest

from specdec_reference.build import build_engine
from specdec_reference.cli import ServerSettings
from specdec_reference.drafters import Drafter
from specdec_reference.engine import ReferenceEngine
from specdec_reference.faults.catalogue import FAULTS
from specdec_reference.lawful import VARIATIONS
from specdec_reference.memory import Memory
from specdec_reference.metrics import Counters
from specdec_reference.openai_response import ResponseOptions
from specdec_reference.prefix_cache import PrefixCache
from specdec_reference.responses_reply import ResponsesReply
from specdec_reference.router import Router
from specdec_reference.rules import EngineRules
from specdec_reference.scheduler import Batch
from specdec_reference.sequence import RunningSequence
from specdec_reference.wrappers import Moment, Wrapper
from tests.reference.asgi_client import NGRAM

OWNERS = {
    "": EngineRules(),
    "engine": ReferenceEngine,
    "batch": Batch,
    "drafter": Drafter,
    "counters": Counters,
    "memory": Memory,
    "prefixes": PrefixCache,
    "router": Router,
    "sequence": RunningSequence,
    "response": ResponseOptions,
    "reply": ResponsesReply,
}


def joined(first, second, *, third):
    return f"{first}{second}{third}"


@pytest.mark.parametrize(
    "moment, function, result",
    [
        (Moment.AFTER, lambda result, second: result + second, "abcb"),
        (Moment.AROUND, lambda method, third, first: method(third, "-", third=first), "c-a"),
        (Moment.INSTEAD, lambda second: second * 2, "bb"),
        (Moment.AFTER, lambda result, engine: result + engine, "abcE"),
    ],
)
def test_a_function_gets_the_arguments_that_it_names(moment, function, result):
    assert Wrapper(moment=moment, function=function).wrap(joined, "E")("a", "b", third="c") == result


def test_what_runs_before_leaves_the_result_alone():
    thirds = []
    assert Wrapper(moment=Moment.BEFORE, function=lambda third: thirds.append(third * 2)).wrap(joined)("a", "b", third="c") == "abc"
    assert thirds == ["cc"]


def test_a_wrapper_can_be_wrapped():
    inner = Wrapper(moment=Moment.AFTER, function=lambda result, first: result + first).wrap(joined)
    outer = Wrapper(moment=Moment.AFTER, function=lambda result, third: result + third).wrap(inner)
    assert outer("a", "b", third="c") == "abcac"


def test_an_argument_that_the_method_does_not_have_is_refused():
    with pytest.raises(ValueError, match="fourth"):
        Wrapper(moment=Moment.BEFORE, function=lambda fourth: fourth).wrap(joined)


def test_every_fault_and_variation_fits_the_methods_that_it_names():
    wrong = []
    for name, planted in {**FAULTS, **VARIATIONS}.items():
        for path, wrapper in planted.wrappers.items():
            owner, _, method = path.rpartition(".")
            try:
                wrapper.wrap(getattr(OWNERS[owner], method))
            except (AttributeError, KeyError, ValueError) as error:
                wrong.append((name, path, error))
    assert not wrong


def test_a_fault_is_in_the_engine_that_was_built_with_it_and_in_no_other():
    faulty, right = (build_engine(ServerSettings(model="target", speculation=NGRAM, fault=fault)) for fault in ("drafts-see-ahead", ""))
    assert ("place" in vars(faulty.batch), "place" in vars(right.batch)) == (True, False)
