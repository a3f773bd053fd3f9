"""Where answers end, judged by an answer's own request and its arm's own plain answer: each law red by name, and what is lawful green."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.judge import lengths
from pytest_specdec.judge.length_rules import LengthFlaw
from pytest_specdec.model.transcript import Usage
from pytest_specdec.model.verdict import Example, Outcome, Symptom
from pytest_specdec.model.workload import Request, Route, Workload
from tests.judge.captured_values import answer, captured, transcript

WORDS = ["im", "port ", "sys\n"] * 6
"""Text of the plain answer, a token each."""
EOS = 99
PLAIN = 12


def text(count):
    return "".join(WORDS[:count])


def ids(count):
    return tuple(range(1, count + 1))


def request(name, **body):
    return Request(id=name, route=Route.COMPLETIONS, body={"prompt": "import sys\n", "max_tokens": PLAIN, "temperature": 0, **body})


def gave(name, count, said=None, *, finish="stop", more=(), windows=(1, 4, 4, 4), **fields):
    tokens = ids(count) + tuple(more)
    usage = fields.pop("usage", Usage(prompt_tokens=3, completion_tokens=len(tokens)))
    return answer(name, tokens, text=text(count) if said is None else said, finish=finish, usage=usage, windows=windows, **fields)


def plain(name="plain", count=PLAIN):
    return gave(name, count, finish="length")


REQUESTS = (
    request("plain"),
    request("sys", stop=["sys\n"]),
    request("import", stop=["import "]),
    request("over", stop=["sys\nimport sys\n"]),
    request("kept", stop=["sys"], include_stop_str_in_output=True),
    request("near", stop=["sys\n"], max_tokens=4),
    request("max-2", max_tokens=2),
    request("min", stop=["sys\n"], min_tokens=4),
    request("max-4", max_tokens=4),
    request("ids", stop_token_ids=[3, 7]),
    request("ignored", ignore_eos=True),
)
LAWFUL = {
    "plain": plain(),
    "sys": gave("sys", 3, text(2)),
    "import": gave("import", 2, ""),
    "over": gave("over", 6, text(2)),
    "kept": gave("kept", 3, text(2) + "sys"),
    "near": gave("near", 3, text(2)),
    "max-2": plain("max-2", 2),
    "min": gave("min", 6, text(5)),
    "max-4": plain("max-4", 4),
    "ids": gave("ids", 3, text(2)),
    "ignored": plain("ignored"),
}
WORKLOAD = Workload(name="stops", version=1, requests=REQUESTS, scored=False)


def judged(*wrong, control=LAWFUL, **fields):
    """Judge lawful answers, those of ``wrong`` in the place of their own."""
    ours = LAWFUL | {each.request_id: each for each in wrong}
    arms = [list(answers.values()) for answers in (ours, LAWFUL, control)]
    return lengths.judge(captured("lengths", *arms, workload=WORKLOAD, **fields))


def test_answers_that_end_where_they_should_pass_with_the_places_that_were_seen():
    verdict = judged()
    assert verdict.outcome is Outcome.PASS
    assert verdict.figures == {"answers": 11, "ends": 10, "ends_inside_a_window": 10}
    assert "10 with accepted tokens after" in verdict.rules_out


@pytest.mark.parametrize(
    "flaw, wrong",
    [
        (LengthFlaw.OVERRUN, gave("max-2", 5, finish="length")),
        (LengthFlaw.STOP_REASON, gave("sys", 3, text(2), stop_string="import ")),
        (LengthFlaw.STOP_REASON, gave("sys", 3, text(2), stop_token_id=7)),
        (LengthFlaw.STOP_REASON, gave("ids", 3, text(2), stop_token_id=7)),
        (LengthFlaw.STOP_REASON, gave("plain", PLAIN, finish="length", stop_string="sys\n")),
        (LengthFlaw.UNDERSHOT, gave("plain", 9, finish="length")),
        (LengthFlaw.USAGE, gave("sys", 3, text(2), usage=Usage(prompt_tokens=3, completion_tokens=5))),
        (LengthFlaw.MISSED, gave("sys", PLAIN, finish="length")),
        (LengthFlaw.MISSED, gave("sys", 6, text(5))),
        (LengthFlaw.STRADDLED, gave("over", PLAIN, finish="length", windows=(1, 2, 3, 4, 4))),
        (LengthFlaw.LIMIT_FIRST, gave("near", 4, finish="length")),
        (LengthFlaw.BEHIND, gave("sys", 4)),
        (LengthFlaw.KEPT, gave("sys", 3)),
        (LengthFlaw.INCLUDE, gave("kept", 3, text(2))),
        (LengthFlaw.PLACE, gave("sys", 3, "impor")),
        (LengthFlaw.PLACE, gave("kept", 3, text(2) + "sy")),
        (LengthFlaw.REASON, gave("sys", 3, text(2), finish="length")),
        (LengthFlaw.STOP_ID, gave("ids", 7, text(6))),
        (LengthFlaw.BEHIND, gave("ids", 5)),
        (LengthFlaw.DESPITE, gave("ignored", 5)),
        (LengthFlaw.EARLY, gave("min", 3, text(2))),
        (LengthFlaw.STEPS, gave("min", 9, text(8))),
    ],
)
def test_each_breach_is_named(flaw, wrong):
    verdict = judged(wrong)
    assert (verdict.outcome, verdict.names, verdict.cell) == (Outcome.FAIL, flaw.value, "1 wrong end")
    assert verdict.headline.startswith(f"{flaw.value}: 1 of 11 answers")
    assert wrong.request_id in verdict.short[0]


NAMED = LAWFUL | {"sys": gave("sys", 3, text(2), stop_string="sys\n"), "ids": gave("ids", 3, text(2), stop_token_id=3)}


@pytest.mark.parametrize("lost, outcome", [((), Outcome.PASS), (("sys",), Outcome.FAIL), (("ids",), Outcome.FAIL)])
def test_a_stop_that_the_baseline_names_is_named(lost, outcome):
    ours = NAMED | {name: LAWFUL[name] for name in lost}
    verdict = lengths.judge(captured("lengths", *(list(arm.values()) for arm in (ours, NAMED, NAMED)), workload=WORKLOAD))
    assert verdict.outcome is outcome
    assert verdict.names == (LengthFlaw.STOP_REASON_LOST.value if lost else "")


@pytest.mark.parametrize("fields", [{"stop_token_id": 3}, {}])
def test_an_id_that_no_request_lists_may_end_an_answer_and_be_named(fields):
    assert judged(gave("plain", 3, text(2), **fields)).names != LengthFlaw.STOP_REASON.value


def test_a_stop_that_another_answer_of_the_baseline_names_is_not_missed():
    """Its tokens are others, so that something else ended it."""
    ours = NAMED | {"ids": gave("ids", 2, text(2), more=(7,))}
    arms = (list(arm.values()) for arm in (ours, NAMED, NAMED))
    assert lengths.judge(captured("lengths", *arms, workload=WORKLOAD)).outcome is Outcome.PASS


@pytest.mark.parametrize(
    "flaw, wrong",
    [(LengthFlaw.KEPT, gave("sys", 3)), (LengthFlaw.USAGE, gave("sys", 3, text(2), usage=Usage(prompt_tokens=3, completion_tokens=4)))],
)
def test_what_a_boot_of_the_baseline_does_is_not_the_variants_fault(flaw, wrong):
    verdict = judged(wrong, control=LAWFUL | {"sys": wrong})
    assert verdict.outcome is Outcome.PASS
    assert f"not judged, since the baseline does it too: {flaw.value}" in verdict.evidence


def test_a_flaw_that_the_baseline_shares_hides_no_other_in_the_same_answer():
    miscounted = {
        name: replace(one, usage=replace(one.usage, completion_tokens=one.usage.completion_tokens + 1)) for name, one in LAWFUL.items()
    }
    wrong = gave("sys", 6, text(6), usage=Usage(prompt_tokens=3, completion_tokens=7))
    arms = (list(arm.values()) for arm in (miscounted | {"sys": wrong}, miscounted, miscounted))
    verdict = lengths.judge(captured("lengths", *arms, workload=WORKLOAD))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, LengthFlaw.BEHIND.value)


@pytest.mark.parametrize("shows_ids", [True, False])
@pytest.mark.parametrize("early", [gave("sys", 1), gave("kept", 2), gave("over", 5)], ids=["before", "right-before", "within"])
def test_an_end_that_ids_may_hide_is_no_stop_at_a_wrong_place(early, shows_ids):
    """A near-tie: the plain answer goes on with the next token, this one ends in front of it, to two requests of one prompt."""
    body = next(request.body for request in REQUESTS if request.id == early.request_id)
    workload = replace(WORKLOAD, requests=(*REQUESTS, replace(REQUESTS[0], id="twin", body=body)))
    lawful = LAWFUL | {"twin": replace(LAWFUL[early.request_id], request_id="twin")}
    arms = [list(arm.values()) for arm in (lawful | {early.request_id: early, "twin": replace(early, request_id="twin")}, lawful, lawful)]
    arms = arms if shows_ids else [list(map(without_ids, arm)) for arm in arms]
    assert lengths.judge(captured("lengths", *arms, workload=workload)).outcome is Outcome.PASS


def test_a_limit_right_before_a_stop_that_is_to_stay_is_lawful():
    workload = replace(WORKLOAD, requests=(*REQUESTS, request("edge", stop=["sys\n"], include_stop_str_in_output=True, max_tokens=2)))
    usage = Usage(prompt_tokens=3, completion_tokens=2)
    ours = [*LAWFUL.values(), gave("edge", 2, finish="length")]
    baseline = [*LAWFUL.values(), answer("edge", (50, 51), text="other", finish="length", usage=usage)]
    assert lengths.judge(captured("lengths", ours, baseline, baseline, workload=workload)).outcome is Outcome.PASS


def test_a_stop_that_the_server_names_did_not_hide_an_end():
    named = gave("sys", 1, text(1), stop_string="sys\n")
    assert judged(named).names == LengthFlaw.PLACE.value


def test_an_end_of_the_baseline_before_a_stop_excuses_no_stop_at_a_wrong_place():
    assert judged(gave("kept", 3, "impor"), control=LAWFUL | {"sys": gave("sys", 1, text(1))}).names == LengthFlaw.PLACE.value


def test_ids_up_to_the_end_of_a_window_are_lawful_behind_a_stop_string():
    """Early vLLM reports them; the text ends in front of the stop string."""
    assert judged(gave("sys", 5, text(2))).outcome is Outcome.PASS


def test_an_answer_that_parts_from_the_plain_one_is_left_to_its_own_text():
    other = answer("sys", (1, 50, 51), text="im other ", finish="stop", usage=Usage(prompt_tokens=3, completion_tokens=3), windows=(1, 4))
    assert judged(other).outcome is Outcome.PASS


def test_an_end_of_sequence_is_learned_from_the_baseline_and_may_not_be_passed():
    asked = tuple(request(f"end-{i}", prompt=f"question {i}") for i in range(4))

    def ended(i, *more):
        tokens = (20 + i, 30 + i, EOS, *more)
        finish = "length" if len(tokens) == PLAIN else "stop"
        return answer(
            f"end-{i}",
            tokens,
            text="word",
            finish=finish,
            usage=Usage(prompt_tokens=3, completion_tokens=len(tokens)),
            windows=(1, 4, 4, 4),
        )

    lawful = [ended(i) for i in range(4)]
    workload = replace(WORKLOAD, requests=asked)
    assert lengths.judge(captured("lengths", lawful, lawful, lawful, workload=workload)).outcome is Outcome.PASS
    wrong = [ended(0, *range(70, 79)), *lawful[1:]]
    verdict = lengths.judge(captured("lengths", wrong, lawful, lawful, workload=workload))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, LengthFlaw.END.value)
    assert verdict.example == Example(symptom=Symptom.ANSWER, request_id="end-0")


def ends(count, shown):
    """Answers to as many prompts; all stop by themselves, and end with one id only where an end is ``shown``."""

    def make_answer(i):
        tokens = (20 + i, 50 + i, EOS if shown else 100 + i)
        usage = Usage(prompt_tokens=3, completion_tokens=3)
        return answer(f"end-{i}", tokens, text="word", finish="stop", usage=usage, windows=(1, 4))

    workload = replace(WORKLOAD, requests=tuple(request(f"end-{i}", prompt=f"question {i}") for i in range(count)))
    return captured("lengths", *([make_answer(i) for i in range(count)] for _ in range(3)), workload=workload)


@pytest.mark.parametrize("count, shown, clause", [
    (4, True, ""),
    (12, False, "; untested: ends of sequence, which no ids show here: 12 prompts are too few to tell them from near-ties"),
    (13, False, "; ends of sequence, which no ids show here, only if 13 of 13 prompts end otherwise"),
    (24, False, "; ends of sequence, which no ids show here, only if 17 of 24 prompts end otherwise"),
])  # fmt: skip
def test_a_pass_says_how_far_ends_that_ids_do_not_show_are_tested(count, shown, clause):
    verdict = lengths.judge(ends(count, shown))
    assert verdict.outcome is Outcome.PASS
    assert verdict.rules_out == f"places in their windows: {count} at token 2; {count} with accepted tokens after{clause}"


def without_windows(given):
    return replace(given, choices=(replace(given.choice, windows=None),))


@pytest.mark.parametrize("windows", [True, False])
@pytest.mark.parametrize("wrong", [(), ("sys", "import", "over")])
def test_a_limit_tested_before_a_stop_at_the_last_token_is_lawful_and_excuses_nothing(windows, wrong):
    workload = replace(WORKLOAD, requests=(*REQUESTS, request("edge", stop=["sys\n"], max_tokens=3)))
    edge = {"edge": gave("edge", 3, finish="length")}
    ours = LAWFUL | edge | {name: gave(name, PLAIN, finish="length") for name in wrong}
    baseline = [without_windows(each) for each in (LAWFUL | edge).values()]
    answers = [each if windows else without_windows(each) for each in ours.values()]
    verdict = lengths.judge(captured("lengths", answers, baseline, baseline, workload=workload))
    assert verdict.outcome is (Outcome.FAIL if wrong else Outcome.PASS), verdict
    assert "edge" not in " ".join(verdict.evidence)


def without_ids(given):
    return replace(given, choices=(replace(given.choice, token_ids=(), windows=None),), usage=None)


def test_without_token_ids_the_texts_decide_and_one_breach_is_not_enough():
    lawful = {name: without_ids(each) for name, each in LAWFUL.items()}
    wrong = {name: without_ids(gave(name, 3, text(3))) for name in ("sys", "near")}

    def verdict(*names):
        ours = lawful | {name: wrong[name] for name in names}
        arms = [list(answers.values()) for answers in (ours, lawful, lawful)]
        return lengths.judge(captured("lengths", *arms, workload=WORKLOAD))

    untested = "places in windows unknown; untested: ends of sequence, which no ids show here"
    assert (verdict().outcome, verdict().rules_out) == (Outcome.PASS, untested)
    assert verdict("sys").outcome is Outcome.PASS
    assert (verdict("sys", "near").outcome, verdict("sys", "near").names) == (Outcome.FAIL, LengthFlaw.KEPT.value)


def test_too_few_ends_are_inconclusive():
    workload = replace(WORKLOAD, requests=REQUESTS[:2])
    arms = [[LAWFUL["plain"], LAWFUL["sys"]]] * 3
    verdict = lengths.judge(captured("lengths", *arms, workload=workload))
    assert (verdict.outcome, verdict.cell) == (Outcome.INCONCLUSIVE, "did not bind")


def test_ends_outside_runs_of_accepted_drafts_are_inconclusive():
    single = [replace(each, choices=(replace(each.choice, windows=(1,) * 12),)) for each in LAWFUL.values()]
    verdict = lengths.judge(captured("lengths", single, single, single, workload=WORKLOAD))
    assert (verdict.outcome, verdict.cell) == (Outcome.INCONCLUSIVE, "did not bind")


def test_a_refused_feature_is_said_and_no_fault():
    refused = answer("min", status=400, error="min_tokens is not supported")
    verdict = judged(refused)
    assert verdict.outcome is Outcome.PASS
    assert any("min_tokens is not supported" in line for line in verdict.evidence)


def test_the_windows_of_a_cut_stream_are_completed_by_the_plain_answers():
    """The chunks of a stream end with the answer: the plain answer shows that accepted tokens came after it."""
    cut = {name: gave(name, 3, text(2), windows=(1, 2)) for name in ("sys", "near", "ids")}
    ours = [cut.get(name, each) for name, each in LAWFUL.items()]
    verdict = lengths.judge(captured("lengths", transcript("draft-k3", ours), list(LAWFUL.values()), workload=WORKLOAD, counters=None))
    assert verdict.figures["ends_inside_a_window"] == judged().figures["ends_inside_a_window"]


@pytest.mark.parametrize("stops, wrong, flaw, words", [
    (["sys\n", "port "], gave("two", PLAIN, finish="length"), LengthFlaw.MISSED, 'the stop string "port " with "sys'),
    (["im", "sys\n"], gave("two", 3, text(2)), LengthFlaw.MISSED, 'the stop string "im" with "port "'),
], ids=["earliest", "ended-by-another"])  # fmt: skip
def test_of_several_stop_strings_the_first_in_the_text_counts(stops, wrong, flaw, words):
    """An answer that another stop string ended has missed the first one: nothing after a stop was delivered."""
    workload = replace(WORKLOAD, requests=(*REQUESTS, request("two", stop=stops)))
    lawful = LAWFUL | {"two": gave("two", 2 if "port " in stops else 1, "im" if "port " in stops else "")}
    arms = (list(arm.values()) for arm in (lawful | {"two": wrong}, lawful, lawful))
    verdict = lengths.judge(captured("lengths", *arms, workload=workload))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, flaw.value)
    assert words in verdict.short[0]
