"""Documents of an arm: the numbers of valid ones, whole or up to the token limit that cut them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.judge.prerequisites import describe_refusals, is_refusal
from pytest_specdec.judge.structured.documents import documents
from pytest_specdec.judge.structured.grammar_faults import endless
from pytest_specdec.stats import proportions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.judge.structured.documents import Document, OutputFormat
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Transcript
    from pytest_specdec.stats.proportions import Interval

__all__ = ["ArmDocuments", "cut_off", "evidence", "figures", "peers_invalid", "read_documents", "rules_out"]

_CONFIDENCE = 0.95
"""Confidence of the limits printed beside a rate; they decide nothing."""
KINDS_SHOWN = 12
"""Above so many kinds of documents, the evidence counts them by feature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmDocuments:
    """The documents of one arm."""

    arm: str
    documents: tuple[Document, ...]
    unreached: int = 0
    """Answers cut within their reasoning, so that there is no document to judge."""
    refused_kinds: tuple[str, ...] = ()
    """Kinds of which every request was refused with a 4xx: not offered, and no fault."""

    @property
    def faulty(self) -> tuple[Document, ...]:
        """Documents with a fault."""
        return tuple(d for d in self.documents if d.fault)

    @property
    def answered(self) -> bool:
        """True if there are documents, or answers cut before them."""
        return bool(self.documents or self.unreached)

    @property
    def complete(self) -> int:
        """Number of whole documents."""
        return sum(d.complete for d in self.documents)

    @property
    def prefixes(self) -> int:
        """Number of documents that are cut off and valid up to there."""
        return sum(d.prefix for d in self.documents)

    @property
    def checked(self) -> int:
        """Number of documents checked, whole or up to the cut."""
        return len(self.faulty) + sum(d.prefix or (d.complete and not d.fault) for d in self.documents)

    @property
    def unread(self) -> int:
        """Number of cut documents in a grammar that cannot be read here."""
        return sum(d.reading.unread for d in self.documents)

    @property
    def unbegun(self) -> int:
        """Number of answers cut before the first character of their document."""
        return len(self.documents) - self.checked - self.unread

    @property
    def flawless(self) -> bool:
        """True unless a document breaks a rule that every engine must enforce."""
        return all(d.reading.rare for d in self.faulty)


def read_documents(transcript: Transcript, wanted: Mapping[str, OutputFormat]) -> ArmDocuments:
    """Read every answer of an arm by its request's format.

    Kinds of which every request was refused are listed apart: the server does not offer them, which is no fault.
    """
    answers = [(answer, wanted[answer.request_id]) for answer in transcript.answers if answer.request_id in wanted]
    offered = {output_format.kind for answer, output_format in answers if not is_refusal(answer)}
    read = [document for answer, output_format in answers if output_format.kind in offered for document in documents(answer, output_format)]
    reached = tuple(document for document in read if not document.unreached)
    not_offered = sorted({output_format.kind for _, output_format in answers} - offered)
    return ArmDocuments(arm=transcript.arm, documents=reached, unreached=len(read) - len(reached), refused_kinds=tuple(not_offered))


def cut_off(mine: ArmDocuments, others: Sequence[ArmDocuments]) -> str:
    """Return a headline's words on answers cut off by their limit."""
    white, theirs = len(endless(mine.documents)), len(endless(others[0].documents))
    parts = (
        (mine.prefixes, f", {mine.prefixes} cut off by their token limit and valid up to it"),
        (white, f"; {white} end in white space until it, " + (f"as the baseline's do ({theirs})" if theirs else "none of the baseline's")),
        (mine.unread, f"; {mine.unread} more were cut off, and nothing here reads their beginnings"),
        (mine.unbegun, f"; {mine.unbegun} more answers were cut before their document began"),
        (mine.unreached, f"; {mine.unreached} more answers were cut within their reasoning"),
    )
    return "".join(text for count, text in parts if count)


