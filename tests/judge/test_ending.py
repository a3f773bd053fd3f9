from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.judge import greedy, liveness, logprobs, sampling, speed, structured
from pytest_specdec.judge.ending import BadEnd, check_endings
from pytest_specdec.model.transcript import ToolCall, Usage
from pytest_specdec.model.verdict import Example, Outcome, Symptom
from tests.judge.captured_values import VARIANT, a_workload, answer, captured, requests, score

EOS = 2
MOST = 64


def words(i, count=30):
    """Ordinary tokens of request ``i``; every one of them stands in the middle of some answer."""
    return tuple(10 + (7 * i + j * (1 + i % 3)) % 23 for j in range(count))


def stopped(i, tokens=None, finish="stop"):
    ids = (*words(i), EOS) if tokens is None else tuple(tokens)
    usage = Usage(prompt_tokens=3, completion_tokens=len(ids))
    return answer(f"chat-{i:02}", ids, finish=finish, text=" ".join(map(str, ids)), usage=usage)


def long(i):
    return stopped(i, words(i, MOST), "length")


def baseline():
    return [long(i) if i % 3 == 0 else stopped(i) for i in range(9)]


def changed(**changes):
    """The baseline's answers but for some, by index, as ``at_3=answer``."""
    return [changes.get(f"at_{i}", each) for i, each in enumerate(baseline())]


def seen(mine, theirs=None, control=None, family="liveness", **body):
    theirs = baseline() if theirs is None else theirs
    workload = a_workload(requests(9, max_tokens=MOST, **body))
    return captured(family, mine, theirs, theirs if control is None else control, workload=workload)


def test_a_flaw_that_the_baseline_has_by_another_rule_is_not_said_to_be_none_of_its_own():
    """The baseline stops before min_tokens; what the variant alone does is to stop at a token that ends no sequence."""
    verdict = check_endings(seen(changed(at_1=stopped(1, words(5, 13))), min_tokens=33))
    assert verdict.headline == "answers are cut short: 1 of 9 answers, by a rule that the baseline's keep"
    assert check_endings(seen(changed(at_1=stopped(1, words(5, 13))))).headline.endswith("1 of 9 answers, none of the baseline's")


def test_answers_that_end_as_the_baselines_do_are_right():
    assert check_endings(seen(baseline())) is None
    assert check_endings(seen(baseline()).as_control()) is None


WRONG = {
    "length before the limit": (changed(at_0=stopped(0, words(0, 13), "length")), BadEnd.CUT, "'length' after 13 of 64"),
    "a stop after an ordinary token": (changed(at_1=stopped(1, words(5, 13))), BadEnd.CUT, "which ends no sequence"),
    "a stop where the baseline goes on": (changed(at_0=stopped(0, words(0, 13))), BadEnd.CUT, "after 13 tokens"),
    "a stop before any token": (changed(at_1=stopped(1, ())), BadEnd.CUT, "before any token"),
    "tokens after an end of sequence": (changed(at_1=stopped(1, (*words(1), EOS, 11, 12))), BadEnd.PAST, "2 tokens after id 2"),
    "more tokens than were allowed": (changed(at_0=stopped(0, words(0, 66), "length")), BadEnd.PAST, "66 tokens where max_tokens is 64"),
    "another reason for the same tokens": (changed(at_1=stopped(1, (*words(1), EOS), "length")), BadEnd.CUT, "'length' after 31"),
    "stop for what its limit ended": (changed(at_0=stopped(0, words(0, MOST), "stop")), BadEnd.REASON, "which ends no sequence"),
    "no reason": (changed(at_1=stopped(1, finish=None)), BadEnd.REASON, "no finish_reason"),
    "a reason that nobody asked for": (changed(at_1=stopped(1, (*words(5), EOS), "abort")), BadEnd.REASON, "'abort'"),
    "a usage that counts more": (
        changed(at_0=replace(long(0), usage=Usage(prompt_tokens=3, completion_tokens=70))),
        BadEnd.COUNT,
        "70 completion tokens; the answer has 64 ids",
    ),
    "no usage": (changed(at_0=replace(long(0), usage=None)), BadEnd.COUNT, "no usage"),
    "another text of the same tokens": (
        changed(at_1=replace(stopped(1), choices=(replace(stopped(1).choice, text="17 other"),))),
        BadEnd.TEXT,
        "from the same tokens",
    ),
}


