from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import pytest
from scipy.stats import binom

from pytest_specdec.judge import structured
from pytest_specdec.judge.structured import text_grammars
from pytest_specdec.judge.structured.documents import Flaw
from pytest_specdec.model.captured import Capabilities, FeatureSupport
from pytest_specdec.model.families import COUNTED
from pytest_specdec.model.plan import ROUNDS
from pytest_specdec.model.transcript import FailureKind, Position, Score, ServerFailure, SpecCounters
from pytest_specdec.model.verdict import Example, Outcome, Symptom
from pytest_specdec.model.workload import Request, Route
from tests.judge.captured_values import SPECULATING, VARIANT, a_workload, answer, calibration, captured, requests, transcript

PERSON = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name", "age"]}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
OBJECT = {"type": "json_object"}
GOOD = json.dumps({"name": "Ada", "age": 36})


def texts(*given, finish="stop", **common):
    return [answer(f"chat-{i:02}", text=text, finish=finish, **common) for i, text in enumerate(given)]


def judged(mine, theirs=None, control=None, *, formats=None, alpha=1e-3, **fields):
    """Verdict on documents; the baseline's and the control's are good unless given."""
    theirs = texts(*[GOOD] * len(mine)) if theirs is None else theirs
    asked = [
        Request(id=f"chat-{i:02}", route=Route.CHAT, body={"response_format": f}) for i, f in enumerate(formats or [SCHEMA] * len(mine))
    ]
    workload = a_workload(asked)
    return structured.judge(captured("structured", mine, theirs, control or theirs, workload=workload, alpha=alpha, **fields))


def test_valid_documents_pass_and_say_which_rate_they_rule_out():
    verdict = judged(texts(*[GOOD] * 20))
    assert verdict.outcome is Outcome.PASS
    assert verdict.headline.startswith("20 of 20 documents valid")
    assert f"{1 - 0.01 ** (1 / 20):.1%}" in verdict.rules_out
    assert "draft-k3: json_schema person: 20 of 20 whole documents valid, 0 of 0 cut ones valid so far" in verdict.evidence


@pytest.mark.examples(1)
@pytest.mark.parametrize("of_baseline", [0, 1, 3])
def test_the_printed_invalid_rate_would_have_been_caught_beside_the_baselines_own(of_baseline):
    """Of 102 documents 21 are needed against one of the baseline's, and 26 against three; one alone was said to be enough."""
    theirs = documents_of(102, of_baseline)
    rules_out = judged(documents_of(102, 0), theirs, alpha=2.1e-6).rules_out
    rate = float(re.search(r"an invalid rate above ([\d.]+)% would have been caught", rules_out)[1]) / 100
    least = next(count for count in range(1, 103) if judged(documents_of(102, count), theirs, alpha=2.1e-6).outcome is Outcome.FAIL)
    assert binom.sf(least - 1, 102, rate) == pytest.approx(0.99, abs=2e-3)


def test_invalid_documents_too_few_to_be_more_than_chance_are_untested():
    verdict = judged(documents_of(5, 0), documents_of(5, 1), alpha=2.1e-6)
    assert verdict.outcome is Outcome.PASS
    assert verdict.rules_out.startswith("5 documents checked; untested: invalid documents, of which even 5 would not be too many")


def documents_of(count, invalid):
    return texts(*["{" * (i < invalid) + GOOD for i in range(count)])


def test_the_invalid_rate_of_every_arm_comes_with_its_exact_limits():
    verdict = judged(texts(*[GOOD] * 19, "{"), texts(*[GOOD] * 20))
    assert (
        "invalid, with 95% limits: draft-k3 5.0% [0.1%, 24.9%], baseline 0.0% [0.0%, 16.8%], control 0.0% [0.0%, 16.8%]" in verdict.evidence
    )
    assert (verdict.figures["invalid_rate_low"], verdict.figures["invalid_rate_high"]) == pytest.approx((0.00127, 0.24873), abs=1e-4)


BAD = [
    ("{" + GOOD, "character 1:", Flaw.NOT_ENFORCED),
    ("Sure! " + GOOD, "character 0:", Flaw.BEFORE),
    (GOOD[:-1], "in the middle of the document", Flaw.CUT_OFF),
    (GOOD + GOOD, "where JSON wants the end", Flaw.BEHIND),
    ('{"name": "A\x01da", "age": 3}', r'"\x01"', Flaw.NOT_ENFORCED),
    ('{"name": "Ada", "age": "36"}', "$.age", Flaw.RULES),
    ('{"name": "Ada"}', "'age' is a required property", Flaw.RULES),
    ("[1]", 'begins with "["', Flaw.KIND),
    ("", "ends at character 0", Flaw.CUT_OFF),
    ('{"name": "A", "age": ' + "1" * 5000 + ".5}", "$.age", Flaw.RULES),
    ('{"name": "A", "age": 1, "x": ' + "[" * 500 + "]" * 500 + "}", "nested 501 containers deep", Flaw.RULES),
]


