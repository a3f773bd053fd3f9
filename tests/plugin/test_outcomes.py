"""From verdict to pytest outcome, each way once through a real session."""

from __future__ import annotations

from fnmatch import fnmatch
from types import SimpleNamespace

import pytest

from pytest_specdec.model.families import FAMILIES
from pytest_specdec.model.verdict import Outcome, Verdict
from pytest_specdec.model.workload import Depth, Family, Request, Route, Workload
from pytest_specdec.plugin import verdicts
from pytest_specdec.prompts.responses import pairs
from pytest_specdec.report.run import PytestOutcome

CASES = [
    ("Outcome.PASS", "", (), {"passed": 2}, 0),
    ("Outcome.FAIL", "", (), {"failed": 2}, 1),
    ("Outcome.FAIL", "lossy: true\n", (), {"skipped": 2}, 0),
    ("Outcome.NOT_SPECULATING", "", (), {"failed": 2}, 1),
    ("Outcome.INCONCLUSIVE, settle='9 tokens'", "", (), {"failed": 2}, 1),
    ("Outcome.INCONCLUSIVE", "", ("--specdec-depth=deep",), {"failed": 2}, 1),
    ("Outcome.INCONCLUSIVE", "", ("--specdec-depth=smoke",), {"skipped": 2}, 1),
    ("Outcome.INCONCLUSIVE", "allow_inconclusive: [greedy]\n", (), {"skipped": 2}, 1),
    ("Outcome.SUSPICIOUS", "", (), {"failed": 2}, 1),
    ("Outcome.SUSPICIOUS", "", ("--specdec-depth=smoke",), {"skipped": 2}, 1),
    ("Outcome.SUSPICIOUS", "allow_inconclusive: [greedy]\n", (), {"skipped": 2}, 1),
    ("Outcome.NOT_DECIDED", "", (), {"passed": 2}, 0),
    ("Outcome.NOT_DECIDED", "require: [json_schema]\n", (), {"passed": 2}, 0),
    ("Outcome.NOT_DECIDED", "require: [speed]\n", (), {"failed": 2}, 1),
    ("Outcome.REFUSED", "", (), {"skipped": 2}, 1),
    ("Outcome.REFUSED", "require: [json_schema]\n", (), {"failed": 2}, 1),
    ("Outcome.REFUSED", "require: [top_k]\n", (), {"skipped": 2}, 1),
    ("Outcome.INVALID", "", (), {"failed": 2}, 1),
]


@pytest.mark.examples(2)
@pytest.mark.parametrize("verdict, config, args, expected, code", CASES, ids=[" ".join([c[0], c[1].strip(), *c[2]]) for c in CASES])
def test_a_verdict_becomes_an_outcome(project, verdict, config, args, expected, code):
    body = ", body={'response_format': {'type': 'json_schema'}}"
    result = project.config(config).outcome(verdict, body).run(*args)
    result.assert_outcomes(**expected)
    assert result.ret == code


def test_every_outcome_is_in_the_table():
    tried = {Outcome[case[0].split(",")[0].removeprefix("Outcome.")] for case in CASES}
    assert tried == set(Outcome)
    assert set(verdicts._FIXED) == set(Outcome) - {Outcome.INCONCLUSIVE, Outcome.SUSPICIOUS, Outcome.NOT_DECIDED, Outcome.REFUSED}


def test_a_failure_is_short_and_ends_with_the_replay(project):
    project.outcome("Outcome.FAIL, short=('shared  x', 'y'), evidence=('deep down',)")
    assert "deep down" not in project.run().stdout.str()
    result = project.run("-v")
    text = result.stdout.str()
    block = text[text.index("draft-k3 greedy: 3 answers") :].splitlines()[:4]
    assert block[1:3] == ["  shared  x", "  y"]
    assert block[3].startswith("replay: pytest 'test_it.py::test_it[draft-k3]' --specdec-replay .specdec/tiny-")
    result.stdout.fnmatch_lines(
        ["*Captured specdec call*", "deep down", "FAILED test_it.py::test_it?draft-k3? - *draft-k3 greedy: 3 answers"]
    )
    assert "conftest.py" not in text
    assert "judging.py" not in text


def test_an_inconclusive_failure_says_what_would_settle_it(project):
    result = project.outcome("Outcome.INCONCLUSIVE, settle='9,000 tokens'").run()
    result.stdout.fnmatch_lines(["*draft-k3 greedy inconclusive: 3 answers", "  to settle it: 9,000 tokens", "replay: *"])