def rules_out(mine: ArmDocuments) -> str:
    """Return the invalid rates that would have been caught, in words.

    If some documents were cut off, the rate of the whole ones is added, since cut ones do not show how documents end.
    """
    whole = mine.complete
    rate = proportions.limits(len(mine.faulty), mine.checked, 0.98).high if mine.faulty else proportions.ruled_out(mine.checked)
    checked = f"{mine.checked} documents checked; an invalid rate above {rate:.1%} would have been caught (99%)"
    if not mine.prefixes:
        return checked
    if not whole:
        return f"{checked}; untested: how documents end"
    bad = sum(document.complete for document in mine.faulty)
    of_whole = proportions.limits(bad, whole, 0.98).high if bad else proportions.ruled_out(whole)
    return f"{checked}; of the {whole} whole ones an invalid rate above {of_whole:.1%}"


def peers_invalid(others: Sequence[ArmDocuments]) -> str:
    """Return the invalid documents of each boot of the baseline, in words."""
    return ", ".join(f"{other.arm} {len(other.faulty)} of {other.checked}" for other in others)


def figures(mine: ArmDocuments, others: Sequence[ArmDocuments]) -> dict[str, float]:
    """Return the counts for a verdict's figures, with the baseline's."""
    counts = {"documents": len(mine.documents), "complete_documents": mine.complete, "invalid_documents": len(mine.faulty)}
    some = {"prefix_documents": mine.prefixes, "endless_documents": len(endless(mine.documents)), "unreached_documents": mine.unreached}
    counts |= {name: count for name, count in some.items() if count}
    theirs = {f"{other.arm}_invalid_documents": len(other.faulty) for other in others}
    of_mine = _limits(mine)
    bounds = {"invalid_rate_low": of_mine.low, "invalid_rate_high": of_mine.high}
    return {name: float(value) for name, value in {**counts, **theirs, **bounds}.items()}


def _limits(pile: ArmDocuments) -> Interval:
    return proportions.limits(len(pile.faulty), pile.checked, _CONFIDENCE)


def _rates(piles: Sequence[ArmDocuments]) -> tuple[str, ...]:
    """Return a line with each arm's invalid rate and its exact limits.

    Empty if no document was checked.
    """
    read = [(pile.arm, len(pile.faulty) / pile.checked, _limits(pile)) for pile in piles if pile.checked]
    rates = ", ".join(f"{arm} {rate:.1%} [{of.low:.1%}, {of.high:.1%}]" for arm, rate, of in read)
    return (f"invalid, with 95% limits: {rates}",) if rates else ()


def evidence(captured: Captured, piles: Sequence[ArmDocuments]) -> tuple[str, ...]:
    """Return evidence lines: counts by kind, rates, refusals, first faults.

    Above KINDS_SHOWN kinds, documents are counted by feature.
    """
    many = len({document.kind for pile in piles for document in pile.documents}) > KINDS_SHOWN
    groups = sorted({_group(document, many=many) for pile in piles for document in pile.documents})
    counted = [_describe_group(pile, group, many=many) for group in groups for pile in piles]
    unreached = [f"{pile.arm}: {pile.unreached} answers cut within their reasoning" for pile in piles if pile.unreached]
    not_offered = [f"{pile.arm}: {kind}: every request refused" for pile in piles for kind in pile.refused_kinds]
    faults = [f"{pile.arm}: {d.request_id} ({d.kind}): {d.fault}" for pile in piles for d in pile.faulty[:20]]
    return (*counted, *_rates(piles), *unreached, *not_offered, *describe_refusals(captured.speculative.answers), *faults)


def _group(document: Document, *, many: bool) -> str:
    return document.feature if many else document.kind


def _describe_group(pile: ArmDocuments, group: str, *, many: bool) -> str:
    """Return the counts of one arm and one kind, in words."""
    here = [document for document in pile.documents if _group(document, many=many) == group]
    whole = [document for document in here if document.complete]
    cut = len(here) - len(whole)
    valid = sum(not document.fault for document in whole)
    valid_cut = sum(not document.fault for document in here) - valid
    return f"{pile.arm}: {group}: {valid} of {len(whole)} whole documents valid, {valid_cut} of {cut} cut ones valid so far"
