"""The verdict of structured, from counts of documents and comparisons of tokens at temperature 0.

A document is an answer that has to obey a grammar, by the formats ``wanted``. ``judged`` has the variant's, ``others`` the baseline's, boot
by boot, the control as the second. ``choices`` has the variant's tokens at temperature 0 beside the baseline's, with a tolerance for noise.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from jsonschema.exceptions import SchemaError
from referencing.exceptions import Unresolvable

from pytest_specdec.judge.divergence import compare_prefixes
from pytest_specdec.judge.ending import check_endings
from pytest_specdec.judge.greedy_diagnosis import probability
from pytest_specdec.judge.liveness import server_failure
from pytest_specdec.judge.prerequisites import describe_refusals, equal_answers, refusal, speculating, unscorable
from pytest_specdec.judge.structured import document_counts
from pytest_specdec.judge.structured.document_counts import read_documents
from pytest_specdec.judge.structured.documents import Flaw
from pytest_specdec.judge.structured.grammar_faults import STUCK, fault_name, find_endless
from pytest_specdec.judge.structured.output_formats import formats
from pytest_specdec.judge.structured.text_grammars import recognises
from pytest_specdec.judge.tolerance import allowed_gap, describe_remedy
from pytest_specdec.judge.verdicts import against, number_of, quote, say
from pytest_specdec.model.pair import CONTROL
from pytest_specdec.model.promise import CheckedDocuments
from pytest_specdec.model.verdict import Example, Outcome, Symptom
from pytest_specdec.stats import proportions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.judge.divergence import Divergence, SharedPrefix
    from pytest_specdec.judge.structured.document_counts import ArmDocuments
    from pytest_specdec.judge.structured.documents import OutputFormat
    from pytest_specdec.judge.tolerance import Tolerance
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.verdict import Verdict
    from pytest_specdec.model.workload import Request
    from pytest_specdec.stats.excess import EventCount

__all__ = ["judge"]

ROOM = "give the documents more room after the reasoning with `reasoning: {tokens: ...}` in the config, or switch the reasoning off"
NOT_ENFORCED = Flaw.NOT_ENFORCED.value
WRONG_CHOICE = "tokens that the grammar allows and the baseline would not choose"
UNPROBED = frozenset({"regex", "choice", "grammar"})
"""Features that no capability probe tests: the baseline's own answers show whether they are enforced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedyChoices:
    """The tokens chosen at temperature 0, compared with the baseline's own."""

    shared: SharedPrefix
    allowed: Tolerance
    alpha: float
    repeats: tuple[EventCount, ...] = ()
    """Counts from the rounds in which the same was requested again."""

    @property
    def beyond(self) -> tuple[Divergence, ...]:
        """Tokens beyond the tolerance."""
        return tuple(divergence for divergence in self.shared.divergences if abs(divergence.gap) > self.allowed.gap)

    @property
    def wrong(self) -> tuple[Divergence, ...]:
        """Tokens beyond the tolerance, if they are enough for an alarm, rounds (``repeats``) included.

        Empty if the baseline is too noisy to judge (not ``trustworthy``), or has about as many itself, which ``allowed`` counts.
        """
        is_wrong = self.allowed.is_wrong(len(self.beyond), self.shared.tokens, self.alpha, self.repeats)
        return self.beyond if self.allowed.trustworthy and is_wrong else ()

    @property
    def is_open(self) -> bool:
        """True if the tokens are too many for noise and too few for an alarm."""
        return self.allowed.trustworthy and self.allowed.is_open(len(self.beyond), self.shared.tokens, self.repeats)