def test_what_is_no_verdict_is_refused(project):
    project.tests(
        "import pytest\nfrom sample import *\n\n@pytest.mark.specdec(CHAT, family='greedy')\n"
        "def test_it(specdec_captured, specdec_check): specdec_check(True)\n"
    )
    result = project.run()
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*specdec_check: expected a Verdict*found True*"])


def test_an_expected_failure_is_no_red_run(project):
    project.outcome("Outcome.FAIL")
    path = project.path / "test_it.py"
    path.write_text(path.read_text().replace("@pytest.mark.specdec", "@pytest.mark.xfail(reason='known')\n@pytest.mark.specdec"))
    result = project.run()
    result.assert_outcomes(xfailed=2)
    assert result.ret == 0
    assert not project.document["red"]
    assert {(j["result"], j["waiver"]) for j in project.document["judgements"]} == {("xfailed", "xfail: known")}
    result.stdout.fnmatch_lines(["CORRECTNESS: nothing new found; 2 known failures waived*"])


@pytest.mark.parametrize("body, code, judged", [
    ("specdec_check(say(specdec_captured))", 78, ("failed", "pass", "xfail: known", "")),
    ("assert specdec_captured", 75, ("error", None, "", "[XPASS(strict)] known")),
], ids=["verdict", "own check"])  # fmt: skip
def test_an_unexpected_pass_is_no_fault_of_the_engine(project, body, code, judged):
    marks = "@pytest.mark.xfail(reason='known', strict=True)\n@pytest.mark.specdec(CHAT, family='greedy')\n"
    test = f"def test_it(specdec_captured, specdec_check):\n    {body}\n"
    result = project.tests(f"import pytest\nfrom sample import *\n\n{marks}{test}").run("-k", "draft-k3", "--specdec-exit-codes")
    result.assert_outcomes(failed=1)
    (judgement,) = project.document["judgements"]
    outcome = judgement["verdict"] and judgement["verdict"]["outcome"]
    assert (judgement["result"], outcome, judgement["waiver"], judgement["error"]) == judged
    assert result.ret == code


def test_an_assert_after_a_passing_verdict_is_a_finding_with_its_own_words(project):
    project.outcome("Outcome.PASS")
    path = project.path / "test_it.py"
    path.write_text(path.read_text() + "\n    assert False, 'too few emojis'\n")
    project.run("--specdec-exit-codes").assert_outcomes(failed=2)
    judgements = project.document["judgements"]
    assert project.document["class"] == "finding"
    assert [(j["result"], j["verdict"], j["error"].split("\n")[0]) for j in judgements] == [
        ("failed", None, "its own check failed: AssertionError: too few emojis")
    ] * 2


@pytest.mark.parametrize("before", ["", "yield\n    "], ids=["setup", "teardown"])
def test_a_check_in_a_fixture_is_a_finding(project, before):
    fixture = (
        f"@pytest.fixture\ndef judged(specdec_captured, specdec_check):\n    {before}specdec_check(say(specdec_captured, Outcome.FAIL))\n"
    )
    test = "@pytest.mark.specdec(CHAT, family='greedy')\ndef test_it(specdec_captured, judged): pass\n"
    project.tests(f"import pytest\nfrom sample import *\n\n{fixture}\n{test}").run("-k", "draft-k3", "--specdec-exit-codes")
    assert [(j["result"], j["verdict"]["outcome"], j["error"]) for j in project.document["judgements"]] == [("failed", "fail", "")]
    assert project.document["class"] == "finding"


@pytest.mark.examples(2)
@pytest.mark.parametrize("statement, result, error", [
    ("{}['logprob']", "error", "its test failed by itself: KeyError: 'logprob'"),
    ("pytest.fail('Timeout (>1.0s) from pytest-timeout.')", "error", "its test failed by itself: Failed: Timeout *"),
    ("assert [] == [1]", "failed", "its own check failed: assert *"),
    ("pytest.fail('too few emojis')", "failed", "its own check failed: Failed: too few emojis"),
])  # fmt: skip
@pytest.mark.parametrize("place", ["before a verdict", "after one"])
def test_a_mistake_of_a_test_is_no_fault_of_the_engine(project, statement, result, error, place):
    project.outcome("Outcome.PASS")
    path = project.path / "test_it.py"
    *head, check = path.read_text().splitlines()
    lines = [f"    {statement}", check] if place == "before a verdict" else [check, f"    {statement}"]
    path.write_text("\n".join([*head, *lines, ""]))
    project.run("-k", "draft-k3", "--specdec-exit-codes").assert_outcomes(failed=1)
    (judgement,) = project.document["judgements"]
    assert (judgement["result"], judgement["verdict"]) == (result, None)
    assert fnmatch(judgement["error"].split("\n")[0], error)
    assert project.document["class"] == ("finding" if result == "failed" else "infrastructure")


