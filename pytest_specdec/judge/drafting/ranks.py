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
    """Return the sums over ``ranks``, one or more, as the counts of one rank."""
    # sum_ranks adds up the counts of equal names, elsewhere those of one rank over workloads. With one name for all it adds up all.
    alike = [RankCounters(name="the others", counters=rank.counters, generated_tokens=rank.generated_tokens) for rank in ranks]
    (pooled,) = sum_ranks([alike])
    return pooled


def _count_accepting(counters: SpecCounters) -> int:
    """Return the largest possible number of drafts with an accepted token.

    With counts by position it is exact, the number accepted at the first position: later ones are accepted only after it. Without, each
    accepted token is taken for one of another draft.
    """
    by_position = counters.accepted_per_position
    return by_position[0] if by_position else min(counters.accepted_tokens, counters.drafts)


def _compare_accepted(rank: RankCounters, others: RankCounters) -> DraftFinding | None:
    """Return the finding on a rank's accepting drafts, with an accepted token.

    Its drafts are counted in blocks of 32, since drafts of one answer depend on each other; None if it has too few for a block. A correct
    rank, with whatever prompts, has an accepting draft in a block more often than not: by the exact binomial test, so many blocks without
    one are held against a probability of one half.
    """
    drafts, accepting, blocks = rank.counters.drafts, _count_accepting(rank.counters), rank.counters.drafts // _BLOCK
    others_drafts, others_accepting = others.counters.drafts, _count_accepting(others.counters)
    if not blocks:
        return None
    # Counters do not show in which blocks the accepting drafts are. Each is taken to be in one of its own: at least so many have none.
    bad = max(0, blocks - accepting)
    counts = f"{accepting:,} of {drafts:,} drafts accepted, {others_accepting:,} of {others_drafts:,} by the others"
    # A few stray acceptances, up to a tenth of the others' rate, are called none, but only if the others accept enough to compare with.
    others_rate = others_accepting / others_drafts
    is_striking = others_rate >= _LEAST_RATE and accepting <= _SHARE * others_rate * drafts
    name = "a rank accepts nothing while the others do"
    return _test_blocks(name, f"{rank.name}: {counts}", rank.name, bad, blocks, is_striking=is_striking, block=f"blocks of {_BLOCK} drafts")


def _compare_drafted(rank: RankCounters, others: RankCounters) -> DraftFinding | None:
    """Return the finding on the drafts of a rank for the tokens that it generated.

    The others' drafts per token say how many would be expected. These are counted in blocks of eight. A correct rank has at least one draft
    in a block more often than not. It is striking if the rank made a tenth of the expected drafts or fewer. Returns None if tokens are not
    counted, or too few were generated for a block.
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
    is_striking = drafts <= _SHARE * expected
    # Counters do not show in which blocks the drafts are. Each is taken to be in one of its own: at least so many blocks have none.
    bad = max(0, blocks - drafts)
    return _test_blocks(
        name, f"{rank.name}: {counts}", rank.name, bad, blocks, is_striking=is_striking, block=f"blocks of {_EXPECTED} drafts"
    )


def _test_blocks(name: str, summary: str, rank: str, bad: int, blocks: int, *, is_striking: bool, block: str) -> DraftFinding:
    """Return the finding on a rank by the binomial test over blocks.

    A block is a number of drafts in which a correct rank has a draft, or an accepted one, more often than not: it lacks it with probability
    one half at most. ``bad`` of ``blocks`` lack it. ``name``, ``summary`` and ``block`` are the fault, its figures and the blocks in words.
    """
    return DraftFinding(
        name=name,
        subject=f"rank {rank}",
        summary=summary,
        counts=summary,
        cell=name.removesuffix(" while the others do"),
        first="",
        bad=bad,
        is_striking=is_striking,
        test=f"binomial test over {block}",
        least_p=0.5**blocks,
        tail=partial(greater_than_rate, bad, blocks, 0.5),
    )
