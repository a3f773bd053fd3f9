"""What a comparison says of the old baseline's tokens."""

from __future__ import annotations

from pytest_specdec.judge.old_tokens import NewTokens, OldTokens, SampledBet, TokenDifference
from pytest_specdec.report.old_tokens import lines, new_lines
from pytest_specdec.stats.default_parameters import NEUTRAL, DefaultParameters, DefaultsComparison

COOL = DefaultParameters(temperature=0.6, top_k=0, top_p=0.95)
BET = SampledBet(workload="chat", tokens=1200, log10_evidence=4.2, name="T too low", nats_per_token=0.021, is_alarm=True)
WRONG = tuple(TokenDifference(request_id=f"chat-{number}\x1b", index=51, old_id=7, new_id=8, gap=2.5) for number in range(4))


def defaults(log_evidence):
    return DefaultsComparison(old=NEUTRAL, new=COOL, log_evidence=log_evidence, old_tokens=300, new_tokens=310)


def test_a_run_that_was_not_captured_against_the_old_one_says_how_to():
    assert list(lines(None)) == ["old answers: the new run scored none of them; a capture under --specdec-against does"]


def test_every_kind_of_difference_has_its_line_and_three_wrong_tokens_are_shown():
    old = OldTokens(answers=50, tokens=3000, unscored=2, likeliest=6, wrong=WRONG, wrong_answers=4, bets=(BET,), defaults=defaults(11.0))
    text = list(lines(old))
    assert text == [
        "old answers: 50, of 3,000 tokens, scored by the new baseline; 2 more were not scored",
        "  at temperature 0: 4 tokens wrong beyond noise, in 4 of 6 answers",
        *(text[2:5]),
        "  sampled: another distribution, as of T too low; 0.021 nats per token (evidence 10^4.2, chat, 1,200 tokens)",
        (
            "  default sampling parameters: about temperature 1 -> about temperature 0.6, top_p 0.95"
            " (evidence 10^4.8, alarm at 10^3, 300 old and 310 new tokens)"
        ),
    ]
    assert all("token 52: id 7 -> id 8, 2.50 nats apart" in line and "\x1b" not in line for line in text[2:5])


def test_nothing_found_is_said_with_its_evidence():
    quiet = SampledBet(workload="chat", tokens=1200, log10_evidence=0.5, name="x", nats_per_token=0.001, is_alarm=False)
    text = list(lines(OldTokens(answers=1, tokens=3, bets=(quiet, quiet), defaults=defaults(-2.0))))
    assert text[1:] == [
        "  sampled: no other distribution shows (highest evidence 10^0.5, chat, 1,200 tokens)",
        "  default sampling parameters: no difference shows (evidence 10^-0.9, alarm at 10^3, 300 old and 310 new tokens)",
    ]


def test_new_tokens_have_their_lines_where_the_old_baseline_scored_them():
    assert list(new_lines(None)) == []
    assert list(new_lines(NewTokens(answers=8, tokens=1200, unscored=1, bets=(BET,)))) == [
        "new answers: 8 sampled ones, of 1,200 tokens, scored by the old baseline; 1 more were not scored",
        "  sampled: another distribution, as of T too low; 0.021 nats per token (evidence 10^4.2, chat, 1,200 tokens)",
    ]