@pytest.mark.parametrize("mine, flaw, words_of_it", WRONG.values(), ids=WRONG)
def test_a_wrong_end_fails_by_name(mine, flaw, words_of_it):
    verdict = check_endings(seen(mine))
    assert (verdict.outcome, verdict.cell) == (Outcome.FAIL, "1 wrong end")
    assert verdict.names == flaw.value
    assert words_of_it in verdict.short[0]
    assert "1 of 9 answers" in verdict.headline
    assert check_endings(replace(seen(baseline(), control=mine), control=None)) is None


@pytest.mark.parametrize("mine, flaw, words_of_it", WRONG.values(), ids=WRONG)
def test_what_the_control_does_too_is_no_fault_of_the_variant(mine, flaw, words_of_it):
    given = seen(mine, control=mine)
    assert check_endings(given) is None or check_endings(given).names != flaw.value or words_of_it not in check_endings(given).short[0]
    assert check_endings(given.as_control()) is not None


def test_several_wrong_ends_are_plural():
    assert check_endings(seen(changed(at_0=long(3), at_1=stopped(1, ()), at_2=stopped(2, finish=None)))).cell == "2 wrong ends"


@pytest.mark.parametrize("judge", [greedy, liveness, logprobs, sampling, speed, structured])
def test_every_family_that_judges_answers_asks_for_their_ends(judge):
    verdict = judge.judge(seen(changed(at_0=stopped(0, words(0, 13), "length")), family=judge.__name__.rpartition(".")[2]))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, BadEnd.CUT.value)
    assert verdict.example == Example(symptom=Symptom.ANSWER, request_id="chat-00")


def test_the_end_of_the_context_is_a_limit_too():
    full = [stopped(i, words(i, 40), "length") if i == 0 else each for i, each in enumerate(baseline())]
    near = changed(at_0=stopped(0, words(0, 38), "length"))
    assert check_endings(seen(full, full)) is None
    assert check_endings(seen(near, full)) is None, "a window's room is kept free"
    assert check_endings(seen(changed(at_0=stopped(0, words(0, 20), "length")), full)).names == BadEnd.CUT


def test_stops_that_the_request_asked_for_end_an_answer():
    theirs = [stopped(i, words(i, 9)) for i in range(9)]
    assert check_endings(seen(theirs, theirs, stop=["zzz"])) is None
    assert "after id 1, which ends an answer" in check_endings(seen(changed(at_0=stopped(0, (10, 1, 11))), stop_token_ids=[1])).short[0]
    other = [stopped(i, words(i + 1, 5)) for i in range(9)]
    assert check_endings(seen(other, theirs, stop=["zzz"])) is None
    beyond = [replace(each, choices=(replace(each.choice, text="a zzz b"),)) for each in other]
    assert "after the stop string" in check_endings(seen(beyond, theirs, stop="zzz")).short[0]
    shown = [replace(each, choices=(replace(each.choice, text="a zzz"),)) for each in other]
    assert check_endings(seen(shown, theirs, stop="zzz", include_stop_str_in_output=True)) is None


def test_a_stop_string_does_not_excuse_a_stop_where_the_baseline_goes_on():
    """Three plain answers show that ids end with an end of sequence; without them any answer may have had one."""
    theirs = [stopped(i, None if i < 3 else words(i, 30)) for i in range(9)]
    mine = [*theirs[:3], *(stopped(i, words(i, 12)) for i in range(3, 9))]
    sent = (*requests(9, max_tokens=MOST)[:3], *requests(9, max_tokens=MOST, stop=["zzz"])[3:])
    assert check_endings(captured("liveness", mine, theirs, theirs, workload=a_workload(sent))).names == BadEnd.CUT
    assert check_endings(seen(mine, theirs, stop=["zzz"])) is None


