"""The lines of an upgrade's comparison on the tokens of one baseline, as the other one scored them.

The baselines, servers without speculation, are of the engine before the upgrade (old) and after it (new). To score an answer is to have a
server give the log-probabilities of its tokens. A bet gathers evidence that sampled tokens do not follow the scores' distribution.
"""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING

from pytest_specdec.judge.old_tokens import ALPHA
from pytest_specdec.report.escape import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.judge.old_tokens import NewTokens, OldTokens, SampledBet
    from pytest_specdec.stats.default_parameters import DefaultsComparison

_SHOWN = 3
"""Wrong tokens that are listed."""


def lines(old: OldTokens | None) -> Iterator[str]:
    """Yield lines on the old baseline's tokens, scored by the new baseline.

    They are the wrong tokens at temperature 0, the evidence of the sampled tokens against the new distribution, and the comparison of
    default sampling parameters. A token is wrong if the new baseline's best one is further above it than noise explains. ``old`` is None
    if the new run scored none, as the one line then says.
    """
    if old is None:
        yield "old answers: the new run scored none of them; a capture under --specdec-against does"
        return
    unscored = f"; {old.unscored} more were not scored" if old.unscored else ""
    yield f"old answers: {old.answers}, of {old.tokens:,} tokens, scored by the new baseline{unscored}"
    if old.likeliest:  # the number of answers at temperature 0
        yield f"  at temperature 0: {len(old.wrong)} tokens wrong beyond noise, in {old.wrong_answers} of {old.likeliest} answers"
        for difference in old.wrong[:_SHOWN]:
            tokens = f"id {difference.old_id} -> id {difference.new_id}"
            yield printable(f"    {difference.request_id}, token {difference.index + 1}: {tokens}, {difference.gap:.2f} nats apart")
    yield from _bet_lines(old)
    if old.defaults:
        yield f"  default sampling parameters: {_describe_defaults(old.defaults, is_other=old.has_other_defaults)}"


def new_lines(new: NewTokens | None) -> Iterator[str]:
    """Yield lines on the new baseline's sampled tokens, scored by the old one.

    ``new`` is None if the old baseline scored none; then there is no line.
    """
    if new is None:
        return
    unscored = f"; {new.unscored} more were not scored" if new.unscored else ""
    yield f"new answers: {new.answers} sampled ones, of {new.tokens:,} tokens, scored by the old baseline{unscored}"
    yield from _bet_lines(new)


def _bet_lines(tokens: OldTokens | NewTokens) -> Iterator[str]:
    """Yield a line for each bet, or only the strongest one.

    All are shown if one of them is an alarm; the strongest comes first. There is one bet per workload: the evidence that its sampled tokens
    do not follow the distribution of the other run's baseline. Nothing without bets.
    """
    yield from (printable(f"  {_describe_bet(bet)}") for bet in (tokens.bets if tokens.draws_otherwise else tokens.bets[:1]))


def _describe_bet(bet: SampledBet) -> str:
    """Return one workload's evidence against an unchanged distribution, in words.

    It is the highest that its bets reached, as a power of ten. Each bet is on one kind of difference, such as another temperature. An alarm
    is shown with the kind whose bet gained most, by name, and that gain in nats, the logarithm of its winnings, per token.
    """
    evidence = f"evidence 10^{bet.log10_evidence:.1f}, {bet.workload}, {bet.tokens:,} tokens"
    if not bet.is_alarm:
        return f"sampled: no other distribution shows (highest {evidence})"
    return f"sampled: another distribution, as of {bet.name}; {bet.nats_per_token:.2g} nats per token ({evidence})"


def _describe_defaults(defaults: DefaultsComparison, *, is_other: bool) -> str:
    """Return the comparison of default sampling parameters in words.

    ``is_other`` is True if the evidence that they differ reaches the alarm, 1 / ALPHA. Evidence is shown as a power of ten.
    """
    evidence = f"evidence 10^{defaults.log_evidence / log(10.0):.1f}, alarm at 10^{-log(ALPHA) / log(10.0):.0f}"
    tokens = f"{defaults.old_tokens:,} old and {defaults.new_tokens:,} new tokens"
    if not is_other:
        return f"no difference shows ({evidence}, {tokens})"
    return f"about {defaults.old} -> about {defaults.new} ({evidence}, {tokens})"
