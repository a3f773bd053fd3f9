"""Pressure: what a server answers when its key-value cache runs out is what it answers with room to spare.

A server out of cache preempts requests: it takes them out of the batch and resumes them later. Preemptions are the server's own count:
without any, nothing was tested. Arms are the baseline, which does not speculate, its control, the same booted again, and the variant, which
speculates; ``speculative`` is the arm under judgement. A score is the baseline's log-probability of a token.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.judge import greedy, structured
from pytest_specdec.judge.ending import check_endings
from pytest_specdec.judge.liveness import server_failure
from pytest_specdec.judge.prerequisites import is_refusal, refusal
from pytest_specdec.judge.verdicts import restate, say
from pytest_specdec.model.verdict import Example, Outcome, Symptom

if TYPE_CHECKING:
    from collections.abc import Collection

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Transcript
    from pytest_specdec.model.verdict import Verdict

__all__ = ["judge"]

UNANSWERED = "requests are lost when memory runs out"
WRONG_TOKENS = "answers go wrong when memory runs out"
WRONG_DOCUMENTS = "documents go wrong when memory runs out"
WRONG_END = "answers lose or repeat tokens when memory runs out"


def judge(captured: Captured) -> Verdict:
    """Return the verdict on answers of a server preempting requests.

    After failures of the server and refusals, FAIL comes first for lost requests, which the baseline answers, then for wrong ends, for
    tokens that are not the baseline's, and for invalid documents. The baseline that scores the tokens has cache to spare. Answers under a
    grammar are documents and judged as by structured, all others as by greedy. INCONCLUSIVE if nothing was preempted.
    """
    return server_failure(captured) or refusal(captured) or _check_unanswered(captured) or _judge_all(captured)


def _check_unanswered(captured: Captured) -> Verdict | None:
    """Return FAIL if requests answered by the baseline are lost, else None.

    A refusal is no loss. An answer's key is its request id and pass, so that equal keys are answers to one request.
    """
    baseline_answers = {answer.key for answer in captured.baseline.answers if answer.ok}
    lost = [a for a in captured.speculative.answers if a.key in baseline_answers and not a.ok and not is_refusal(a)]
    if not lost:
        return None
    headline = f"{UNANSWERED}: {len(lost)} of {len(captured.speculative.answers)} have no answer; first: request {lost[0].request_id}"
    lines = [f"request {answer.request_id}: status {answer.status}, {answer.error}" for answer in lost]
    example = Example(symptom=Symptom.UNANSWERED, request_id=lost[0].request_id, pass_index=lost[0].pass_index)
    cell = f"{len(lost)} lost"
    return say(captured, Outcome.FAIL, headline, short=lines[:3], evidence=lines, cell=cell, names=UNANSWERED, example=example)


def _judge_all(captured: Captured) -> Verdict:
    """Return the gravest verdict on endings, plain answers and documents.

    Documents are answers to requests with a grammar, plain answers all others. A failure by wrong endings comes first; other verdicts on
    endings do not count. A failure gets this family's fault name. Refusals and too little evidence under a grammar are left to the
    structured family. Without anything worse, INCONCLUSIVE if nothing was preempted, else PASS. The judges of the parts do not report to
    ``on_verdict``: only the combined verdict is for the test to check.
    """
    unreported = replace(captured, on_verdict=None)
    constrained = {request.id for request in captured.workload.requests if request.grammar}
    plain = {request.id for request in captured.workload.requests} - constrained
    token_verdict = greedy.judge(_select_requests(unreported, plain)) if plain else None
    document_verdict = structured.judge(_select_requests(unreported, constrained)) if constrained else None
    ending = check_endings(unreported)
    parts = [(token_verdict, WRONG_TOKENS), (document_verdict, WRONG_DOCUMENTS)]
    if ending is not None and ending.outcome is Outcome.FAIL:
        return _rename_finding(captured, ending, WRONG_END)
    for outcome in (Outcome.FAIL, Outcome.INVALID, Outcome.SUSPICIOUS, Outcome.NOT_SPECULATING, Outcome.INCONCLUSIVE, Outcome.REFUSED):
        for verdict, fault_name in parts:
            if verdict is not None and verdict.outcome is outcome and not _is_for_structured(verdict, document_verdict):
                return _rename_finding(captured, verdict, fault_name if outcome is Outcome.FAIL else "")
    return _check_preempted(captured) or _pass_pressure(captured, token_verdict, document_verdict)


def _is_for_structured(verdict: Verdict, documents: Verdict | None) -> bool:
    """Return True for a verdict on documents that this family leaves out.

    Refusals, too few documents and missing drafts under a grammar are for the structured family to report. ``documents`` is the verdict on
    documents; no other verdict is left out.
    """
    return verdict is documents and verdict.outcome in {Outcome.REFUSED, Outcome.INCONCLUSIVE, Outcome.NOT_SPECULATING}


def _select_requests(captured: Captured, ids: Collection[str]) -> Captured:
    """Return the captured answers and scores of these requests only.

    ``repeats``, in which the same requests were sent again, are cut in the same way. The counters still cover all requests, since servers
    do not split them.
    """

    def select(transcript: Transcript) -> Transcript:
        return replace(transcript, answers=tuple(answer for answer in transcript.answers if answer.request_id in ids))

    requests = tuple(request for request in captured.workload.requests if request.id in ids)
    return replace(
        captured,
        workload=replace(captured.workload, requests=requests),
        baseline=select(captured.baseline),
        control=None if captured.control is None else select(captured.control),
        speculative=select(captured.speculative),
        repeats=tuple(_select_requests(repeat, ids) for repeat in captured.repeats),
        scores={arm: tuple(score for score in scores if score.request_id in ids) for arm, scores in captured.scores.items()},
    )


def _rename_finding(captured: Captured, verdict: Verdict, name: str) -> Verdict:
    """Return one part's verdict as this family's, and report it.

    Its headline and fault begin with ``name``, unless that is empty, and the preemptions are added to its evidence.
    """
    preempted = f"preempted    {_describe_preemption(captured)}"
    names = "; ".join(filter(None, (name, verdict.names)))
    return restate(
        captured,
        verdict,
        headline=f"{name}: {verdict.headline}" if name else verdict.headline,
        names=names,
        # ``short`` has four lines at most.
        short=(*verdict.short[:3], preempted),
        evidence=(*verdict.evidence, preempted),
    )


def _describe_preemption(captured: Captured) -> str:
    """Return the preemptions of the baseline and of the judged arm, in words."""
    arms = {captured.baseline.arm: captured.baseline, captured.arm: captured.speculative}
    return ", ".join(f"{name} {'unknown' if arm.preemptions is None else f'{arm.preemptions} times'}" for name, arm in arms.items())


def _check_preempted(captured: Captured) -> Verdict | None:
    """Return INCONCLUSIVE if no preemption is known, else None.

    None for the control as well, since its cache has the usual size. A count of None means that the server does not count preemptions.
    """
    if captured.is_control or captured.speculative.preemptions:
        return None
    counted = captured.speculative.preemptions is not None
    return say(
        captured,
        Outcome.INCONCLUSIVE,
        "the small cache did not bind: no request was preempted" if counted else "nothing counts preemptions: the small cache may not bind",
        short=(f"preempted    {_describe_preemption(captured)}",),
        evidence=(f"preempted    {_describe_preemption(captured)}",),
        settle="a smaller cache, or more and longer requests" if counted else "serve the engine's metrics, with its count of preemptions",
        cell="no preemption",
    )


def _pass_pressure(captured: Captured, tokens: Verdict | None, documents: Verdict | None) -> Verdict:
    """Return PASS, joined from the verdicts on plain answers and documents."""
    parts = [verdict for verdict in (tokens, documents) if verdict is not None]
    answers = sum(answer.ok for answer in captured.speculative.answers)
    preempted = captured.speculative.preemptions
    return say(
        captured,
        Outcome.PASS,
        f"{answers} requests answered, {preempted or 'none'} preempted on the way; {'; '.join(verdict.headline for verdict in parts)}",
        evidence=(f"preempted    {_describe_preemption(captured)}", *(line for verdict in parts for line in verdict.evidence)),
        rules_out="; ".join(verdict.rules_out for verdict in parts if verdict.rules_out),
        cell=f"{answers} answered, {preempted or 'none'} preempted",
        figures={"answers": float(answers), "preemptions": float(preempted or 0)},
    )