def test_what_all_arms_refuse_and_the_config_requires_is_named(project):
    result = (
        project.config("require: [min_p]\n").outcome("Outcome.PASS, parameters={'baseline': {'min_p': 'refused'}}").run("-k", "draft-k3")
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["the config requires min_p: an arm refuses it"])


def test_all_tests_skipping_themselves_is_no_success(project):
    project.outcome("Outcome.PASS")
    path = project.path / "test_it.py"
    path.write_text(path.read_text().replace("@pytest.mark.specdec", "@pytest.mark.skip\n@pytest.mark.specdec"))
    result = project.run()
    result.assert_outcomes(skipped=2)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*nothing could be judged*"])


@pytest.mark.parametrize("require, outcome", [
    (("json_schema", "tools"), PytestOutcome.SKIPPED),
    (("responses",), PytestOutcome.FAILED),
])  # fmt: skip
def test_a_route_that_is_missing_fails_where_that_route_is_required(require, outcome):
    """Its requests hold schemas and tools too, which the server may honour on the chat route."""
    refused = Verdict(outcome=Outcome.REFUSED, family=Family.RESPONSES, pair="v", workload="responses", headline="404")
    config = SimpleNamespace(require=require, allow_inconclusive=(), lossy=False)
    assert verdicts.result_of(refused, pairs(), Depth.STANDARD, config, FAMILIES[Family.RESPONSES]) is outcome


def parameters_verdict(outcome, **effects):
    arms = {arm: effects for arm in ("baseline", "v") if effects}
    return Verdict(outcome=outcome, family=Family.PARAMETERS, pair="v", workload="w", headline="", parameters=arms)


def chat_of(**body):
    return Workload(name="w", version=1, requests=(Request(id="r", route=Route.CHAT, body=body),))


@pytest.mark.parametrize("verdict, require, outcome", [
    (parameters_verdict(Outcome.PASS, min_p="refused", top_k="honoured"), "min_p", PytestOutcome.FAILED),
    (parameters_verdict(Outcome.PASS, min_p="refused", top_k="honoured"), "top_k", PytestOutcome.PASSED),
    (parameters_verdict(Outcome.REFUSED, min_p="refused", top_k="honoured"), "min_p", PytestOutcome.FAILED),
    (parameters_verdict(Outcome.REFUSED, min_p="refused", top_k="honoured"), "top_k", PytestOutcome.SKIPPED),
    (parameters_verdict(Outcome.REFUSED), "top_k", PytestOutcome.FAILED),
    (parameters_verdict(Outcome.REFUSED), "chat_logprobs", PytestOutcome.FAILED),
])  # fmt: skip
def test_what_is_required_is_what_an_arm_refused(verdict, require, outcome):
    config = SimpleNamespace(require=(require,), allow_inconclusive=(), lossy=False)
    workload = chat_of(min_p=0.1, top_k=4, logprobs=True)
    assert verdicts.result_of(verdict, workload, Depth.STANDARD, config, FAMILIES[Family.PARAMETERS]) is outcome


@pytest.mark.parametrize("require, code", [("thinking_token_budget", 78), ("top_k", 0)])
def test_what_is_required_and_never_sent_is_an_invalid_setup(project, require, code):
    project.config(f"require: [{require}]\n").tests("""
import pytest
from sample import *
from pytest_specdec.model.workload import Need
W = workload("thinking", body={"thinking_token_budget": 8}, needs=Need.THINKING_BUDGET)


@pytest.mark.specdec(W, family="parameters")
def test_a(specdec_captured, specdec_check): specdec_check(say(specdec_captured))


@pytest.mark.specdec(CHAT, family="greedy")
def test_b(specdec_captured, specdec_check): specdec_check(say(specdec_captured))
""")
    result = project.run("-k", "draft-k3", "--specdec-exit-codes")
    assert result.ret == code
    result.assert_outcomes(passed=1, **({"errors": 1} if code else {"skipped": 1}))