def judge(captured: Captured) -> Verdict:
    """Return the verdict on documents: valid as often as the baseline's.

    If no document of the baseline or the control breaks a rule that every engine must enforce, one such document FAILs here. Faults by
    other rules, which some engines silently ignore, such as ``pattern``, are counted, and so are all faults if the baseline has some too:
    Fisher's exact test, one-sided, must reject against the baseline and the control, each at the captured share of alpha. A document cut
    off by its token limit is invalid if no continuation could make it valid.

    At temperature 0 the first token at which a document differs from the baseline's own must be nearly as likely as that, within the
    tolerance of the greedy judge. If it is likelier, the grammar's mask was skipped. If it is less likely, it is a wrong choice.
    INCONCLUSIVE if such tokens cannot be scored, or if the baseline ignores grammars and is invalid too. INVALID for an unusable schema.
    """
    try:
        wanted = formats(captured.workload.requests)
        return server_failure(captured) or refusal(captured) or check_endings(captured) or _judge_documents(captured, wanted)
    except (SchemaError, Unresolvable, RecursionError, json.JSONDecodeError) as error:
        return _wrong_schema(captured, error)


def _wrong_schema(captured: Captured, error: Exception) -> Verdict:
    """Return INVALID, naming the first request with a wrong schema.

    No request is named for a reference that leads nowhere, since only answers show it; ``error`` gives the reason then.
    """
    wrong: dict[str, Exception] = {request.id: flaw for request in captured.workload.requests if (flaw := _schema_error(request))}
    request_id, schema_error = next(iter(wrong.items()), ("", error))
    where = f" at {schema_error.json_path}" if isinstance(schema_error, SchemaError) else ""
    reason = schema_error.message if isinstance(schema_error, SchemaError) else str(schema_error).splitlines()[0]
    others = f"; {len(wrong)} requests of {len(captured.workload.requests)} have such a schema" if len(wrong) > 1 else ""
    return say(
        captured,
        Outcome.INVALID,
        f"the JSON schema of {f'request {request_id}' if request_id else 'a request'} cannot be used{where}: {quote(reason, 160)}{others}",
        short=("remedy       correct the schema in the suite; no answer of this workload was judged, other workloads were",),
        evidence=describe_refusals(captured.speculative.answers),
        cell="invalid schema",
    )


def _schema_error(request: Request) -> SchemaError | RecursionError | json.JSONDecodeError | None:
    """Return the error in a request's schema; None without one."""
    try:
        formats((request,))
    except (SchemaError, RecursionError, json.JSONDecodeError) as error:
        return error
    return None


def _judge_documents(captured: Captured, requested: Mapping[str, OutputFormat]) -> Verdict:
    """Return the verdict on documents in formats enforced by the baseline.

    ``requested`` has the formats by request id. Those of features that the baseline does not enforce, such as ``regex``, are left out. The
    verdict is the first of these: INCONCLUSIVE, REFUSED or INVALID if either arm has no answer in the formats left; INVALID for scores of
    other tokens than answered; FAIL for invalid documents, endless ones or wrong tokens at temperature 0; those on missing scores, needed
    unless all answers at temperature 0 equal the baseline's, on missing drafts and on a baseline that ignores grammars; PASS.
    """
    not_enforced = _find_unenforced_features([read_documents(transcript, requested) for transcript in captured.baseline_boots])
    wanted = {id_: output_format for id_, output_format in requested.items() if output_format.feature not in not_enforced}
    judged = read_documents(captured.speculative, wanted)
    others = tuple(read_documents(transcript, wanted) for transcript in captured.baseline_boots)
    if not judged.answered or not others[0].answered:
        if not_enforced and not wanted:
            return _say_not_enforced(captured, not_enforced)
        return _say_nothing_to_judge(captured, judged, others[0])
    try:
        choices = _compare_choices(captured)
    except ValueError as error:
        return say(captured, Outcome.INVALID, str(error))
    return (
        _fail_documents(captured, judged, others, wanted)
        or _check_endless(captured, judged, others)
        or _check_choices(captured, choices)
        or (None if all(equal_answers(captured, captured.speculative)) else unscorable(captured, needs_rejections=False))
        or speculating(captured, needs_rejections=False)
        or _check_enforced(captured, judged, others, wanted)
        or _pass_documents(captured, judged, others, choices, wanted)
    )


