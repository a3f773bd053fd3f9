"""What keeps a verdict from being given: nothing drafted, or an engine without log-probabilities of given tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.judge import greedy, logprobs, parameters, sampling, structured
from pytest_specdec.judge.acceptance import verdict as acceptance
from pytest_specdec.judge.prerequisites import equal_answers, speculating
from pytest_specdec.judge.verdicts import say
from pytest_specdec.model.captured import Capabilities, FeatureSupport
from pytest_specdec.model.pair import DraftKind
from pytest_specdec.model.transcript import SpecCounters, Stream
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Request, Route
from tests.judge.captured_values import a_pair, a_workload, answer, captured


def seen(counters, windows=None, pair=None):
    return captured("greedy", [answer("chat-00", (1,), windows=windows)], [answer("chat-00", (1,))], counters=counters, pair=pair)


@pytest.mark.parametrize(
    "drafts, drafted, accepted, said",
    [
        (0, 0, 0, "nothing drafted"),
        (32, 96, 0, "no draft token accepted"),
        (32, 96, 96, "no draft token rejected"),
        (32, 96, 95, None),
    ],
)
def test_counters_must_show_drafts_acceptances_and_rejections(drafts, drafted, accepted, said):
    verdict = speculating(seen(SpecCounters(drafts=drafts, draft_tokens=drafted, accepted_tokens=accepted)))
    if said is None:
        assert verdict is None
        return
    assert verdict.outcome is Outcome.NOT_SPECULATING
    assert verdict.headline.startswith(said)
    assert f"{drafts} drafts, {accepted} draft tokens accepted, {drafted - accepted} rejected" in verdict.headline
    assert verdict.short[0].startswith("likely: ")
    assert verdict.red


@pytest.mark.parametrize("accepted, fault", [(0, "a drafter that never fits"), (3, "a server that accepts every draft token")])
@pytest.mark.parametrize("drafts, outcome", [(31, Outcome.INCONCLUSIVE), (32, Outcome.NOT_SPECULATING)])
def test_a_handful_of_drafts_alike_is_no_proof(drafts, outcome, accepted, fault):
    verdict = speculating(seen(SpecCounters(drafts=drafts, draft_tokens=3 * drafts, accepted_tokens=accepted * drafts)))
    assert verdict.outcome is outcome
    assert (f"too few to tell chance from {fault}" in verdict.headline) is (outcome is Outcome.INCONCLUSIVE)


def looked_up(ids, *, prompt=(7, 8, 9), looked_up=3, kind=DraftKind.UNKNOWN, counters=None, windows=None):
    pair = a_pair(kind)
    pair = replace(pair, variant=replace(pair.variant, draft=replace(pair.variant.draft, ngram_min=looked_up)))
    mine = replace(answer("chat-00", ids, windows=windows), prompt_token_ids=prompt)
    return speculating(captured("greedy", [mine], [mine], counters=counters, pair=pair))


ALL_NEW = tuple(range(100, 200))
SAME_AGAIN = (*range(100, 120), *range(100, 120))


@pytest.mark.parametrize(
    "ids, prompt, matches",
    [
        (ALL_NEW, (7, 8, 9), 0),
        (SAME_AGAIN, (7, 8, 9), 17),
        (SAME_AGAIN, tuple(range(100, 117)), 32),
        ((*SAME_AGAIN, *range(100, 120)), (7, 8, 9), 37),
    ],
)
def test_nothing_drafted_is_no_fault_of_a_lookup_that_had_hardly_anything_to_find(ids, prompt, matches):
    verdict = looked_up(ids, prompt=prompt, counters=SpecCounters())
    assert verdict.outcome is (Outcome.INCONCLUSIVE if matches < 32 else Outcome.NOT_SPECULATING)
    assert (f"{matches} of {len(ids)} tokens follow 3 tokens that occurred before" in verdict.headline) is (matches < 32)


def test_steps_of_one_token_alone_are_no_fault_of_a_lookup_that_had_nothing_to_find():
    verdict = looked_up(ALL_NEW, kind=DraftKind.NGRAM, windows=(1,) * 100)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "0 of 100 tokens follow 3 tokens" in verdict.headline


@pytest.mark.parametrize(
    "ids, prompt, size",
    [(ALL_NEW, (7, 8, 9), 0), (ALL_NEW, (), 3), ((), (7, 8, 9), 3)],
    ids=["drafts after any text", "prompt unknown", "tokens unknown"],
)
def test_nothing_drafted_is_excused_only_where_a_lookup_is_known_to_find_nothing(ids, prompt, size):
    assert looked_up(ids, prompt=prompt, looked_up=size, counters=SpecCounters()).outcome is Outcome.NOT_SPECULATING


@pytest.mark.parametrize(
    "windows, kind, said",
    [
        (None, DraftKind.MODEL, "speculation unknown"),
        ((1, 4, 2, 1), DraftKind.MODEL, None),
        ((1, 4, 4, 1), DraftKind.MODEL, "no draft token rejected in the judged requests (no counters): too few"),
        ((1, *(4,) * 32, 4), DraftKind.MODEL, "no draft token rejected in the judged requests (no counters)"),
        ((1, 1, 1, 4), DraftKind.MODEL, "no draft token accepted in the judged requests (no counters): too few"),
        ((1, *(1,) * 32, 4), DraftKind.MODEL, "no draft token accepted in the judged requests (no counters)"),
        ((1, 4, 1, 1), DraftKind.MODEL, None),
        ((1, 4, 1, 1), DraftKind.NGRAM, "no draft token rejected"),
        ((1, 4, 2, 1), DraftKind.NGRAM, None),
        ((1,), DraftKind.MODEL, "no draft token accepted"),
    ],
)
def test_without_counters_the_windows_tell(windows, kind, said):
    """The first entry is the prefill's, the last may be cut, and prompt lookup drafts nothing for a window of one."""
    verdict = speculating(seen(None, windows, a_pair(kind)))
    assert (verdict is None) == (said is None)
    assert verdict is None or verdict.headline.startswith(said)