@pytest.mark.parametrize("text, said, flaw", BAD)
def test_the_first_invalid_document_fails_where_the_baseline_has_none(text, said, flaw):
    verdict = judged(texts(*[GOOD] * 19, text))
    assert verdict.outcome is Outcome.FAIL
    assert "1 of 20 documents invalid; baseline 0 of 20, control 0 of 20" in verdict.headline
    assert verdict.short[0] == "first        chat-19 (json_schema person)"
    assert said in verdict.short[1]
    assert verdict.names == flaw.value


DATED = {
    "type": "json_schema",
    "json_schema": {"name": "dated", "schema": {"type": "object", "properties": {"on": {"type": "string", "pattern": "^[0-9]{4}$"}}}},
}


@pytest.mark.parametrize("mine, theirs, outcome", [(1, 0, Outcome.PASS), (30, 0, Outcome.FAIL), (30, 29, Outcome.PASS)])
def test_rules_that_engines_leave_out_in_silence_are_counted_and_never_judged_one_by_one(mine, theirs, outcome):
    def of(bad):
        return texts(*['{"on": "today"}'] * bad, *['{"on": "1969"}'] * (60 - bad))

    assert judged(of(mine), of(theirs), formats=[DATED] * 60).outcome is outcome


@pytest.mark.examples(1)
def test_the_printed_rate_against_rules_that_engines_leave_out_would_have_been_caught():
    """Of 102 documents 18 are needed, where the rate of one alone was said to be enough."""

    def of(bad):
        return judged(
            texts(*['{"on": "today"}'] * bad, *['{"on": "1969"}'] * (102 - bad)),
            texts(*['{"on": "1969"}'] * 102),
            formats=[DATED] * 102,
            alpha=2.1e-6,
        )

    rules_out = of(0).rules_out
    rate = re.search(r"of the 102 under rules that some engines ignore, a rate above ([\d.]+)% that break these alone", rules_out)
    assert (of(17).outcome, of(18).outcome) == (Outcome.PASS, Outcome.FAIL)
    assert binom.sf(17, 102, float(rate[1]) / 100) == pytest.approx(0.99, abs=2e-3)
    assert "some engines ignore" not in judged(texts(*[GOOD] * 102), alpha=2.1e-6).rules_out
    few = judged(texts(*['{"on": "1969"}'] * 5), texts(*['{"on": "1969"}'] * 5), formats=[DATED] * 5, alpha=2.1e-6)
    assert "; untested: rules that some engines ignore" in few.rules_out


def test_a_baseline_that_leaves_rules_out_is_a_standard_for_all_others():
    theirs = texts(*['{"on": "today"}'] * 20)
    assert judged(texts(*['{"on": "today"}'] * 19, '{"on": 1969}'), theirs, formats=[DATED] * 20).outcome is Outcome.FAIL


PLATE = {"regex": "[A-Z]{2}-[0-9]{3}"}


def constrained(mine, theirs, *formats, **fields):
    asked = [
        Request(id=f"chat-{i:02}", route=Route.CHAT, body={"structured_outputs": f} if "type" not in f else {"response_format": f})
        for i, f in enumerate(formats)
    ]
    return structured.judge(captured("structured", mine, theirs, theirs, workload=a_workload(asked), **fields))


def test_an_answer_that_goes_on_behind_its_pattern_fails():
    verdict = constrained(texts(*["AB-123"] * 9, "AB-123 or so"), texts(*["AB-123"] * 10), *[PLATE] * 10)
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "text goes on after the document")
    assert verdict.example == Example(symptom=Symptom.DOCUMENT, request_id="chat-09")


def test_what_the_baseline_does_not_enforce_is_left_out_and_said():
    verdict = constrained(texts("no", "no", "{}"), texts("no", "AB-123", "{}"), PLATE, PLATE, OBJECT)
    assert (verdict.outcome, "not enforced" in verdict.headline) == (Outcome.PASS, False), "one of two is no majority"
    verdict = constrained(texts("no", "no", "{}"), texts("no", "nope", "{}"), PLATE, PLATE, OBJECT)
    assert verdict.outcome is Outcome.PASS
    assert verdict.headline.endswith("; regex is not enforced by the baseline")
    alone = constrained(texts("no"), texts("no"), PLATE)
    assert (alone.outcome, alone.cell) == (Outcome.INCONCLUSIVE, "not enforced")


