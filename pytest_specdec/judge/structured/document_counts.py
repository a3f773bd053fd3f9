"""Documents of an arm: the numbers of valid ones, whole or up to the token limit that cut them.

A document is an answer that has to obey a grammar. Its kind is the format, such as ``json_schema`` and the schema's name, its feature the
server's ability to enforce that, such as ``json_schema``. ``peers`` or ``others`` are the documents of the baseline, boot by boot. Some
engines are known to ignore some rules of schemas: a fault by such a rule alone is ``rare``, and proves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_specdec.judge.prerequisites import describe_refusals, is_refusal
from pytest_specdec.judge.structured.documents import documents
from pytest_specdec.judge.structured.grammar_faults import find_endless
from pytest_specdec.judge.structured.json_documents import JsonFormat
from pytest_specdec.model.captured import FeatureSupport
from pytest_specdec.model.pair import BASELINE
from pytest_specdec.stats import proportions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.judge.structured.documents import Document, OutputFormat
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Transcript
    from pytest_specdec.stats.proportions import Interval

__all__ = [
    "ArmDocuments",
    "describe_cut",
    "describe_detectable",
    "describe_invalid_peers",
    "evidence",
    "figures",
    "p_value_over_boots",
    "read_documents",
]

_CONFIDENCE = 0.95
"""Confidence of the limits printed beside a rate; they decide nothing."""
_HONOURED, _REFUSED = "honoured", "refused"
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
    refused_features: tuple[str, ...] = ()
    """Features, such as ``regex``, of which every request was refused likewise."""

    @property
    def support_by_feature(self) -> dict[str, str]:
        """What the arm does with each feature: ``honoured`` if it has documents of it, ``refused`` if every request was."""
        return {**dict.fromkeys(sorted({d.feature for d in self.documents}), _HONOURED), **dict.fromkeys(self.refused_features, _REFUSED)}

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
        return sum(map(_is_checked, self.documents))

    @property
    def unread(self) -> int:
        """Number of cut documents in a grammar that cannot be read here."""
        return sum(d.reading.unread for d in self.documents)

    @property
    def unbegun(self) -> int:
        """Number of answers cut before the first character of their document: all that are neither checked nor unread."""
        return len(self.documents) - self.checked - self.unread

    @property
    def flawless(self) -> bool:
        """True unless a document breaks a rule that every engine must enforce."""
        return all(d.reading.rare for d in self.faulty)


def _is_checked(document: Document) -> bool:
    """Return True if a document was judged: it has a fault, is whole, or is valid up to its cut."""
    return bool(document.fault) or document.prefix or document.complete


def read_documents(transcript: Transcript, wanted: Mapping[str, OutputFormat]) -> ArmDocuments:
    """Return the documents of an arm, each read by its request's format.

    ``wanted`` has the formats by request id; answers to other requests are left out. Kinds and features of which every request was refused
    are listed by name, and their answers not read: the server does not offer them, which is no fault. Answers cut within their reasoning
    are only counted. Raises ``referencing.exceptions.Unresolvable`` if a schema refers to something outside itself.
    """
    answers = [(answer, wanted[answer.request_id]) for answer in transcript.answers if answer.request_id in wanted]
    offered = {output_format.kind for answer, output_format in answers if not is_refusal(answer)}
    read = [document for answer, output_format in answers if output_format.kind in offered for document in documents(answer, output_format)]
    reached = tuple(document for document in read if not document.unreached)
    not_offered = sorted({output_format.kind for _, output_format in answers} - offered)
    offered_features = {output_format.feature for answer, output_format in answers if not is_refusal(answer)}
    return ArmDocuments(
        arm=transcript.arm,
        documents=reached,
        unreached=len(read) - len(reached),
        refused_kinds=tuple(not_offered),
        refused_features=tuple(sorted({output_format.feature for _, output_format in answers} - offered_features)),
    )


def describe_cut(judged: ArmDocuments, peers: Sequence[ArmDocuments]) -> str:
    """Return the numbers of answers cut off by their limit, in words.

    There is one clause for each way to be cut. The first of ``peers`` is compared for endings in white space. Cut answers with a fault do
    not count; empty if no others were cut.
    """
    endless_count, baseline_count = len(find_endless(judged.documents)), len(find_endless(peers[0].documents))
    parts = (
        (judged.prefixes, f", {judged.prefixes} cut off by their token limit and valid up to it"),
        (
            endless_count,
            f"; {endless_count} end in white space until it, "
            + (f"as the baseline's do ({baseline_count})" if baseline_count else "none of the baseline's"),
        ),
        (judged.unread, f"; {judged.unread} more were cut off, and nothing here reads their beginnings"),
        (judged.unbegun, f"; {judged.unbegun} more answers were cut before their document began"),
        (judged.unreached, f"; {judged.unreached} more answers were cut within their reasoning"),
    )
    return "".join(text for count, text in parts if count)


def is_flawless(captured: Captured, others: Sequence[ArmDocuments], wanted: Mapping[str, OutputFormat]) -> bool:
    """Return True if the baseline enforces grammars and breaks none of their rules.

    One invalid document of a variant is then a proof. Rules that some engines are known to ignore do not count.
    """
    return is_enforced(captured, wanted) and all(other.flawless for other in others)


def is_enforced(captured: Captured, wanted: Mapping[str, OutputFormat]) -> bool:
    """Return True unless the baseline, by its capability probe, ignores a grammar in ``wanted``."""
    capabilities = captured.capabilities.get(BASELINE)
    return capabilities is None or all(
        capabilities.support.get(output_format.feature) is not FeatureSupport.IGNORED for output_format in wanted.values()
    )


def p_value_over_boots(judged: ArmDocuments, count: int, others: Sequence[ArmDocuments]) -> float:
    """Return the p-value of ``count`` invalid documents against the baseline.

    It is the largest over the baseline's boots ``others``, by Fisher's exact test of ``count`` among the judged documents.
    """
    return max(proportions.greater_than_other(count, judged.checked, len(other.faulty), other.checked) for other in others)


def describe_detectable(
    judged: ArmDocuments, others: Sequence[ArmDocuments], alpha: float, wanted: Mapping[str, OutputFormat], *, flawless: bool
) -> str:
    """Return the invalid rate caught with 99 % probability, in words.

    Had the server made invalid documents at a higher rate, there would have been enough to fail the variant with that probability. One is
    enough if the baseline is ``flawless``. Otherwise a test against the baseline decides (:func:`p_value_over_boots` below ``alpha``); the
    text says "untested" if even all would be too few.
    """
    # 0 if there is no such number.
    least_by_test = next((count for count in range(1, judged.checked + 1) if p_value_over_boots(judged, count, others) < alpha), 0)
    least = 1 if flawless else least_by_test
    checks, whole = f"{judged.checked} documents checked", judged.complete
    if not least:
        return f"{checks}; untested: invalid documents, of which even {judged.checked} would not be too many beside the baseline's own"
    caught = f"{checks}; an invalid rate above {_rate_of(least, judged.checked):.1%} would have been caught (99%)"
    # Breaches of rules that some engines ignore are no proof beside a flawless baseline either: the test decides on them.
    rare = _describe_rare(judged, wanted, least_by_test) if flawless else ""
    if not judged.prefixes:
        return f"{caught}{rare}"
    # Documents that were cut off do not show how documents end: only whole ones test that.
    if whole < least:
        return f"{caught}{rare}; untested: how documents end"
    return f"{caught}; of the {whole} whole ones an invalid rate above {_rate_of(least, whole):.1%}{rare}"


def _describe_rare(judged: ArmDocuments, wanted: Mapping[str, OutputFormat], least: int) -> str:
    """Return a clause on rules that some engines ignore.

    One document that breaks these alone proves nothing: ``least`` are needed to fail the variant, 0 if even all would not be enough.
    Empty if no checked document is under such rules.
    """
    # Requests under such a rule.
    rare = {id_ for id_, output_format in wanted.items() if isinstance(output_format, JsonFormat) and output_format.has_rare_rules}
    count = sum(document.request_id in rare and _is_checked(document) for document in judged.documents)
    if not count:
        return ""
    if not least or least > count:
        return "; untested: rules that some engines ignore"
    return f"; of the {count} under rules that some engines ignore, a rate above {_rate_of(least, count):.1%} that break these alone"


def _rate_of(least: int, trials: int) -> float:
    """Return the rate at which at least ``least`` of ``trials`` are hits with 99 % probability."""
    # With ``least - 1`` hits, a higher rate is excluded. Two-sided limits at 98 % are one-sided ones at 99 %.
    return proportions.limits(least - 1, trials, 0.98).high


def describe_invalid_peers(peers: Sequence[ArmDocuments]) -> str:
    """Return the invalid documents of each boot of the baseline, in words."""
    return ", ".join(f"{other.arm} {len(other.faulty)} of {other.checked}" for other in peers)


def figures(judged: ArmDocuments, peers: Sequence[ArmDocuments]) -> dict[str, float]:
    """Return the counts of documents for a verdict's figures, by name.

    The numbers of documents cut off, ending in white space until the cut (endless), or cut within their reasoning (unreached) are left out
    if 0. The invalid documents of each of ``peers`` are added, and the limits of the judged arm's invalid rate.
    """
    counts = {"documents": len(judged.documents), "complete_documents": judged.complete, "invalid_documents": len(judged.faulty)}
    further = {
        "prefix_documents": judged.prefixes,
        "endless_documents": len(find_endless(judged.documents)),
        "unreached_documents": judged.unreached,
    }
    counts |= {name: count for name, count in further.items() if count}
    of_peers = {f"{other.arm}_invalid_documents": len(other.faulty) for other in peers}
    limits = _limits(judged)
    bounds = {"invalid_rate_low": limits.low, "invalid_rate_high": limits.high}
    return {name: float(value) for name, value in {**counts, **of_peers, **bounds}.items()}


def _limits(arm: ArmDocuments) -> Interval:
    """Return the limits of an arm's invalid rate."""
    return proportions.limits(len(arm.faulty), arm.checked, _CONFIDENCE)