@pytest.mark.parametrize(
    "counters, windows, most, outcome",
    [
        (SpecCounters(), None, 7, Outcome.INCONCLUSIVE),
        (None, (1, 1, 1, 1), 7, Outcome.INCONCLUSIVE),
        (SpecCounters(), None, 8, Outcome.NOT_SPECULATING),
        (SpecCounters(), None, 0, Outcome.NOT_SPECULATING),
        (SpecCounters(drafts=32, draft_tokens=96), None, 7, Outcome.NOT_SPECULATING),
    ],
)
def test_nothing_drafted_is_excused_only_where_the_config_bounds_the_batch_below_the_requests_in_flight(counters, windows, most, outcome):
    pair = a_pair()
    draft = replace(pair.variant.draft, most_requests=most)
    bounded = replace(pair, variant=replace(pair.variant, draft=draft))
    verdict = speculating(seen(counters, windows, bounded))
    assert verdict.outcome is outcome
    assert ("batches of 7 at most, and 8 requests" in verdict.headline) is (outcome is Outcome.INCONCLUSIVE)


@pytest.mark.parametrize("in_flight, outcome", [(1, Outcome.NOT_SPECULATING), (8, Outcome.INCONCLUSIVE)])
def test_nothing_drafted_is_excused_under_load_where_the_config_says_that_drafting_depends_on_it(in_flight, outcome):
    pair = a_pair()
    loaded = replace(pair, variant=replace(pair.variant, draft=replace(pair.variant.draft, depends_on_load=True)))
    captured = seen(SpecCounters(), None, loaded)
    verdict = speculating(replace(captured, workload=replace(captured.workload, concurrency=in_flight)))
    assert verdict.outcome is outcome
    assert ("drafting depends on load, and 8 requests" in verdict.headline) is (outcome is Outcome.INCONCLUSIVE)


def test_the_control_is_not_asked():
    assert speculating(replace(seen(SpecCounters()), is_control=True)) is None


def test_a_finding_that_does_not_hang_on_rejections_is_not_held_up_by_their_absence():
    counters = SpecCounters(drafts=9, draft_tokens=27, accepted_tokens=27)
    assert speculating(seen(counters), needs_rejections=False) is None
    assert speculating(seen(SpecCounters(drafts=9, draft_tokens=27)), needs_rejections=False) is not None


STEPS = (1, 5, 7, 11, 12, 16, 20)
ONE_BY_ONE = tuple(range(1, 21))


def streamed(*ends_of_prompt, apart_s=0.01):
    """Two answers of twenty tokens to each prompt, in chunks that end at these characters."""
    return tuple(
        Stream(prompt=i, text="x" * 20, ends=ends, at_s=tuple(apart_s * (n + 1) for n in range(len(ends))), tokens=20)
        for i, ends in enumerate(ends_of_prompt)
        for _ in range(2)
    )