def test_white_space_until_the_limit_fails_where_the_baseline_ends():
    endless = texts(*['{"name": "Ada",' + " " * 90] * 20, finish="length")
    verdict = judged(endless, texts(*[GOOD] * 20))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "the grammar is stuck in white space until the limit")
    assert verdict.example == Example(symptom=Symptom.DOCUMENT, request_id="chat-00")
    assert judged([*endless[:1], *texts(*[GOOD] * 20)[1:]]).outcome is Outcome.PASS, "one may come of a model that likes white space"
    alike = judged(endless, endless)
    assert (alike.outcome, alike.figures["endless_documents"]) == (Outcome.PASS, 20), "what the model writes without drafts too is no fault"
    assert "20 end in white space until it, as the baseline's do" in alike.headline


def test_faults_behind_reasoning_alone_are_named_so():
    mine = [*texts(*[GOOD] * 10), *[replace(each, request_id=f"chat-{i:02}") for i, each in enumerate(reasoned(*["no"] * 4), 10)]]
    assert judged(mine).names == "the grammar is not enforced after the reasoning"


def test_documents_of_another_requests_grammar_are_named_so():
    other = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"], "additionalProperties": False}
    lamp = {"type": "json_schema", "json_schema": {"name": "lamp", "schema": other}}
    verdict = judged(texts(*['{"on": true}'] * 6), texts(*[GOOD] * 3, *['{"on": true}'] * 3), formats=[SCHEMA] * 3 + [lamp] * 3)
    assert verdict.names == "documents obey the grammar of another request"


def test_many_kinds_are_counted_by_feature():
    formats = [{"type": "json_schema", "json_schema": {"name": f"n{i}", "schema": PERSON}} for i in range(20)]
    verdict = judged(texts(*[GOOD] * 20), formats=formats)
    assert verdict.evidence[0] == "draft-k3: json_schema: 20 of 20 whole documents valid, 0 of 0 cut ones valid so far"
    refused = [answer(f"chat-{i:02}", status=400, error="no") for i in range(6)]
    verdict = judged([*refused, *texts(*[GOOD] * 20)[6:]], formats=formats)
    assert "; 6 kinds refused: json_schema n0, json_schema n1, json_schema n2, json_schema n3 …" in verdict.headline


@pytest.mark.parametrize("text", ['{"name": "Ada", "a', '{"na', "", GOOD, '{"age": 12'])
def test_a_document_cut_by_its_limit_is_judged_as_a_prefix(text):
    mine = [*texts(*[GOOD] * 9), answer("chat-09", text=text, finish="length")]
    assert judged(mine).outcome is Outcome.PASS


@pytest.mark.parametrize("text", ['{{"name', "[", 'Here is {"', GOOD + "}", '{"name": 1, "age": 2}'])
def test_a_cut_document_that_no_continuation_saves_fails(text):
    mine = [*texts(*[GOOD] * 9), answer("chat-09", text=text, finish="length")]
    assert judged(mine).outcome is Outcome.FAIL


@pytest.mark.parametrize("text, rule", [
    ('{"name": "Ada", "age": "', "rule type"),
    ('{"name": ["', "rule type"),
    ('{"name": "Ada", "age": 3.5, "x', "rule type"),
])  # fmt: skip
def test_a_cut_document_that_already_breaks_its_schema_fails(text, rule):
    verdict = judged([*texts(*[GOOD] * 9), answer("chat-09", text=text, finish="length")])
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, Flaw.RULES.value)
    assert rule in verdict.short[1]


def test_documents_that_were_all_cut_are_judged_as_far_as_they_go():
    cut = texts(*['{"name": "Ada", "a'] * 10, finish="length")
    verdict = judged(cut, cut)
    assert verdict.outcome is Outcome.PASS
    assert verdict.headline == "10 of 10 documents valid, 10 cut off by their token limit and valid up to it"
    assert f"10 documents checked; an invalid rate above {1 - 0.01 ** (1 / 10):.1%} would have been caught (99%)" in verdict.rules_out
    assert "untested: how documents end" in verdict.rules_out
    assert (verdict.figures["complete_documents"], verdict.figures["prefix_documents"]) == (0, 10)


