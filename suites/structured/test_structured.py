"""Structured output: draft tokens obey the grammar like any other token.

A pass means: as many valid answers as from the baseline, over schemas from trivial to hard, regular expressions, choices and grammars.
At temperature 0 also the baseline's own tokens, up to the first near-tie. Half of the prompts ask for something the grammar forbids.
"""

from __future__ import annotations

import pytest

from pytest_specdec import judge
from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts import JSON_TASKS, structured

DOCUMENTS = JSON_TASKS.structured(version=4, max_tokens=128, concurrency=16, take={Depth.SMOKE: 8, Depth.STANDARD: 12})
# Short, at temperature 1, every second one without a seed: 90 of them rule out that 5 % are invalid, 460 that 1 % are.
DRAWN = structured.graded_draws(max_tokens=64, requests=460, concurrency=32, take={Depth.SMOKE: 6, Depth.STANDARD: 90})
ALONE = structured.graded(version=2, max_tokens=64, concurrency=1, stream=True, scored=True, take={Depth.SMOKE: 0, Depth.STANDARD: 9})
CONSTRAINED = structured.constrained(
    version=2, max_tokens=32, concurrency=16, stream=True, scored=True, take={Depth.SMOKE: 5, Depth.STANDARD: 33}
)
UNCOMPILABLE = structured.uncompilable()


@pytest.mark.specdec(DOCUMENTS, family="structured")
def test_documents_obey_their_schema_as_often_as_the_baselines(captured, check):
    check(judge.structured.judge(captured))


@pytest.mark.specdec(DRAWN, family="structured")
def test_drawn_documents_obey_their_schema_too(captured, check):
    check(judge.structured.judge(captured))


@pytest.mark.specdec(ALONE, family="structured")
def test_streamed_documents_of_hard_schemas_obey_them_one_at_a_time(captured, check):
    check(judge.structured.judge(captured))


@pytest.mark.specdec(CONSTRAINED, family="structured")
def test_answers_obey_regular_expressions_choices_and_grammars(captured, check):
    check(judge.structured.judge(captured))


@pytest.mark.specdec(UNCOMPILABLE, family="structured")
def test_a_grammar_that_cannot_be_compiled_is_refused_and_the_next_request_answered(captured, check):
    check(judge.structured.judge(captured))
