"""Findings on ranks: one that accepts or drafts nothing while the others do, by the counters of each.

A rank is a process of the server, or a part of one, with speculation counters of its own.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pytest_specdec.judge.drafting.findings import DraftFinding
from pytest_specdec.model.spec_counters import RankCounters, SpecCounters, sum_ranks
from pytest_specdec.stats.proportions import greater_than_rate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_specdec.model.captured import Captured

_BLOCK = 32
"""Drafts. A rank that accepts as the others do has one accepted among so many more often than not, whichever prompts it gets."""
_EXPECTED = 8
"""Drafts that the others would have made for as many tokens: of a rank that drafts as they do, some come of so many more often than not."""
_SHARE = 0.1
"""Largest part of the others' rate at which a rank is called one that accepts, or drafts, nothing."""
_LEAST_RATE = 0.05
"""Share of the others' drafts with an accepted token, needed for a rank without any to be striking."""


def compare_ranks(parts: Sequence[Captured]) -> Iterator[DraftFinding]:
    """Yield the findings on every rank, compared with all others together.

    Their counts are added up over the workloads. A rank is left out if the others drafted nothing, or if its own counts are too small for a
    test. Nothing is yielded for a server with one source of counters, or if the counters of any rank began anew.
    """
    if describe_uncompared(parts):  # some counters began anew
        return
    ranks = sum_ranks(part.speculative.ranks for part in parts)
    for rank in ranks if len(ranks) > 1 else ():
        others = _pool([other for other in ranks if other is not rank])
        if others.counters.drafts > 0:
            findings = [_compare_accepted(rank, others)]
            # Prompt lookup drafts by the text, and each rank gets other texts.
            if all(part.pair.variant.draft.kind.every_step for part in parts):
                findings.append(_compare_drafted(rank, others))
            yield from (finding for finding in findings if finding is not None)


def describe_uncompared(parts: Sequence[Captured]) -> tuple[str, ...]:
    """Return a line on ranks whose counters began anew, and so are not compared; empty without any."""
    names = dict.fromkeys(rank.name for part in parts for rank in part.speculative.ranks if rank.began_anew)
    return (f"ranks were not compared: counters of {', '.join(names)} began anew",) if names else ()


def _pool(ranks: Sequence[RankCounters]) -> RankCounters:
    """Return the counts of one rank or more as those of one.

    Counts of ranks with equal names are added up by :func:`sum_ranks`, so that all get the same name.
    """
    alike = [RankCounters(name="the others", counters=rank.counters, generated_tokens=rank.generated_tokens) for rank in ranks]
    return sum_ranks([alike])[0]


def _successes(counters: SpecCounters) -> int:
    """Return the largest possible number of drafts with an accepted token.

    With counts by position it is exact, the number accepted at the first position: later ones are accepted only after it. Without, each
    accepted token is taken for one of another draft.
    """
    by_position = counters.accepted_per_position
    return by_position[0] if by_position else min(counters.accepted_tokens, counters.drafts)


def _compare_accepted(rank: RankCounters, others: RankCounters) -> DraftFinding | None:
    """Return the finding on the accepted drafts of a rank.

    Its drafts are counted in blocks of 32, since drafts of one answer depend on each other; None if it has too few for a block. In a
    correct rank a block has an accepted token with probability one half at least. The exact binomial test gives the chance of so many
    blocks without one, at one half. It is striking if the others accept at least one draft in twenty, and the rank a tenth of their rate or
    less.
    """
    drafts, accepted, blocks = rank.counters.drafts, _successes(rank.counters), rank.counters.drafts // _BLOCK
    others_rate = _successes(others.counters) / others.counters.drafts
    if not blocks:
        return None
    # Each accepted draft is taken to be in a block of its own, since counters do not show where it is.
    bad = max(0, blocks - accepted)
    counts = f"{accepted:,} of {drafts:,} drafts accepted, {_successes(others.counters):,} of {others.counters.drafts:,} by the others"
    is_striking = others_rate >= _LEAST_RATE and accepted <= _SHARE * others_rate * drafts
    name = "a rank accepts nothing while the others do"
    return _test_blocks(name, f"{rank.name}: {counts}", rank.name, bad, blocks, is_striking=is_striking, block=f"blocks of {_BLOCK} drafts")


def _compare_drafted(rank: RankCounters, others: RankCounters) -> DraftFinding | None:
    """Return the finding on the drafts of a rank for the tokens that it generated.

    The others' drafts per token say how many would be expected. The test is that of :func:`_compare_accepted`, over blocks of eight
    expected drafts. It is striking if the rank made a tenth of the expected drafts or fewer. Returns None if tokens are not counted, or too
    few were generated for a block.
    """
    if rank.generated_tokens is None or not others.generated_tokens or others.generated_tokens < 0:
        return None
    expected = max(0, rank.generated_tokens) * others.counters.drafts / others.generated_tokens
    blocks, drafts = int(expected / _EXPECTED), rank.counters.drafts
    if not blocks:
        return None
    counts = (
        f"{drafts:,} drafts for {rank.generated_tokens:,} tokens, {others.counters.drafts:,} for {others.generated_tokens:,} by the others"
    )
    name = "a rank drafts nothing while the others do"
    is_striking, bad = drafts <= _SHARE * expected, max(0, blocks - drafts)
    return _test_blocks(
        name, f"{rank.name}: {counts}", rank.name, bad, blocks, is_striking=is_striking, block=f"blocks of {_EXPECTED} drafts"
    )


def _test_blocks(name: str, summary: str, rank: str, bad: int, blocks: int, *, is_striking: bool, block: str) -> DraftFinding:
    """Return the finding on a rank by the binomial test over blocks.

    ``bad`` of ``blocks`` lack what the rank should have there. In a correct rank a block lacks it with probability one half at most, by the
    size of the blocks. ``name``, ``summary`` and ``block`` are the fault, its figures and the blocks in words.
    """
    return DraftFinding(
        name=name,
        subject=f"rank {rank}",
        summary=summary,
        counts=summary,
        cell=name.partition(" while")[0],
        first="",
        bad=bad,
        is_striking=is_striking,
        test=f"binomial test over {block}",
        least_p=0.5**blocks,
        tail=partial(greater_than_rate, bad, blocks, 0.5),
    )
