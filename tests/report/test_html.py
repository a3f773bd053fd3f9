"""The HTML page: whole and self-contained, with hostile text inert in it."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from pytest_specdec.model.status import State, Status
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Family
from pytest_specdec.report import html
from pytest_specdec.report.run import PytestOutcome, RunClass
from tests.report.runs import FAILED, GREEDY, GREEN, HOSTILE, MIXED, judgement, run_of

VOID = {"meta", "line", "rect", "circle", "polyline"}
ALLOWED = {
    *("html", "head", "meta", "title", "style", "body", "main", "header", "footer", "section", "h1", "h2", "h3", "p", "ul", "li", "div"),
    *("details", "summary", "pre", "code", "span", "table", "caption", "thead", "tbody", "tr", "th", "td", "figure", "figcaption"),
    *("svg", "line", "rect", "circle", "polyline"),
}


class Page(HTMLParser):
    """A page taken apart: its elements, attributes and text."""

    def __init__(self, text):
        super().__init__()
        self.names, self.attributes, self.texts, self.open = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.names.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture(params=[GREEN, MIXED], ids=["green", "mixed"])
def sample(request):
    return request.param


def test_a_page_is_well_formed_and_asks_for_nothing(sample):
    page = Page(html.render(sample))
    assert not page.open
    assert set(page.names) <= ALLOWED
    assert not {name for name, _ in page.attributes} & {"src", "href", "srcset", "action", "style"}
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    (policy,) = [value for name, value in page.attributes if name == "content" and "default-src" in value]
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'")
    assert "url(" not in html.render(sample)
    assert "@import" not in html.render(sample)


def test_text_of_models_is_text():
    attack = f'{HOSTILE}</pre></style><img src=x onerror="alert(1)"><script>alert(1)</script>'
    fields = {"headline": attack, "short": (attack,), "evidence": (attack,), "names": attack, "pair": "draft-k3", "cell": attack}
    page = Page(html.render(run_of(judgement(replace(FAILED, **fields), PytestOutcome.FAILED), notes=(attack,), directory=attack)))
    assert set(page.names) <= ALLOWED
    assert not page.open
    assert '<img src=x onerror="alert(1)">' in "".join(page.texts)


def test_a_page_is_a_function_of_the_run(sample):
    assert html.render(sample) == html.render(replace(sample))


def test_the_class_and_the_answers_come_first(sample):
    texts = [text.strip() for text in Page(html.render(sample)).texts if text.strip()]
    first = texts[texts.index(next(text for text in texts if text.startswith("specdec: "))) + 2 :][:4]
    assert first[0] == {RunClass.CLEAN: "Nothing wrong found", RunClass.FINDING: "Finding"}[sample.run_class]
    assert first[2].startswith("CORRECTNESS: ")
    assert first[3].startswith("SPEED: ")


def test_every_failure_has_the_command_that_judges_it_again():
    text = html.render(MIXED)
    red = [j for j in MIXED.judgements if j.result in {PytestOutcome.FAILED, PytestOutcome.ERROR}]
    assert text.count("<p>Judge the same answers again: ") == len(red) + 1, "and one for the run"
    assert text.count(html._text(red[0].replay)) == len(red)
    assert len(red) > 5


def test_findings_are_counted_by_cause_and_followers_stand_with_their_leader():
    same = [replace(FAILED, workload=f"w{number}") for number in range(3)]
    text = html.render(run_of(*(judgement(verdict, PytestOutcome.FAILED) for verdict in same)))
    assert "<h2>1 finding</h2>" in text
    assert "seen by 3 tests: greedy" in text


def test_the_evidence_that_crosses_its_alarm_is_named_by_the_fault():
    text = html.render(MIXED)
    assert "ngram-k3, drawn: 10^254.2 at its highest of 300 tokens, alarm at 10^4.7; most of it on: lenient acceptance" in text
    assert re.search(r"draft-k3, drawn: 10\^0.3 at its highest of 2,937 tokens(, alarm at 10\^[\d.]+)?</figcaption>", text)


def test_the_alarm_is_that_of_the_judgement_on_sampling_where_speed_has_the_same_workload():
    planned = MIXED.plan.judgements
    sampling = next(p for p in planned if p.pair == "ngram-k3" and p.family is Family.SAMPLING and p.alpha)
    both = (*planned, replace(sampling, family=Family.SPEED, alpha=0.01))
    text = html.render(replace(MIXED, plan=replace(MIXED.plan, judgements=both)))
    assert "at its highest of 300 tokens, alarm at 10^4.7" in text


def test_figures_of_a_variant_with_wrong_tokens_are_left_out():
    assert "Acceptance by draft position" in html.render(GREEN)
    wrong = judgement(replace(FAILED, pair="draft-k3"), PytestOutcome.FAILED)
    assert "Acceptance by draft position" not in html.render(run_of(*GREEN.judgements, wrong))


def test_a_page_of_many_judgements_stays_small():
    names = [f"workload-{number}" for number in range(500)]
    passing = [judgement(replace(FAILED, outcome=Outcome.PASS, workload=name, rules_out="x" * 150, names="")) for name in names]
    long = replace(FAILED, evidence=("line " * 20,) * 500)
    red = [judgement(replace(long, workload=name, names=name), PytestOutcome.FAILED) for name in names[:40]]
    assert len(html.render(run_of(*passing, *red)).encode()) <= 500 * 1024


def test_a_clean_run_with_a_waived_failure_found_nothing_new_and_is_no_plain_green():
    waived = judgement(FAILED, PytestOutcome.WAIVED)
    text = html.render(run_of(judgement(GREEDY), waived, status=Status(state=State.COMPLETE)))
    assert '<p class="class unsure">Nothing new found</p>' in text
    assert "Nothing wrong found" in html.render(run_of(judgement(GREEDY), status=Status(state=State.COMPLETE)))