@pytest.mark.parametrize(
    "mine, theirs, said",
    [
        ([STEPS] * 12, [ONE_BY_ONE] * 12, None),
        ([ONE_BY_ONE] * 12, [ONE_BY_ONE] * 12, "bursts: 1.00 tokens at a time"),
        ([STEPS] * 12, [STEPS] * 12, "bursts: unknown, 2.86 tokens of the baseline arrive at a time"),
        ([(20,)] * 12, [(20,)] * 12, "bursts: unknown, 20.00 tokens of the baseline arrive at a time"),
        ([STEPS] * 12, [], "bursts: no streams of both servers to compare"),
        ([], [ONE_BY_ONE] * 12, "bursts: no streams of both servers to compare"),
    ],
)
def test_without_counters_and_windows_the_bursts_of_the_streams_tell(mine, theirs, said):
    known = {"draft-k3": Capabilities(streams=streamed(*mine)), "baseline": Capabilities(streams=streamed(*theirs))}
    given = replace(seen(None), capabilities=known)
    verdict = speculating(given)
    if said is not None:
        assert (verdict.outcome, verdict.evidence[1][: len(said)]) == (Outcome.NOT_SPECULATING, said)
        assert verdict.headline.startswith("speculation unknown")
        assert "counters" in verdict.short[0]
        return
    assert verdict is None
    passed = say(given, Outcome.PASS, "all right", rules_out="wrong tokens")
    assert passed.rules_out == "wrong tokens; drafting seen by bursts of its stream, not counted"
    assert passed.evidence[1].startswith("bursts: 2.86 tokens at a time, the baseline's 1.00")
    assert acceptance.judge_acceptance(given).headline.startswith("about 2.86 tokens per step, by bursts")


def test_counters_go_before_bursts():
    known = {"draft-k3": Capabilities(streams=streamed(*[STEPS] * 12)), "baseline": Capabilities(streams=streamed(*[ONE_BY_ONE] * 12))}
    verdict = speculating(replace(seen(SpecCounters()), capabilities=known))
    assert verdict.headline.startswith("nothing drafted")
    windowed = speculating(replace(seen(None, (1, 1, 1, 1)), capabilities=known))
    assert windowed.headline.startswith("no draft token accepted")


REFUSED = {"token_ids": FeatureSupport.HONOURED, "prompt_logprobs": FeatureSupport.REFUSED, "continuations": FeatureSupport.REFUSED}
WHY = "(prompt_logprobs refused, continuations refused)"
OPTION = "leave out no-prompt-logprobs, or no-token-prompts"
FORMAT = {"type": "json_schema", "json_schema": {"name": "number", "schema": {"type": "integer"}}}
JUDGES = {
    "greedy": greedy.judge,
    "sampling": sampling.judge,
    "logprobs": logprobs.judge,
    "parameters": parameters.judge,
    "structured": structured.judge,
}


def unscored(family, *, parted=3, temperature=None, ids=True, support=None, scored_with=OPTION, **fields):
    """Ten answers of twenty tokens, the first ``parted`` of which are not the baseline's; ``ids``: whether token ids came with them."""

    def said(*words):
        return [answer(f"chat-{i:02}", tuple(map(ord, word * 20)) if ids else (), text=word) for i, word in enumerate(words)]

    temperature = float(family == "sampling") if temperature is None else temperature
    body = {"temperature": temperature, "max_tokens": 200, **({"response_format": FORMAT} if family == "structured" else {})}
    asked = [Request(id=f"chat-{i:02}", route=Route.CHAT, body=body) for i in range(10)]
    known = Capabilities(support={**REFUSED, **(support or {})}, scored_with=scored_with)
    mine, theirs = said(*"2" * parted, *"1" * (10 - parted)), said(*"1" * 10)
    return captured(family, mine, theirs, theirs, workload=a_workload(asked), capabilities={"baseline": known}, **fields)


@pytest.mark.parametrize("family", JUDGES)
@pytest.mark.parametrize("ids", [True, False])
def test_no_judge_of_tokens_decides_and_each_says_what_would_let_it(family, ids):
    verdict = JUDGES[family](unscored(family, ids=ids))
    assert verdict.outcome is Outcome.INCONCLUSIVE, verdict.headline
    assert WHY in verdict.headline
    assert verdict.settle == OPTION
    assert verdict.cell == "not scored"
    assert not verdict.names
    assert not verdict.rules_out


@pytest.mark.parametrize("parted", [0, 3])
def test_greedy_answers_are_counted_as_strings_and_nothing_is_concluded_from_that(parted):
    verdict = greedy.judge(unscored("greedy", parted=parted))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.headline.startswith(f"{10 - parted} of 10 answers equal the baseline's; ")
    assert (verdict.figures["answers"], verdict.figures["answers_equal"]) == (10, 10 - parted)
    assert verdict.evidence[0].startswith("10 of 10")