def test_min_tokens_and_ignore_eos_are_kept():
    long_ones = [long(i) for i in range(9)]
    ends_early = [stopped(i, (*words(i, 5), EOS)) for i in range(9)]
    assert "min_tokens is 40" in check_endings(seen(ends_early, long_ones, min_tokens=40)).short[0]
    assert "ignore_eos" in check_endings(seen(ends_early, long_ones, ignore_eos=True)).short[0]
    within = [stopped(i, (*words(i, 5), EOS, *words(i, 58)), "length") for i in range(9)]
    assert check_endings(seen(within, within, ignore_eos=True)) is None


def without_eos(answers):
    """As an engine shows them that leaves the end of sequence out of the ids and counts it."""

    def bare(each):
        ids = tuple(one for one in each.choice.token_ids if one != EOS)
        return replace(each, choices=(replace(each.choice, token_ids=ids, text=" ".join(map(str, ids))),))

    return [bare(each) for each in answers]


def test_an_engine_that_does_not_show_its_ends_is_not_blamed_for_it():
    theirs = without_eos(baseline())
    assert check_endings(seen(theirs, theirs)) is None
    other = without_eos(changed(at_1=stopped(1, (*words(5, 20), EOS))))
    assert check_endings(seen(other, theirs)) is None
    wrong = without_eos(changed(at_1=stopped(1, words(1, 13), "length")))
    assert check_endings(seen(wrong, theirs)).names == BadEnd.CUT


@pytest.mark.parametrize("ends", [0, 1, 2])
def test_few_ends_of_the_baseline_do_not_show_that_an_engine_shows_them(ends):
    """Each stops at an id that stands in no other answer; the variant ends by itself after another token."""
    theirs = [stopped(i, (*words(i, 9), 90 + i)) if 0 < i <= ends else long(i) for i in range(9)]
    mine = [stopped(0, words(5, 13)), *theirs[1:]]
    assert check_endings(seen(mine, theirs)) is None
    at_limit = [stopped(0, words(5, MOST)), *theirs[1:]]
    assert check_endings(seen(at_limit, theirs)).names == BadEnd.REASON


def without_ends(count, **changes):
    """Answers at the limit, of an engine that leaves the end of sequence out of the ids; some changed, by index, as ``at_3=answer``."""
    return [changes.get(f"at_{i}", stopped(i, words(i, MOST), "length")) for i in range(count)]


def many(mine, theirs):
    return captured("liveness", mine, theirs, theirs, workload=a_workload(requests(len(theirs), max_tokens=MOST)))


def test_one_end_elsewhere_is_no_fault_where_nothing_shows_that_ids_end_with_an_end_of_sequence():
    """A near-tie between an end and another token; greedy and sampling judge it by the distribution there."""
    assert check_endings(seen(without_ends(9, at_0=stopped(0, words(0, 13))), without_ends(9))) is None
    ends = stopped(1, (*words(1, 9), 90))
    goes_on = stopped(1, (*words(1, 9), 90, *words(5, 54)), "length")
    assert check_endings(seen(without_ends(9, at_1=goes_on), without_ends(9, at_1=ends))) is None
    assert check_endings(seen(without_ends(9, at_1=ends), without_ends(9, at_1=goes_on))) is None


@pytest.mark.parametrize("cut, outcome", [(5, None), (24, BadEnd.CUT)])
def test_more_answers_cut_short_than_near_ties_explain_fail_though_nothing_shows_the_ends(cut, outcome):
    theirs = without_ends(24)
    mine = [stopped(i, words(i, 7)) if i < cut else each for i, each in enumerate(theirs)]
    verdict = check_endings(many(mine, theirs))
    assert (verdict and verdict.names) == outcome
    assert verdict is None or verdict.headline == "answers are cut short: 24 of 24 answers, none of the baseline's"