def test_whole_documents_and_beginnings_are_counted_apart():
    cut = [answer(f"chat-{i:02}", text='{"name"', finish="length") for i in range(5, 20)]
    verdict = judged([*texts(*[GOOD] * 5), *cut])
    assert verdict.headline == "20 of 20 documents valid, 15 cut off by their token limit and valid up to it"
    assert f"; of the 5 whole ones an invalid rate above {1 - 0.01 ** (1 / 5):.1%}" in verdict.rules_out
    assert "untested" not in verdict.rules_out


def test_an_invalid_beginning_fails_where_all_are_cut():
    cut = texts(*['{"name": "Ada", "a'] * 9, '{"name": Ada', finish="length")
    verdict = judged(cut, texts(*['{"name": "Ada", "a'] * 10, finish="length"))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, Flaw.NOT_ENFORCED.value)


@pytest.mark.parametrize("text", ["", "  "])
def test_documents_that_were_all_cut_before_they_began_are_inconclusive(text):
    cut = texts(*[text] * 10, finish="length")
    verdict = judged(cut, cut)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.settle == "raise max_tokens"


def test_a_document_that_did_not_begin_rules_nothing_out():
    cut = [answer(f"chat-{i:02}", finish="length") for i in range(5, 9)]
    verdict = judged([*texts(*[GOOD] * 5), *cut])
    assert verdict.rules_out.startswith("5 documents checked; an invalid rate above 60.2% ")
    assert verdict.headline == "5 of 5 documents valid; 4 more answers were cut before their document began"
    counted = "draft-k3: json_schema person: 5 of 5 whole documents valid, 0 of 4 cut ones valid so far, 4 not begun"
    assert counted in verdict.evidence
    assert verdict.promise.documents == 5


def test_beginnings_that_nothing_here_can_read_are_no_evidence(monkeypatch):
    monkeypatch.setattr(text_grammars, "find_spec", lambda _: None)
    text_grammars._read.cache_clear()
    cut = texts("AB-", "AB-1", finish="length")
    verdict = constrained(cut, cut, PLATE, PLATE)
    text_grammars._read.cache_clear()
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "llguidance" in verdict.settle


def test_what_was_cut_and_not_read_counts_as_neither_valid_nor_checked(monkeypatch):
    monkeypatch.setattr(text_grammars, "find_spec", lambda _: None)
    text_grammars._read.cache_clear()
    mine = [*texts("AB-123", "AB-456"), answer("chat-02", text="AB-", finish="length"), answer("chat-03", finish="length")]
    verdict = constrained(mine, mine, *[PLATE] * 4)
    text_grammars._read.cache_clear()
    assert verdict.outcome is Outcome.PASS
    assert verdict.evidence[0] == "draft-k3: regex: 2 of 2 whole documents valid, 0 of 2 cut ones valid so far, 2 not read"
    assert (verdict.promise.documents, verdict.promise.invalid) == (2, 0)


@pytest.mark.examples(2)
@pytest.mark.parametrize(
    "mine, baseline, control, outcome",
    [(5, 5, 5, Outcome.PASS), (40, 5, 5, Outcome.FAIL), (40, 5, 38, Outcome.PASS), (6, 2, 2, Outcome.PASS), (6, 0, 0, Outcome.FAIL)],
)
def test_rates_are_compared_where_the_baseline_errs_too(mine, baseline, control, outcome):
    def of(bad):
        return texts(*["nonsense"] * bad, *[GOOD] * (100 - bad))

    assert judged(of(mine), of(baseline), of(control)).outcome is outcome


def test_a_baseline_that_ignores_the_grammar_is_no_standard_for_the_first_invalid_document():
    ignored = {"baseline": Capabilities(support={"json_schema": FeatureSupport.IGNORED})}
    mine = texts(*[GOOD] * 19, "no")
    assert judged(mine, capabilities=ignored).outcome is Outcome.PASS
    assert judged(texts(*["no"] * 20), capabilities=ignored).outcome is Outcome.FAIL


def test_nothing_is_proven_where_the_baseline_ignores_the_grammar_and_errs():
    ignored = {"baseline": Capabilities(support={"json_schema": FeatureSupport.IGNORED})}
    verdict = judged(texts("no"), texts("no"), texts("no"), capabilities=ignored)
    assert (verdict.outcome, verdict.cell) == (Outcome.INCONCLUSIVE, "not enforced")