def _find_unenforced_features(peers: Sequence[ArmDocuments]) -> tuple[str, ...]:
    """Return the unprobed features not enforced by the baseline.

    More than half of its own answers to them are invalid. No capability probe tests these features (UNPROBED).
    """
    unprobed = [document for peer in peers for document in peer.documents if document.feature in UNPROBED]
    counts = {feature: [document.fault for document in unprobed if document.feature == feature] for feature in sorted(UNPROBED)}
    return tuple(feature for feature, faults in counts.items() if 2 * sum(map(bool, faults)) > len(faults))


def _say_not_enforced(captured: Captured, not_enforced: Sequence[str]) -> Verdict:
    """Return INCONCLUSIVE, since the baseline enforces none of the requested formats."""
    return say(
        captured,
        Outcome.INCONCLUSIVE,
        f"nothing is enforced that drafts could break: most of the baseline's own answers are invalid ({', '.join(not_enforced)})",
        settle="serve with an engine, or options of it, that enforce structured_outputs",
        cell="not enforced",
    )


def _compare_choices(captured: Captured) -> GreedyChoices:
    """Return the arm's tokens at temperature 0, compared with the baseline's.

    A gap is the difference of two tokens' log-probabilities. The control's gaps to the baseline show how often noise exceeds the tolerance.
    Raises ValueError for scores of other tokens.
    """
    control_gaps: list[float] = []
    for control in captured.baseline_boots[1:]:
        prefix = compare_prefixes(captured, control)
        gaps = [abs(divergence.gap) for divergence in prefix.divergences]
        control_gaps += [*gaps, *[0.0] * (prefix.tokens - len(gaps))]  # equal tokens have no gap
    # Two boots that compute alike show no noise: with ``between_boots`` an alarm also takes too many beside the calibration alone.
    allowed = replace(allowed_gap(captured, control_gaps), between_boots=True)
    rounds = map(_compare_choices, captured.repeats)  # in which the same was requested again
    return GreedyChoices(
        shared=compare_prefixes(captured, captured.speculative),
        allowed=allowed,
        alpha=captured.alpha,
        repeats=tuple(again.allowed.count_round(len(again.beyond), again.shared.tokens) for again in rounds),
    )


def _check_choices(captured: Captured, choices: GreedyChoices) -> Verdict | None:
    """Return FAIL for ``choices.wrong``, the tokens beyond the tolerance.

    They are listed there only if they are enough for an alarm. If they are too few and yet too many for noise (``is_open``), SUSPICIOUS is
    returned, else None. The fault is a missing grammar mask if any is likelier than the baseline's token (``gap`` below 0): only the
    grammar can have kept the baseline from choosing it. Otherwise it is a wrong choice.
    """
    if not choices.wrong:
        return _say_open(captured, choices) if choices.is_open else None
    # A likelier token than the baseline's if there is one, else the widest gap.
    first = max(choices.wrong, key=lambda divergence: (divergence.gap < 0, abs(divergence.gap)))
    likelier = [divergence for divergence in choices.wrong if divergence.gap < 0]
    apart = f"{abs(first.gap):.3g} nats apart, {choices.allowed.gap:.3g} allowed ({choices.allowed.reason})"
    return say(
        captured,
        Outcome.FAIL,
        f"{len(choices.wrong)} documents differ from the baseline's at a wrong token: {len(likelier)} forbidden by the grammar, "
        f"{len(choices.wrong) - len(likelier)} less likely than the baseline's",
        short=(
            f"where        token {first.index} of {first.answer.request_id}, after the same tokens as the baseline's",
            f"baseline     id {first.baseline.token_id} {probability(first.baseline)} without the grammar",
            f"speculative  id {first.token.token_id} {probability(first.token)}   {apart}",
        ),
        evidence=tuple(map(str, choices.wrong[:20])),
        cell=number_of(len(choices.wrong), "wrong token"),
        names=NOT_ENFORCED if likelier else WRONG_CHOICE,
        example=Example(symptom=Symptom.TEXT, request_id=first.answer.request_id, token=first.index),
        figures={"wrong_tokens": len(choices.wrong), "likelier_tokens": len(likelier), "compared_tokens": choices.shared.tokens},
    )