def _describe_invalid_rates(arms: Sequence[ArmDocuments]) -> tuple[str, ...]:
    """Return a line with each arm's invalid rate and its exact limits; empty if none was checked."""
    rate_by_arm = [(arm.arm, len(arm.faulty) / arm.checked, _limits(arm)) for arm in arms if arm.checked]
    rates = ", ".join(f"{arm} {rate:.1%} [{bounds.low:.1%}, {bounds.high:.1%}]" for arm, rate, bounds in rate_by_arm)
    return (f"invalid, with 95% limits: {rates}",) if rates else ()


def evidence(captured: Captured, arms: Sequence[ArmDocuments]) -> tuple[str, ...]:
    """Return lines of evidence: counts, rates, unreached answers, refusals and faults.

    Documents are counted by kind, above KINDS_SHOWN kinds by feature. Each arm has at most 20 faults.
    """
    by_feature = len({document.kind for arm in arms for document in arm.documents}) > KINDS_SHOWN
    groups = sorted({_group(document, by_feature=by_feature) for arm in arms for document in arm.documents})
    counted = [_describe_group(arm, group, by_feature=by_feature) for group in groups for arm in arms]
    unreached = [f"{arm.arm}: {arm.unreached} answers cut within their reasoning" for arm in arms if arm.unreached]
    not_offered = [f"{arm.arm}: {kind}: every request refused" for arm in arms for kind in arm.refused_kinds]
    faults = [f"{arm.arm}: {d.request_id} ({d.kind}): {d.fault}" for arm in arms for d in arm.faulty[:20]]
    return (*counted, *_describe_invalid_rates(arms), *unreached, *not_offered, *describe_refusals(captured.speculative.answers), *faults)


def _group(document: Document, *, by_feature: bool) -> str:
    """Return the group that a document is counted in: its feature or its kind."""
    return document.feature if by_feature else document.kind


def _describe_group(arm: ArmDocuments, group: str, *, by_feature: bool) -> str:
    """Return the counts of one arm and one group of documents, in words.

    Cut documents that nothing here can read, and those cut before they began, are not valid so far: they have counts of their own.
    """
    members = tuple(document for document in arm.documents if _group(document, by_feature=by_feature) == group)
    counts = replace(arm, documents=members)  # the arm with these documents alone
    valid, cut = sum(document.complete and not document.fault for document in members), len(members) - counts.complete
    unjudged = "".join(f", {count} {what}" for count, what in ((counts.unread, "not read"), (counts.unbegun, "not begun")) if count)
    whole = f"{valid} of {counts.complete} whole documents valid"
    return f"{arm.arm}: {group}: {whole}, {counts.prefixes} of {cut} cut ones valid so far{unjudged}"