def test_any_object_is_a_json_object_and_an_array_is_none():
    formats = [OBJECT] * 5
    assert judged(texts("{}", "{}", "{}", "{}", '{"a": [1]}'), texts(*["{}"] * 5), formats=formats).outcome is Outcome.PASS
    assert judged(texts("{}", "{}", "{}", "{}", "[]"), texts(*["{}"] * 5), formats=formats).outcome is Outcome.FAIL


def test_requests_without_a_format_are_not_judged():
    formats = [SCHEMA, {"type": "text"}, None, OBJECT]
    verdict = judged(texts(GOOD, "hello", "hi", "{}"), formats=formats)
    assert verdict.figures["documents"] == 2
    assert judged(texts("hello"), formats=[None]).outcome is Outcome.INVALID


def test_every_choice_of_an_answer_is_a_document():
    two = answer("chat-00", text=GOOD)
    two = replace(two, choices=(*two.choices, replace(two.choice, index=1, text="no")))
    assert judged([two]).headline.startswith("1 of 2 documents invalid")


def test_a_schema_without_a_type_may_begin_with_anything():
    anything = {"type": "json_schema", "json_schema": {"schema": {"enum": ["red", 7]}}}
    assert judged(texts('"red"', "7"), texts("7", "7"), formats=[anything] * 2).outcome is Outcome.PASS
    assert "rule enum" in judged(texts("8"), texts("7"), formats=[anything]).short[1]
    nothing = {"type": "json_schema", "json_schema": {"schema": {"type": "object", "properties": {"a": False}}}}
    assert "allows nothing" in judged(texts('{"a": 1}'), texts("{}"), formats=[nothing]).short[1]


@pytest.mark.parametrize("schema", [{"type": "objekt"}, {"$ref": "https://example.org/never-fetched.json"}, {"$ref": "#"}])
def test_a_schema_that_cannot_be_used_is_invalid_and_nothing_is_fetched(schema, monkeypatch):
    fetched = []
    monkeypatch.setattr("urllib.request.urlopen", fetched.append)
    asked = {"type": "json_schema", "json_schema": {"schema": schema}}
    verdict = judged(texts("{}"), formats=[asked])
    assert verdict.outcome is Outcome.INVALID
    assert "cannot be used" in verdict.headline
    assert "correct the schema" in verdict.short[0]
    assert not fetched


def test_a_schema_as_text_that_is_no_json_is_invalid():
    asked = Request(id="chat-00", route=Route.CHAT, body={"guided_json": "{not json"})
    theirs = texts("{}")
    verdict = structured.judge(captured("structured", theirs, theirs, theirs, workload=a_workload([asked]), alpha=1e-3))
    assert verdict.outcome is Outcome.INVALID
    assert "of request chat-00 cannot be used" in verdict.headline


def test_a_server_that_refuses_every_format_is_refused():
    no = [answer(f"chat-{i:02}", status=400, error="grammar is off") for i in range(3)]
    verdict = judged(no)
    assert verdict.outcome is Outcome.REFUSED
    assert 'refused with 400: "grammar is off"; the baseline answers 3 of them' in verdict.headline


def test_a_kind_that_is_refused_as_a_whole_is_said_and_the_rest_is_judged():
    formats = [SCHEMA, SCHEMA, OBJECT, OBJECT]
    mine = [*texts(GOOD, GOOD), *[answer(f"chat-{i:02}", status=400, error="no") for i in (2, 3)]]
    verdict = judged(mine, formats=formats)
    assert verdict.outcome is Outcome.PASS
    assert verdict.headline.endswith("; json_object refused")
    only_text = [*mine[2:], answer("chat-04", text="hi")]
    assert judged(only_text, texts(*[GOOD] * 5), formats=[*formats, None]).outcome is Outcome.REFUSED


def test_a_request_refused_now_and_then_is_an_invalid_document():
    mine = [*texts(*[GOOD] * 9), answer("chat-09", status=400, error="grammar state lost")]
    verdict = judged(mine)
    assert verdict.outcome is Outcome.FAIL
    assert 'HTTP 400: "grammar state lost"' in verdict.short[1]


def test_a_baseline_without_answers_is_no_standard():
    no = [answer(f"chat-{i:02}", status=400, error="no") for i in range(3)]
    verdict = judged(texts(GOOD, GOOD, GOOD), no)
    assert verdict.outcome is Outcome.INVALID
    assert "baseline has no answer" in verdict.headline
    refuses_one_kind = [*texts(GOOD, GOOD), *[answer(f"chat-{i:02}", status=400, error="no") for i in (2, 3)]]
    half = judged(refuses_one_kind, [*no, answer("chat-03", status=400, error="no")], formats=[SCHEMA, SCHEMA, OBJECT, OBJECT])
    assert half.outcome is Outcome.INVALID, "the variant answers two of four: not every request was refused"