def _say_open(captured: Captured, choices: GreedyChoices) -> Verdict:
    """Return SUSPICIOUS; the same requests may be sent again to decide."""
    events, tokens = len(choices.beyond), choices.shared.tokens
    evidence = against(choices.allowed.log_evidence(events, tokens, choices.repeats), captured.alpha)
    return say(
        captured,
        Outcome.SUSPICIOUS,
        f"{events:,} of {tokens:,} tokens of documents lie further from the baseline's than noise explains; evidence {evidence}",
        evidence=(*_describe_compared(choices), *map(str, choices.beyond[:20])),
        settle=describe_remedy(captured),
        cell=f"{events:,} of {tokens:,} tokens doubtful",
        figures={"doubtful_tokens": float(events), "compared_tokens": float(tokens)},
    )


def _say_nothing_to_judge(captured: Captured, judged: ArmDocuments, baseline: ArmDocuments) -> Verdict:
    """Return the verdict if the judged arm or the baseline has no documents.

    It is REFUSED if the judged arm answered none and refused kinds of grammars, which is no fault; else INVALID for the arm without answer.
    """
    if judged.refused_kinds and not judged.answered:
        return say(
            captured,
            Outcome.REFUSED,
            f"every structured request was refused: {', '.join(judged.refused_kinds)}",
            evidence=document_counts.evidence(captured, (judged,)),
            parameters={documents.arm: documents.support_by_feature for documents in (judged, baseline)},
        )
    arm = baseline.arm if judged.answered else judged.arm
    return say(captured, Outcome.INVALID, f"{arm} has no answer to a structured request")


def _fail_documents(
    captured: Captured, judged: ArmDocuments, others: Sequence[ArmDocuments], wanted: Mapping[str, OutputFormat]
) -> Verdict | None:
    """Return FAIL if documents are invalid through speculation, else None.

    One invalid document is enough (``certain``) if it breaks a rule that engines must enforce, none of the baseline's own documents does,
    and the baseline does not ignore a requested grammar. Otherwise Fisher's exact test must reject against every boot of the baseline.
    """
    if not judged.faulty:
        return None
    p_value = document_counts.p_value_over_boots(judged, len(judged.faulty), others)
    is_flawless = document_counts.is_flawless(captured, others, wanted)
    certain = [document for document in judged.faulty if not document.reading.rare] if is_flawless else []
    if not certain and p_value >= captured.alpha:
        return None
    first = (certain or judged.faulty)[0]
    return say(
        captured,
        Outcome.FAIL,
        f"{len(judged.faulty)} of {judged.checked} documents invalid; {document_counts.describe_invalid_peers(others)}",
        short=(f"first        {first.request_id} ({first.kind})", f"             {first.fault}"),
        evidence=document_counts.evidence(captured, (judged, *others)),
        cell=f"{judged.checked - len(judged.faulty)} of {judged.checked}",
        names=fault_name(judged.documents, list(wanted.values())),
        example=Example(symptom=Symptom.DOCUMENT, request_id=first.request_id),
        figures=document_counts.figures(judged, others) | {"p_value": p_value},
    )