def test_drawn_answers_are_not_held_against_each_other():
    verdict = sampling.judge(unscored("sampling"))
    assert verdict.headline.startswith("no token can be scored")
    assert not verdict.figures


def test_documents_are_judged_by_validity_where_no_score_is_needed():
    assert structured.judge(unscored("structured", parted=0)).outcome is Outcome.PASS
    assert structured.judge(unscored("structured", temperature=1.0)).outcome is Outcome.PASS
    invalid = unscored("structured", temperature=1.0)
    bad = [replace(one, choices=(replace(one.choice, text="no"),)) for one in invalid.speculative.answers]
    broken = replace(invalid, speculative=replace(invalid.speculative, answers=tuple(bad)))
    assert structured.judge(broken).outcome is Outcome.FAIL


@pytest.mark.parametrize("found, judged", [
    ({"prompt_logprobs": FeatureSupport.IGNORED}, False),
    ({"prompt_logprobs": FeatureSupport.UNKNOWN, "token_ids": FeatureSupport.IGNORED}, False),
    ({"prompt_logprobs": FeatureSupport.UNKNOWN, "token_ids": FeatureSupport.REFUSED}, False),
    ({"prompt_logprobs": FeatureSupport.HONOURED}, True),
    ({"continuations": FeatureSupport.HONOURED}, True),
    ({"continuations": FeatureSupport.UNKNOWN}, True),
    ({"prompt_logprobs": FeatureSupport.UNKNOWN}, True),
])  # fmt: skip
@pytest.mark.parametrize("family", ["greedy", "sampling"])
def test_missing_scores_of_an_engine_that_gives_them_are_invalid(family, found, judged):
    """The baseline's capability probe alone decides; of what it did not try nothing is said."""
    verdict = JUDGES[family](unscored(family, support=found))
    assert verdict.outcome is (Outcome.INVALID if judged else Outcome.INCONCLUSIVE)


@pytest.mark.parametrize("ids, judged", [(True, Outcome.INVALID), (False, Outcome.INCONCLUSIVE)])
def test_an_engine_that_spells_out_greedy_tokens_alone_leaves_sampled_ones_unjudged(ids, judged):
    """Ids that came and were not scored are another matter."""
    found = {"prompt_logprobs": FeatureSupport.HONOURED, "sampled_token_ids": FeatureSupport.IGNORED}
    verdict = sampling.judge(unscored("sampling", support=found, ids=ids))
    assert (verdict.outcome, "without token ids" in verdict.headline) == (judged, not ids)


@pytest.mark.parametrize("family", ["greedy", "sampling"])
def test_without_a_probe_missing_scores_are_invalid(family):
    assert JUDGES[family](replace(unscored(family), capabilities={})).outcome is Outcome.INVALID


def test_an_engine_without_a_known_option_is_told_the_routes():
    assert "prompt log-probabilities" in greedy.judge(unscored("greedy", scored_with="")).settle


@pytest.mark.parametrize("family", JUDGES)
def test_an_arm_that_drafts_nothing_is_red_all_the_same(family):
    assert JUDGES[family](unscored(family, counters=SpecCounters())).outcome is Outcome.NOT_SPECULATING


@pytest.mark.parametrize("family", JUDGES)
def test_the_control_is_as_little_judged(family):
    """It says what the baseline says here, which is enough for documents."""
    verdict = JUDGES[family](unscored(family).as_control())
    assert verdict.outcome is (Outcome.PASS if family == "structured" else Outcome.INCONCLUSIVE)


def test_answers_of_another_reasoning_are_not_equal():
    mine, theirs = ([answer(f"chat-{i:02}", (), text="yes", reasoning=reasoning) for i in range(2)] for reasoning in ("so", "because"))
    asked = a_workload(Request(id=f"chat-{i:02}", route=Route.CHAT, body={"temperature": 0}) for i in range(2))
    held = captured("greedy", mine, theirs, workload=asked)
    assert equal_answers(held, held.speculative) == (False, False)
    assert equal_answers(held, held.baseline) == (True, True)


@pytest.mark.parametrize("windows, said", [((1, 4, 2, 4, 3), None), ((1, 4, 4, 4, 3), "no draft token rejected")])
def test_windows_show_rejections_where_no_setting_says_how_many_tokens_are_drafted(windows, said):
    pair = a_pair()
    unknown = replace(pair, variant=replace(pair.variant, draft=replace(pair.variant.draft, tokens=0)))
    verdict = speculating(seen(None, windows=windows, pair=unknown))
    assert (verdict is None) == (said is None)
    assert verdict is None or verdict.headline.startswith(said)