def test_a_pass_needs_speculation():
    assert judged(texts(GOOD), counters=SpecCounters()).outcome is Outcome.NOT_SPECULATING
    assert judged(texts("no"), counters=SpecCounters()).outcome is Outcome.FAIL


def test_the_control_is_judged_against_the_baseline_alone():
    good = transcript("baseline", texts(GOOD))
    given = captured(
        "structured", texts(GOOD), good, texts("no"), workload=a_workload(requests(1, response_format=SCHEMA)), counters=SPECULATING
    )
    verdict = structured.judge(given.as_control())
    assert verdict.outcome is Outcome.FAIL
    assert "control_invalid_documents" not in verdict.figures
    assert structured.judge(replace(given, control=None)).outcome is Outcome.PASS


def test_a_request_that_kills_the_server_is_named():
    dead = ServerFailure(request_id="chat-00", ending=FailureKind.DIED, recurred=True)
    verdict = judged([answer("chat-00", status=None)], server_failures=[dead])
    assert verdict.outcome is Outcome.FAIL
    assert 'response_format={"type":"json_schema"' in verdict.names
    assert verdict.pair == VARIANT


def greedily(*tokens, **fields):
    return structured.judge(document(*tokens, **fields))


def document(mine, theirs, distributions, *, control=None, temperature=0, listed=True, **fields):
    """One document of given tokens beside the baseline's: ``distributions`` are raw logprobs by token, at the first difference.

    Without ``listed`` nothing is known of tokens but the likeliest one.
    """

    def scored(arm, tokens):
        known = {
            token: logprob if listed or logprob == max(distributions.values()) else math.nan for token, logprob in distributions.items()
        }
        top_tokens = (
            tuple(sorted(distributions, key=lambda token: -distributions[token]))
            if listed
            else (max(distributions, key=distributions.get),)
        )
        at = next((i for i, (a, b) in enumerate(zip(tokens, theirs, strict=False)) if a != b), None)
        positions = [
            Position(
                token_id=token,
                logprob=known.get(token, -1.0),
                top_ids=top_tokens,
                top_logprobs=tuple(distributions[top_token] for top_token in top_tokens),
            )
            for i, token in enumerate(tokens)
        ]
        assert at is None or positions[at].token_id in distributions
        return (Score(request_id="chat-00", arm=arm, under="baseline", positions=tuple(positions)),)

    others = {"baseline": theirs, "control": theirs if control is None else control}
    body = {"response_format": SCHEMA, "temperature": temperature}
    return captured(
        "structured",
        [answer("chat-00", mine, text=GOOD)],
        [answer("chat-00", theirs, text=GOOD)],
        [answer("chat-00", others["control"], text=GOOD)],
        workload=a_workload([Request(id="chat-00", route=Route.CHAT, body=body)]),
        scores={VARIANT: scored(VARIANT, mine), **{name: scored(name, tokens) for name, tokens in others.items()}},
        **fields,
    )


OWN, LIKELIER, UNLIKELIER, NEAR = 7, 8, 9, 10
DISTRIBUTIONS = {OWN: -2.0, LIKELIER: -0.5, UNLIKELIER: -4.0, NEAR: -2.1}


def test_a_likelier_token_than_the_baselines_own_was_not_masked():
    verdict = greedily((1, 2, LIKELIER, 3), (1, 2, OWN, 5), DISTRIBUTIONS)
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "the grammar is not enforced on speculated tokens")
    assert verdict.example == Example(symptom=Symptom.TEXT, request_id="chat-00", token=2)
    assert "token 2 of chat-00" in verdict.short[0]
    assert "id 8 p=0.607   1.5 nats apart, 0.25 allowed" in verdict.short[2]
    assert (verdict.figures["wrong_tokens"], verdict.figures["likelier_tokens"], verdict.figures["compared_tokens"]) == (1, 1, 3)


def test_an_unlikelier_token_is_a_wrong_choice_though_the_document_is_valid():
    verdict = greedily((1, UNLIKELIER), (1, OWN), DISTRIBUTIONS)
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "tokens that the grammar allows and the baseline would not choose")
    assert verdict.figures["likelier_tokens"] == 0