def _check_endless(captured: Captured, judged: ArmDocuments, others: Sequence[ArmDocuments]) -> Verdict | None:
    """Return FAIL if too many documents end in white space, else None.

    A stuck grammar allows nothing else until the token limit. Fisher's one-sided exact test must reject against every baseline boot.
    """
    count, total = len(find_endless(judged.documents)), len(judged.documents)
    of_peers = [(len(find_endless(other.documents)), len(other.documents)) for other in others]
    if not count or max(proportions.greater_than_other(count, total, *pair) for pair in of_peers) >= captured.alpha:
        return None
    first = find_endless(judged.documents)[0]
    return say(
        captured,
        Outcome.FAIL,
        f"{count} of {total} documents end in white space until their limit; baseline {of_peers[0][0]} of {of_peers[0][1]}",
        short=(f"first        {first.request_id} ({first.kind})", f"             {len(first.text.rstrip())} characters, then white space"),
        evidence=document_counts.evidence(captured, (judged, *others)),
        cell=f"{count} endless",
        names=STUCK,
        example=Example(symptom=Symptom.DOCUMENT, request_id=first.request_id),
        figures=document_counts.figures(judged, others),
    )


def _check_enforced(
    captured: Captured, judged: ArmDocuments, others: Sequence[ArmDocuments], wanted: Mapping[str, OutputFormat]
) -> Verdict | None:
    """Return INCONCLUSIVE if the baseline enforces no grammar, else None.

    By its capability probe the baseline ignores a requested grammar, and some of its documents are invalid: drafts can then break nothing.
    """
    if document_counts.is_enforced(captured, wanted) or not any(other.faulty for other in others):
        return None
    valid, total, invalid = judged.checked - len(judged.faulty), judged.checked, document_counts.describe_invalid_peers(others)
    return say(
        captured,
        Outcome.INCONCLUSIVE,
        f"the baseline ignores response_format, no grammar is enforced: {valid} of {total} documents valid; invalid: {invalid}",
        evidence=document_counts.evidence(captured, (judged, *others)),
        settle="serve with an engine, or options of it, that enforce response_format",
        cell="not enforced",
        figures=document_counts.figures(judged, others),
    )


def _pass_documents(
    captured: Captured,
    judged: ArmDocuments,
    others: Sequence[ArmDocuments],
    choices: GreedyChoices,
    wanted: Mapping[str, OutputFormat],
) -> Verdict:
    """Return PASS, after all checks for faults, or INCONCLUSIVE if no document could be checked."""
    faulty, is_flawless = len(judged.faulty), document_counts.is_flawless(captured, others, wanted)  # the baseline breaks no rule
    room = captured.baseline.room  # the factor by which token limits were raised
    not_enforced = {output_format.feature for id_, output_format in formats(captured.workload.requests).items() if id_ not in wanted}
    raised = (f"asked with {room} times the planned token limits: most of the baseline's documents did not end within fewer",)
    evidence = (*_describe_compared(choices), *(raised if room > 1 else ()), *document_counts.evidence(captured, (judged, *others)))
    if not judged.checked:
        return _say_unchecked(captured, judged, others, evidence)
    return say(
        captured,
        Outcome.PASS,
        f"{judged.checked - faulty} of {judged.checked} documents valid"
        + document_counts.describe_cut(judged, others)
        + (f"; no more invalid than chance: {document_counts.describe_invalid_peers(others)}" if faulty else "")
        + _describe_excess(choices)
        + _describe_refused(judged.refused_kinds)
        + "".join(f"; {feature} is not enforced by the baseline" for feature in sorted(not_enforced)),
        evidence=evidence,
        rules_out=document_counts.describe_detectable(judged, others, captured.alpha, wanted, flawless=is_flawless)
        + _describe_detectable_rate(choices)
        + _describe_untested_rejections(captured)
        + _describe_unread_grammars(judged),
        cell=f"{judged.checked - faulty} of {judged.checked}",
        promise=CheckedDocuments(documents=judged.checked, invalid=faulty),
        figures=document_counts.figures(judged, others) | _compared_tokens(choices),
        parameters={documents.arm: documents.support_by_feature for documents in (judged, *others) if documents.arm != CONTROL},
    )


def _describe_excess(choices: GreedyChoices) -> str:
    """Return a clause on tokens beyond the tolerance, too few for an alarm; empty without."""
    excess = choices.allowed.describe_excess(len(choices.beyond), choices.shared.tokens, choices.repeats)
    return f"; tokens at temperature 0{excess}" if excess else ""