def test_a_near_tie_of_the_control_excuses_no_server_that_cuts_all_answers():
    theirs = without_ends(24)
    mine = [stopped(i, words(i, 7)) for i in range(24)]
    control = without_ends(24, at_3=stopped(3, words(3, 9)))
    verdict = check_endings(captured("liveness", mine, theirs, control, workload=a_workload(requests(24, max_tokens=MOST))))
    assert verdict.names == BadEnd.CUT


def test_a_server_that_never_stops_fails_though_nothing_shows_the_ends():
    theirs = [stopped(i, (*words(i, 9), 90 + i)) for i in range(24)]
    mine = [stopped(i, (*words(i, 9), 90 + i, *words(5, 54)), "length") for i in range(24)]
    assert check_endings(many(mine, theirs)).names == BadEnd.PAST


def test_answers_cut_at_the_first_sight_of_their_prompts_alone_fail():
    theirs = [replace(each, pass_index=p) for p in range(2) for each in without_ends(24)]
    mine = [replace(stopped(i, words(i, 7)) if not p else each, pass_index=p) for p in range(2) for i, each in enumerate(without_ends(24))]
    sent = replace(a_workload(requests(24, max_tokens=MOST)), passes=2)
    assert check_endings(captured("liveness", mine, theirs, theirs, workload=sent)).names == BadEnd.CUT


def test_the_same_prompts_again_do_not_make_a_cut_answer_many():
    theirs = [replace(each, pass_index=p) for p in range(8) for each in without_ends(3)]
    mine = [replace(each, pass_index=p) for p in range(8) for each in (stopped(i, words(i, 7)) for i in range(3))]
    assert check_endings(seen(mine, theirs)) is None


def documents(*last, plain=()):
    """Answers bound to a grammar that stop at these ids, and plain ones; the first document ends early in the variant's."""
    sent = (*requests(len(last), response_format={"type": "json_object"}, max_tokens=MOST), *requests(9, max_tokens=MOST)[len(last) :])
    sent = sent[: len(last) + len(plain)]
    theirs = [stopped(i, (*words(i, 9), token)) for i, token in enumerate((*last, *plain))]
    mine = [stopped(0, words(0, 5)), *theirs[1:]]
    return captured("structured", mine, theirs, theirs, workload=a_workload(sent))


def test_three_documents_that_end_with_one_id_show_the_ends_of_documents():
    assert check_endings(documents(EOS, EOS, EOS)).names == BadEnd.CUT
    assert check_endings(documents(EOS, EOS)) is None
    assert check_endings(documents(EOS, EOS, EOS, 91)) is None


def test_documents_and_other_answers_that_end_with_one_id_show_the_ends_of_both():
    assert check_endings(documents(EOS, EOS, plain=(EOS,) * 3)).names == BadEnd.CUT
    assert check_endings(documents(EOS, EOS, plain=(EOS,))) is None, "a bracket may end all documents, and a plain answer"
    assert check_endings(documents(91, 91, plain=(EOS, EOS))) is None


@pytest.mark.parametrize("runner_up, outcome", [(0.1, Outcome.PASS), (0.4, Outcome.FAIL)])
def test_an_end_that_is_not_shown_is_judged_by_the_distribution_behind_it(runner_up, outcome):
    """The answer ends after 13 tokens; the baseline goes on, with another token ``runner_up`` nats below its own."""
    theirs = without_eos([stopped(i) for i in range(9)])
    mine = [without_eos([stopped(0, (*words(0, 13), EOS))])[0], *theirs[1:]]
    distribution = tuple(score("baseline", each, others=((900, 0.6 * 2.718281828**-runner_up),)) for each in theirs)
    given = replace(
        seen(mine, theirs, family="greedy"), scores={VARIANT: tuple(score(VARIANT, each) for each in mine), "baseline": distribution}
    )
    assert greedy.judge(given).outcome is outcome