@pytest.mark.parametrize("mine, tokens", [((1, OWN, 5), 3), ((1, NEAR, 6), 2)])
def test_a_near_tie_and_equal_tokens_pass_and_count(mine, tokens):
    verdict = greedily(mine, (1, OWN, 5), DISTRIBUTIONS)
    assert verdict.outcome is Outcome.PASS
    assert f"; at temperature 0, of {tokens:,} tokens, wrong tokens spread evenly at a rate above " in verdict.rules_out
    assert ", or 99.0% of the answers wrong throughout, would" in verdict.rules_out, "nothing is compared after its first wrong token"
    assert verdict.figures["compared_tokens"] == tokens


def test_where_numbers_are_not_exact_a_pass_claims_no_more_than_so_few_tokens_could_show():
    verdict = greedily((1, UNLIKELIER), (1, OWN), DISTRIBUTIONS, calibration=calibration(200, noise=0.02))
    assert verdict.outcome is Outcome.PASS
    assert "of 2 tokens, wrong tokens spread evenly at a rate above 99.50% would" in verdict.rules_out, "of exact servers it would be 90 %"
    (line,) = (line for line in verdict.evidence if "compared with" in line)
    assert "0 documents differ at a near-tie" in line
    assert "1 beyond it" in line


def rounds_of(mine, events):
    """Rounds in which the same document was asked for again; in some of them with a doubtful token."""
    return tuple(
        document(mine if number < events else (1, OWN), (1, OWN), DISTRIBUTIONS, calibration=calibration(2000, noise=0.02))
        for number in range(ROUNDS)
    )


def test_too_many_tokens_for_noise_and_too_few_for_an_alarm_are_asked_again():
    noisy = calibration(2000, noise=0.02)
    verdict = greedily((1, UNLIKELIER), (1, OWN), DISTRIBUTIONS, calibration=noisy)
    assert verdict.outcome is Outcome.SUSPICIOUS
    assert "1 of 2 tokens of documents lie further from the baseline's than noise explains" in verdict.headline
    again = rounds_of((1, UNLIKELIER), ROUNDS)
    assert greedily((1, UNLIKELIER), (1, OWN), DISTRIBUTIONS, calibration=noisy, repeats=again).outcome is Outcome.FAIL
    quiet = rounds_of((1, UNLIKELIER), 0)
    settled = greedily((1, UNLIKELIER), (1, OWN), DISTRIBUTIONS, calibration=noisy, repeats=quiet[:1])
    assert settled.outcome is Outcome.PASS
    assert "; tokens at temperature 0 (1 beyond the noise, too few for an alarm: " in settled.headline
    assert "; 0 of 2 asked again, 0 of 2 of the baseline's; evidence of all 10^" in settled.headline
    assert "structured" in COUNTED, "else no round is sent"


def many(events, **fields):
    """Twelve documents of 83 tokens, of which so many end with a doubtful token; all boots of the baseline compute alike."""
    tokens, ids = tuple(range(20, 102)), [f"chat-{i:02}" for i in range(12)]

    def scores_of(arm, last):
        at = {OWN: -2.0, UNLIKELIER: -4.0}
        ends = [Position(token_id=last(i), logprob=at[last(i)], top_ids=tuple(at), top_logprobs=tuple(at.values())) for i in range(12)]
        before = [Position(token_id=token, logprob=0.0, top_ids=(token,), top_logprobs=(0.0,)) for token in tokens]
        return tuple(Score(request_id=name, arm=arm, under="baseline", positions=(*before, ends[i])) for i, name in enumerate(ids))

    def doubtful(i):
        return UNLIKELIER if i < events else OWN

    def own(_):
        return OWN

    arms = {VARIANT: doubtful, "baseline": own, "control": own}
    answers = [[answer(name, (*tokens, last(i)), text=GOOD) for i, name in enumerate(ids)] for last in arms.values()]
    sent = [Request(id=name, route=Route.CHAT, body={"response_format": SCHEMA, "temperature": 0}) for name in ids]
    scores = {arm: scores_of(arm, last) for arm, last in arms.items()}
    return captured("structured", *answers, workload=a_workload(sent), scores=scores, alpha=2.1e-6, **fields)


@pytest.mark.parametrize(
    "jumps, events, outcome", [(2, 5, Outcome.PASS), (2, 12, Outcome.FAIL), (0, 5, Outcome.PASS), (0, 12, Outcome.FAIL)]
)
def test_boots_that_compute_alike_do_not_make_rounds_of_jumps_a_fault(jumps, events, outcome):
    """The calibration shows what jumps there are: a round's baseline, one boot asked twice, shows none."""
    noisy = calibration(2048, noise=0.02, jumps=jumps)
    again = tuple(many(events, calibration=noisy) for _ in range(ROUNDS))
    assert structured.judge(many(12, calibration=noisy, repeats=again)).outcome is outcome