def _say_unchecked(captured: Captured, judged: ArmDocuments, others: Sequence[ArmDocuments], evidence: Sequence[str]) -> Verdict:
    """Return INCONCLUSIVE, since no document could be checked at all.

    All answers were cut off before a document began, or nothing here reads the beginnings of their grammars.
    """
    total = len(judged.documents) + judged.unreached
    if judged.unread:
        unread = f"{judged.unread} of {total} documents were cut off"
        headline = f"not enough evidence: {unread}, and nothing here reads the beginnings of their grammars"
        settle = "pip install 'pytest-specdec[llguidance]'"
    else:
        where = _describe_cut_in_reasoning(judged) or " before they began"
        headline = f"not enough evidence: all {total} documents were cut off by their token limit{where}"
        settle = ROOM if judged.unreached else "raise max_tokens"
    return say(captured, Outcome.INCONCLUSIVE, headline, evidence=evidence, settle=settle, figures=document_counts.figures(judged, others))


def _describe_refused(kinds: Sequence[str]) -> str:
    few = ", ".join(kinds[:4]) + (" …" if len(kinds) > 4 else "")  # noqa: PLR2004 - a headline, not a list
    return f"; {few} refused" if len(kinds) == 1 else f"; {len(kinds)} kinds refused: {few}" if kinds else ""


def _describe_unread_grammars(judged: ArmDocuments) -> str:
    unread = any(document.feature == "grammar" for document in judged.documents) and not recognises()
    return "; answers to grammars are only known not to be empty: llguidance is not installed" if unread else ""


def _describe_cut_in_reasoning(judged: ArmDocuments) -> str:
    return f", {judged.unreached} of them within their reasoning" if judged.unreached else ""


def _describe_compared(choices: GreedyChoices) -> tuple[str, ...]:
    """Return a line on the tokens compared with the baseline's; empty without any."""
    documents, allowed = choices.shared, choices.allowed  # compared up to the first token that differs; the tolerance for noise there
    if not documents.tokens:
        return ()
    ties = sum(abs(divergence.gap) <= allowed.gap for divergence in documents.divergences)
    differing = f"{ties} documents differ at a near-tie within {allowed.gap:.3g} nats ({allowed.reason})"
    beyond = len(documents.divergences) - ties
    differing += f"; {beyond} beyond it, {allowed.peer_excess}" if beyond else ""  # adds "3 of 900 of the baseline's", tokens beyond it
    unscored = f"; {documents.unscored} differ at a token without scores" if documents.unscored else ""
    doubtful = "" if allowed.trustworthy else "; too noisy to judge them"
    return (f"at temperature 0, {documents.tokens:,} tokens compared with the baseline's documents: {differing}{unscored}{doubtful}",)


def _describe_detectable_rate(choices: GreedyChoices) -> str:
    """Return a clause on the rates of wrong tokens and of wrong documents caught.

    Empty if nothing was compared, if noise or missing scores forbid a claim, or if no rate below 1 would be caught.
    """
    tokens, allowed = choices.shared.tokens, choices.allowed
    if not tokens or not allowed.trustworthy or choices.shared.unscored or (rate := allowed.ruled_out(tokens, choices.alpha)) >= 1.0:
        return ""
    # Nothing is compared after a document's first wrong token: one that is wrong throughout counts one.
    share = allowed.ruled_out_answers([1] * choices.shared.requests, tokens, choices.alpha)
    return f"; at temperature 0, of {tokens:,} tokens, {allowed.describe_ruled_out(rate, share)}"


def _compared_tokens(choices: GreedyChoices) -> dict[str, float]:
    return {"compared_tokens": float(choices.shared.tokens)} if choices.shared.tokens else {}


def _describe_untested_rejections(captured: Captured) -> str:
    counters = captured.speculative.counters
    unexercised = counters is not None and not captured.is_control and not counters.rejected_tokens
    return "; untested: the grammar after a rejected draft token" if unexercised else ""
