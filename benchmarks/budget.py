"""The false-alarm budget and a panel's starting wealth, each split before a run, as tables of docs/how-the-gate-decides.md."""

from __future__ import annotations

from pytest_specdec.model.families import CORRECTNESS_ALPHA, FAMILIES, RESERVED, Budget, FamilyRow
from pytest_specdec.stats.bettors import WITH_DRAFT_DISTRIBUTION, WITHOUT_DRAFT_DISTRIBUTION

__all__ = ["tables"]

VARIANTS = (1, 4)
BETS_ON = {
    "catalogue": "a named bug, from p and the draft's distribution q",
    "window": "one random number decides on all drafts of a window",
    "surrogate": "a named bug, as if the draft were the baseline's best token, or one that it would draw",
    "generic": "wrong temperature, greedy leaks, improbable tokens",
    "order": "low or high token ids too often (reused random numbers)",
    "bonus": "something wrong at bonus slots only",
    "bonus at large": "any generic fault, at bonus slots only",
    "state": "something wrong after a refusal only (stale cache)",
    "learned": "what earlier tokens tell of where the drafter is wrong",
    "answers": "whole answers: ends too soon or late, an earlier answer again, penalties ignored",
}


def tables() -> dict[str, str]:
    """Return both tables as Markdown."""
    return {"budget": "\n".join(_budget()), "shares": "\n".join(_shares())}


def _budget() -> list[str]:
    rows = [row for row in FAMILIES.values() if row.judge and row.budget is not Budget.NONE]
    return [
        "| family | part of its budget | workloads | tests of each | "
        + " | ".join(f"share of each, {count} variant{'s' * (count > 1)}" for count in VARIANTS)
        + " |",
        "|---|---|---|---|" + "---|" * len(VARIANTS),
        *(
            f"| {row.name} | {row.part:.1%} of {row.budget.alpha:g} | {row.workloads} | {', '.join(row.tests)} | "
            + " | ".join(f"{row.alpha(count):.2g}" for count in VARIANTS)
            + " |"
            for row in rows
        ),
        f"| of other packages, together | {RESERVED:.1%} of {CORRECTNESS_ALPHA:g} | | | " + " | ".join("" for _ in VARIANTS) + " |",
        "| red by chance, correctness, together | at most | | | "
        + " | ".join(f"{_together(rows, count):.2g}" for count in VARIANTS)
        + " |",
    ]


def _together(rows: list[FamilyRow], variants: int) -> float:
    spent = (row.alpha(variants) * row.workloads * row.chances(variants) for row in rows if row.budget is Budget.CORRECTNESS)
    return sum(spent) + RESERVED * CORRECTNESS_ALPHA


def _shares() -> list[str]:
    groups = sorted(
        WITH_DRAFT_DISTRIBUTION | WITHOUT_DRAFT_DISTRIBUTION, key=list(BETS_ON).index
    )  # a group without words is an error, not a row left out
    rows = [
        f"| {group} | {BETS_ON[group]} | {_share(WITH_DRAFT_DISTRIBUTION, group)} | {_share(WITHOUT_DRAFT_DISTRIBUTION, group)} |"
        for group in groups
    ]
    return ["| bettors | bet on | draft's distribution known | unknown |", "|---|---|---|---|", *rows]


def _share(shares: dict[str, float], group: str) -> str:
    return f"{shares[group]:.0%}" if group in shares else "-"