def test_what_the_control_shows_is_tolerated():
    assert greedily((1, UNLIKELIER), (1, OWN), DISTRIBUTIONS, control=(1, UNLIKELIER)).outcome is Outcome.PASS


@pytest.mark.parametrize("listed", [True, False])
def test_a_token_that_is_not_listed_lies_below_those_that_are(listed):
    distributions = {OWN: -0.1, UNLIKELIER: -6.0}
    verdict = greedily((1, UNLIKELIER), (1, OWN), distributions, listed=listed)
    assert verdict.outcome is (Outcome.FAIL if listed else Outcome.PASS), "of one top token nothing follows for what is far below it"
    assert greedily((1, OWN), (1, UNLIKELIER), distributions, listed=listed).outcome is (Outcome.FAIL if listed else Outcome.PASS)


def test_what_is_drawn_is_held_against_nothing():
    verdict = greedily((1, LIKELIER), (1, OWN), DISTRIBUTIONS, temperature=1.0)
    assert verdict.outcome is Outcome.PASS
    assert "compared_tokens" not in verdict.figures


def test_documents_without_scores_are_judged_by_validity_and_say_so():
    verdict = judged(texts(GOOD), formats=[SCHEMA])
    assert verdict.outcome is Outcome.PASS
    one = captured(
        "structured",
        [answer("chat-00", (1, 2), text=GOOD)],
        [answer("chat-00", (1, 3), text=GOOD)],
        [answer("chat-00", (1, 3), text=GOOD)],
        workload=a_workload([Request(id="chat-00", route=Route.CHAT, body={"response_format": SCHEMA, "temperature": 0})]),
    )
    verdict = structured.judge(one)
    assert verdict.outcome is Outcome.PASS
    assert "at temperature 0" not in verdict.rules_out
    assert "1 differ at a token without scores" in verdict.evidence[0]


def reasoned(*given, finish="stop"):
    """Answers that reasoned before their text."""
    return [answer(f"chat-{i:02}", text=text, finish=finish, reasoning='{"name"? Well, let me think. ') for i, text in enumerate(given)]


def test_a_document_is_looked_for_behind_the_reasoning():
    assert judged(reasoned(*[GOOD] * 20), reasoned(*[GOOD] * 20)).outcome is Outcome.PASS
    verdict = judged(reasoned(*[GOOD] * 19, GOOD[:-1]), reasoned(*[GOOD] * 20))
    assert verdict.outcome is Outcome.FAIL
    assert "in the middle of the document" in verdict.short[1]


def test_an_answer_cut_within_its_reasoning_is_cut_and_counts_for_nothing():
    cut = [replace(each, request_id=f"chat-{i:02}") for i, each in enumerate(reasoned(*[""] * 5, finish="length"), 20)]
    verdict = judged([*reasoned(*[GOOD] * 20), *cut], [*reasoned(*[GOOD] * 20), *cut])
    assert verdict.outcome is Outcome.PASS
    assert verdict.headline == "20 of 20 documents valid; 5 more answers were cut within their reasoning"
    assert verdict.rules_out == judged(reasoned(*[GOOD] * 20), reasoned(*[GOOD] * 20)).rules_out
    assert (verdict.figures["documents"], verdict.figures["unreached_documents"]) == (20, 5)
    assert "draft-k3: 5 answers cut within their reasoning" in verdict.evidence


@pytest.mark.parametrize("parsed", [True, False])
def test_answers_that_are_all_cut_within_their_reasoning_are_inconclusive_and_say_what_would_help(parsed):
    cut = reasoned(*[""] * 6, finish="length") if parsed else texts(*["<think>\nWell"] * 6, finish="length")
    verdict = judged(cut, cut)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.headline.endswith("all 6 documents were cut off by their token limit, 6 of them within their reasoning")
    assert "reasoning: {tokens: ...}" in verdict.settle


def test_reasoning_that_ends_without_a_document_is_a_fault():
    verdict = judged(reasoned(*[""] * 6), reasoned(*[GOOD] * 6))
    assert (verdict.outcome, verdict.figures["invalid_documents"]) == (Outcome.FAIL, 6)


def test_invalid_documents_fail_where_the_baseline_came_to_none():
    verdict = judged(reasoned(*[GOOD[1:]] * 6), reasoned(*[""] * 6, finish="length"))
    assert verdict.outcome is Outcome.FAIL
