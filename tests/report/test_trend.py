"""Trends: which runs make one, what is measured of them, and by what a step is named."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pytest_specdec.errors import RunError
from pytest_specdec.model.status import State
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.report import run, trend, trend_markdown, trend_page
from pytest_specdec.report.measurement import EVIDENCE, MEASURES, NOISE, WRONG, compare_levels
from pytest_specdec.report.run import PytestOutcome, RunClass
from pytest_specdec.report.upgrade import Upgrade, UpgradeWord
from tests.report.histories import history, night, ratios, read, upgraded
from tests.report.runs import ENVIRONMENT, FAILED, GREEDY, HOSTILE, SPEED, acceptance, judgement, sampled
from tests.report.test_html import ALLOWED, Page


def steps(trends):
    return [(series.quantity.title, step.date.date().isoformat(), step.cause) for _, _, series, step in trends.all_steps()]


def quantities(trends, variant):
    return {s.quantity.title: s for _, one, s in trends.all_series() if one.variant == variant}


def test_a_step_at_an_upgrade_is_named_by_it():
    trends = read(history())
    assert steps(trends) == [
        ("speedup, vacation", "2026-02-14", "engine reference 0.1.0 → reference 0.2.0"),
        ("decode speed, vacation", "2026-02-14", "engine reference 0.1.0 → reference 0.2.0"),
    ]
    (step,) = quantities(trends, "draft-k3")["speedup, vacation"].steps
    assert step.is_worse
    assert step.change.startswith("1.79x → 1.63x (-8.")
    assert step.change.endswith("%, worse)")


@pytest.mark.parametrize("before, after, cause", [
    ({}, {}, "nothing recorded changed"),
    ({"variants": {"draft-k3": {"draft": "a, 3 tokens"}, "ngram-k3": {"draft": "3 tokens"}}},
     {"variants": {"draft-k3": {"draft": "b, 3 tokens"}, "ngram-k3": {"draft": "4 tokens"}}}, "draft-k3 draft a, 3 tokens → b, 3 tokens"),
    ({"packages": {"openai": "3.1"}}, {"packages": {"openai": "3.2"}}, "openai 3.1 → 3.2"),
    ({"system": "Linux-6.1"}, {"system": "Linux-6.2"}, "system Linux-6.1 → Linux-6.2"),
])  # fmt: skip
def test_a_step_is_named_by_what_changed_for_its_variant(before, after, cause):
    speedups = ratios(30, 20, factor=0.7)
    nights = [night(n, speedups[n], environment=replace(ENVIRONMENT, **(after if n >= 20 else before))) for n in range(30)]
    assert {one for *_, one in steps(read(nights))} == {cause}


@pytest.mark.parametrize("variants, cause", [
    ({"draft-k3": {"draft": "b"}, "ngram-k3": {"draft": "3 tokens"}}, "draft-k3 draft a → b"),
    ({"draft-k3": {"draft": "a"}, "ngram-k3": {"draft": "3 tokens"}, "eagle-k5": {"draft": "c"}}, "eagle-k5 draft - → c"),
])  # fmt: skip
def test_a_step_of_whole_runs_is_named_by_what_changed_for_any_variant(variants, cause):
    before = replace(ENVIRONMENT, variants={"draft-k3": {"draft": "a"}, "ngram-k3": {"draft": "3 tokens"}})
    after = replace(before, variants=variants)
    seconds = [80.0 / ratio for ratio in ratios(30, 20, factor=0.7)]
    nights = [night(n, environment=after if n >= 20 else before, status=replace(night(n).status, wall_s=seconds[n])) for n in range(30)]
    assert steps(read(nights)) == [("time of the capture", "2026-01-25", cause)]


def test_a_step_is_named_by_another_version_of_its_workload():
    plan, speedups = night(0).plan, ratios(30, 20, factor=0.7)
    later = replace(plan, workloads=tuple(replace(one, version=2) for one in plan.workloads))
    causes = [cause for *_, cause in steps(read([night(n, speedups[n], plan=later if n >= 20 else plan) for n in range(30)]))]
    assert [cause.partition(" (")[0] for cause in causes] == ["workload vacation version 1"] * 2


def test_a_change_a_run_away_is_said_to_be_there():
    """The place of a step is not sure to the run: the last night before the upgrade was slow by chance, nearer to those after it."""
    speedups = ratios(30, 20)
    speedups[19] = 1.69
    nights = [night(n, speedups[n], environment=upgraded() if n >= 20 else ENVIRONMENT) for n in range(30)]
    causes = {cause for *_, cause in steps(read(nights))}
    assert causes == {"1 run later: engine reference 0.1.0 → reference 0.2.0"}


def test_machines_configs_and_depths_are_not_mixed():
    there = replace(ENVIRONMENT, cores=64)
    nights = [night(0), night(1, environment=there), night(2, environment=None)]
    titles = [one.title for one in read(nights).histories]
    assert len(titles) == 3
    assert titles[0] == "reference, standard depth, an unknown machine"


def test_a_run_counts_once_though_it_was_copied_and_judged_again():
    first = night(0)
    again = replace(first, replayed=True, directory="elsewhere", made_at="2026-03-01T00:00:00+00:00")
    trends = read([again, night(1), first, first])
    assert (trends.runs, trends.repeated) == (2, 2)
    assert [dated.date.day for dated in trends.histories[0].trends[0].runs] == [5, 6]
    assert trends.summary.endswith("2 files left out: one of them again")


def test_what_does_not_count_is_left_out():
    wrong = judgement(replace(FAILED, pair="draft-k3"), PytestOutcome.FAILED)
    assert not [title for title in quantities(read([night(0, 1.8, wrong)]), "draft-k3") if "speed" in title]
    invalid = judgement(replace(SPEED, outcome=Outcome.INVALID, workload="other"))
    assert "speedup, other" not in quantities(read([night(0, 1.8, invalid)]), "draft-k3")
    incomplete = replace(night(0).status, state=State.INCOMPLETE)
    assert not quantities(read([night(0, status=incomplete)]), "")


def test_times_that_are_no_decoding_are_shown_and_not_compared():
    unfit = judgement(replace(SPEED, workload="load", promise=replace(SPEED.promise, unfit="the machine was busy")))
    series = quantities(read([night(n, 1.8, unfit) for n in range(3)]), "draft-k3")["speedup, load"]
    assert (len(series.points), len(series.unfit), series.typical) == (0, 3, "-")
    assert series.last == "1.82x [0.91, 2.90] (not compared)"


def test_every_figure_of_a_run_is_followed_and_the_plainest_workload_leads():
    more = [judgement(one) for one in (sampled("draft-k3", 300.0, 0.3), sampled("draft-k3", 300.0, 1.1), acceptance("draft-k3"))]
    found = quantities(read([night(0, 1.8, *more)]), "draft-k3")
    assert {title: series.last for title, series in found.items()} == {
        "speedup, vacation": "1.80x [1.71, 1.89]",
        "acceptance, chat": "2.69 tokens per step",
        "decode speed, vacation": "180 tokens/s",
        "decode speed of the baseline, vacation": "100 tokens/s",
        "noise": "0.01 nats",
        "evidence against the sampler": "10^1.1",
        "wrong tokens": "0",
    }
    assert quantities(read([night(0)]), "")["time of the capture"].last == "80.0 s"


def test_each_variant_has_the_outcome_of_its_own_judgements():
    trends = read([night(0), night(1, 1.8, judgement(FAILED, PytestOutcome.FAILED))])
    classes = {one.title: one.classes for one in trends.histories[0].trends}
    assert classes == {
        "whole runs": (RunClass.CLEAN, RunClass.FINDING),
        "draft-k3": (RunClass.CLEAN, RunClass.CLEAN),
        "ngram-k3": (RunClass.FINDING,),
    }


def test_the_false_alarm_rate_is_that_of_all_tested_series():
    trends = read(history())
    assert trends.tested == 2, "all others are the same in all runs"
    assert "probability 1% at most" in trends.false_alarms
    assert "at most 0.02 of the 2 series here" in trends.false_alarms


@pytest.mark.parametrize("made_at", ["", "yesterday", "2026-01-05T02:30:00", "0001-01-01T00:00:00+14:00"])
def test_a_run_without_a_date_is_one_error(made_at):
    with pytest.raises(RunError, match="the run has no date"):
        trend.read(run.render(night(0, made_at=made_at)), "run.json")


def test_seconds_and_memory_that_are_no_number_take_no_page_away():
    odd = night(12, status=replace(night(12).status, wall_s=float("nan")))
    machine = replace(night(12).environment, memory_gib=float("-inf"))
    assert read([*(night(n) for n in range(12)), odd])
    assert read([night(0), night(1, environment=machine)])


@pytest.mark.parametrize("judgements", [3, [3], [{"verdict": 3}], [{"verdict": {"figures": 3}}]])
def test_a_spoilt_run_is_one_error(judgements):
    with pytest.raises(RunError, match="this is no Run"):
        trend.read(json.dumps({**run.document(night(0)), "judgements": judgements}), "run.json")


def test_figures_that_are_no_numbers_are_one_error():
    text = run.render(night(0)).replace('"noise_nats": 0.01', '"noise_nats": "much"')
    with pytest.raises(RunError, match="a number"):
        trend.read(text, "run.json")


def test_the_page_asks_for_nothing_and_has_all_in_words():
    text = trend_page.render(read(history()))
    page = Page(text)
    assert not page.open
    assert set(page.names) <= ALLOWED | {"br", "path", "text", "strong"}
    assert not {name for name, _ in page.attributes} & {"src", "href", "srcset", "action", "style"}
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    words = "".join(page.texts)
    assert "engine reference 0.1.0 → reference 0.2.0" in words
    assert words.count("2026-02-14") >= 3, "in the steps, below the chart, and in the table of all values"
    assert text.count('class="step-bad"') == 2
    assert text.count('<th scope=row><span class="whole-line">') == 2 + 2 * 60


def test_a_run_that_is_not_clean_is_a_mark_with_its_date():
    text = trend_page.render(read([night(0), night(1, 1.8, judgement(replace(FAILED, pair="draft-k3"), PytestOutcome.FAILED))]))
    assert "<title>2026-01-06: finding</title>" in text
    assert "2 runs: 1 clean, 1 finding (2026-01-06)." in text


def test_pages_are_functions_of_the_files():
    for render in (trend_page.render, trend_markdown.render):
        assert render(read(history())) == render(read(reversed(history())))


def test_hostile_text_is_text():
    attack = f'{HOSTILE}</style><img src=x onerror="alert(1)">'
    unfit = judgement(replace(SPEED, workload=attack, promise=replace(SPEED.promise, unfit=attack)))
    plan = replace(night(0).plan, config=attack)
    nights = [night(n, 1.8, unfit, environment=upgraded(version=attack), plan=plan) for n in range(2)]
    trends = replace(read(nights), unread=(attack,))
    page, text = Page(trend_page.render(trends)), trend_markdown.render(trends)
    assert "img" not in page.names
    assert "<img" not in text
    assert not set("\x1b\r\u202e") & set(text + "".join(page.texts))


@pytest.mark.parametrize("nights", [[night(0)], [night(0), night(0, status=None)], [night(n) for n in range(400, 0, -40)]])
def test_few_runs_and_equal_values_have_a_page(nights):
    trends = read(nights)
    assert not steps(trends)
    assert "No step" in trend_page.render(trends)
    assert "**No step.**" in trend_markdown.render(trends)


def test_equal_values_are_no_change_for_the_worse():
    assert not any(measure.is_worse(1.0, 1.0) for measure in MEASURES)
    assert [measure.is_worse(1.0, 2.0) for measure in MEASURES] == [not measure.higher_is_better for measure in MEASURES]


FLAKY, CALM = (5.0, 0.0, 4.0, 0.0, 0.0, 3.0, 0.0, 6.0, 0.0, 0.0), (0.0,) * 10


def test_a_step_between_equal_medians_is_told_by_the_means():
    """A flaky fault changes fewer than half of the nights, and so no median."""
    wrong = [judgement(replace(GREEDY, workload="more", figures={"wrong_tokens": value})) for value in CALM * 4 + FLAKY * 4]
    series = quantities(read([night(n, 1.8, one) for n, one in enumerate(wrong)]), "draft-k3")["wrong tokens"]
    assert [(step.change, step.is_worse) for step in series.steps] == [("0 → 1.8 on average (worse)", True)]


@pytest.mark.parametrize("measure, worse, better", [
    (WRONG, "0 → 1.8 on average (worse)", "1.8 → 0 on average (better)"),
    (EVIDENCE, "10^0.0 → 10^1.8 on average (worse)", "10^1.8 → 10^0.0 on average (better)"),
    (NOISE, "0 nats → 1.8 nats on average (worse)", "1.8 nats → 0 nats on average (-100.0 %, better)"),
])  # fmt: skip
def test_the_direction_between_equal_medians_is_that_of_the_means(measure, worse, better):
    for before, after, words in ((CALM, FLAKY, worse), (FLAKY, CALM, better)):
        change = compare_levels(measure, before, after)
        assert (str(change), change.is_worse) == (words, words == worse)


def test_a_change_without_a_direction_is_neither_better_nor_worse():
    change = compare_levels(WRONG, (0.0, 2.0, 1.0), (0.0, 1.0, 2.0))
    assert (str(change), change.is_worse) == ("1 → 1 on average (no difference)", False)


def test_few_nights_say_that_no_series_is_tested():
    assert read(history(count=5, step=3)).false_alarms == "No series is tested for steps: it needs 10 runs, and values that differ."


def test_a_worse_upgrade_is_the_whole_runs_and_no_variants():
    worse = Upgrade(word=UpgradeWord.WORSE, earlier="old", headline="ANSWERS CHANGED")
    trends = read([night(0, upgrade=worse), night(1)])
    classes = {one.variant: one.classes[0] for history_ in trends.histories for one in history_.trends}
    assert classes.pop("") is RunClass.FINDING
    assert set(classes.values()) == {RunClass.CLEAN}