@pytest.mark.parametrize("gap, outcome", [(0.1, Outcome.PASS), (0.4, Outcome.FAIL)])
def test_going_on_where_an_end_is_not_shown_is_judged_as_the_token_that_came(gap, outcome):
    theirs = without_eos([stopped(i) for i in range(9)])
    mine = [without_eos([stopped(0, (*words(0, 40), EOS))])[0], *theirs[1:]]
    distribution = tuple(score(VARIANT, each, {30: gap}.items() if i == 0 else ()) for i, each in enumerate(mine))
    given = replace(seen(mine, theirs, family="greedy"), scores={VARIANT: distribution}, alpha=0.0)
    assert greedy.judge(given).outcome is outcome


def twice(each):
    counted = Usage(prompt_tokens=3, completion_tokens=2 * len(each.choice.token_ids))
    return replace(each, choices=(each.choice, replace(each.choice, index=1)), usage=counted)


def test_several_choices_are_counted_together():
    mine = list(map(twice, baseline()))
    theirs = [*baseline()[:4], *mine[4:]]
    assert check_endings(seen(mine, theirs)) is None
    miscounted = replace(mine[0], usage=Usage(prompt_tokens=3, completion_tokens=5))
    assert check_endings(seen([miscounted, *mine[1:]], theirs)).names == BadEnd.COUNT


def reasoning(i, text=None, *, reasoning="because", counted=None, **body):
    each = long(i)
    usage = replace(each.usage, reasoning_tokens=counted)
    choice = replace(each.choice, reasoning=reasoning, text=each.choice.text if text is None else text)
    return replace(each, usage=usage, choices=(choice,), **body)


def test_another_reasoning_of_the_same_tokens_is_another_text():
    theirs = [reasoning(i) for i in range(9)]
    assert check_endings(seen(theirs, theirs)) is None
    verdict = check_endings(seen([reasoning(0, reasoning="becomes"), *theirs[1:]], theirs))
    assert (verdict.names, verdict.figures["wrong_ends"]) == (BadEnd.TEXT, 1)
    assert 'reasoning goes on with "omes", the baseline\'s with "ause"' in verdict.short[0]


def test_reasoning_that_goes_on_after_a_stop_string_is_seen():
    theirs = [reasoning(i, reasoning="calm") for i in range(9)]
    mine = [reasoning(0, reasoning="a STOP and on"), *theirs[1:]]
    assert check_endings(seen(mine, theirs, stop=["STOP"])).names == BadEnd.PAST


def test_more_reasoning_tokens_than_tokens_are_a_wrong_count():
    theirs = [reasoning(i, counted=20) for i in range(9)]
    assert check_endings(seen(theirs, theirs)) is None
    verdict = check_endings(seen([reasoning(0, counted=MOST + 1), *theirs[1:]], theirs))
    assert (verdict.names, verdict.figures["wrong_ends"]) == (BadEnd.COUNT, 1)
    assert f"{MOST + 1} reasoning tokens among {MOST}" in verdict.short[0]
    assert check_endings(seen(theirs, [reasoning(i, counted=MOST + 1) for i in range(9)])) is None


def test_calls_without_ids_leave_the_count_of_other_answers_in_force():
    """Answers of the Responses API have no token ids."""
    call = answer("chat-01", finish="tool_calls", usage=Usage(prompt_tokens=3, completion_tokens=20))
    call = replace(call, choices=(replace(call.choice, tool_calls=(ToolCall(id="a", name="f", arguments="{}"),)),))
    theirs = changed(at_1=call)
    assert check_endings(seen(theirs, theirs)) is None
    more = replace(theirs[2], usage=Usage(prompt_tokens=3, completion_tokens=theirs[2].usage.completion_tokens + 5))
    assert check_endings(seen([*theirs[:2], more, *theirs[3:]], theirs)).names == BadEnd.COUNT


def test_reasoning_without_ids_or_text_is_no_empty_answer():
    theirs = [reasoning(i) for i in range(9)]
    silent = replace(answer("chat-01", reasoning="because"), usage=Usage(prompt_tokens=3, completion_tokens=0))
    found = check_endings(seen([theirs[0], silent, *theirs[2:]], theirs))
    assert found is None or "before any token" not in found.short[0]
