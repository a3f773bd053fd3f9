"""The answer of a run: is speculation safe, for correctness and for speed; faults, detectable faults, families not tested.

A judgement is one test's result on one variant, which speculates, against the baseline, the same server without. It belongs to a family of
tests, such as greedy or speed. Most have a verdict. A finding is one fault with all the failures that it explains. A waiver of the config
expects a known failure. A lossy mode may change tokens by design. Speed does not count for variants with wrong tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.model.promise import CheckedTokens, DraftedTraffic, SampledTokens, Speedup
from pytest_specdec.model.verdict import Finding, Outcome, Verdict
from pytest_specdec.model.workload import Family
from pytest_specdec.report import table
from pytest_specdec.report.escape import printable
from pytest_specdec.report.run import NOT_COUNTED, PytestOutcome
from pytest_specdec.report.table import CellText, Tone

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pytest_specdec.report.causes import SharedCause
    from pytest_specdec.report.run import JudgementResult, Run

BROKEN: Mapping[Family, str] = {
    Family.GREEDY: "tokens at temperature 0 are not the baseline's",
    Family.SAMPLING: "sampled tokens do not follow the baseline's distribution",
    Family.PARAMETERS: "sampling parameters are not honoured",
    Family.LOGPROBS: "reported log-probabilities are wrong",
    Family.STRUCTURED: "structured answers are wrong",
    Family.LIVENESS: "the server fails requests that the baseline answers",
    Family.SEEDS: "seeds do not do what they do without speculation",
    Family.LENGTHS: "answers do not end where they should",
    Family.INVARIANTS: "answers break rules that the baseline's keep",
    Family.TOOLS: "tool calls or streams are wrong",
    Family.RESPONSES: "the Responses API does not give what the chat route gives",
    Family.STATE: "answers depend on what was asked before",
    Family.BETWEEN: "answers or drafts are not as before after an event between requests",
    Family.CONCURRENCY: "answers are wrong under concurrency",
    Family.CONTEXT: "answers near the context limit are wrong",
    Family.LONG: "answers or drafts go wrong in long contexts",
    Family.PRESSURE: "answers are wrong when memory runs out",
    Family.ADAPTERS: "requests with LoRA adapters, or beside them, are answered wrongly",
    Family.IMAGES: "requests with images, or beside them, are answered wrongly",
    Family.OFFLOAD: "answers or drafts go wrong when an offloaded cache comes back",
    Family.ENDURANCE: "answers, drafts or memory change for the worse after minutes of the same traffic",
    Family.SPEED: "the speed is below its gate",
}
"""A broken promise of each family as a sentence; other families are named."""


def correctness(run: Run) -> CellText:
    """Return one line on correctness, by all families but speed.

    The first case that holds decides: no test; a fault; nothing judged; a variant of which the server refused everything; judgements that
    could not be made; suspicious evidence (high, but short of an alarm). Else nothing wrong was found, and the counts of waived, lossy,
    refused and undecided judgements follow. Faults that only miss a gate on noise, by a verify kernel noisier than the config allows, are
    named as such: they make no token wrong. The line of a run that is compared with an earlier one begins with SPECULATION, since the
    upgrade's headline above it speaks of the baseline's own answers.
    """
    subject = "CORRECTNESS" if run.upgrade is None else "SPECULATION"
    results = [j for j in run.judgements if j.family is not Family.SPEED]
    if not results:
        return CellText(text=f"{subject}: not tested", tone=Tone.UNSURE)
    faulty = [j for j in results if j.has_fault]
    if faulty:
        failure_kind = "NOISE ABOVE ITS GATE" if all(j.misses_noise_gate for j in faulty) else "FAILED"
        # A finding may be of speed alone: it is not counted here.
        count = sum(any(failure in faulty for failure in finding.failures) for finding in run.findings)
        return CellText(text=f"{subject}: {failure_kind}, {count} finding{'s' * (count != 1)} ({_pair_names(faulty)})", tone=Tone.BAD)
    if nothing_judged := _describe_nothing_judged(run, results):
        return CellText(text=printable(f"{subject}: {nothing_judged}"), tone=Tone.BAD)
    failed = [j for j in results if j.result in {PytestOutcome.FAILED, PytestOutcome.ERROR}]
    if failed:
        return CellText(text=f"{subject}: {_describe_unjudged(failed, len(results))}", tone=Tone.BAD)
    suspicious = [j for j in results if j.verdict and j.verdict.outcome is Outcome.SUSPICIOUS]
    if suspicious:
        return CellText(text=f"{subject}: SUSPICIOUS ({_pair_names(suspicious)})", tone=Tone.UNSURE)
    limits = _limits_of_pass(results)
    # A waived failure is wrong, though not new.
    conclusion = "nothing new found" if any(j.result is PytestOutcome.WAIVED for j in results) else "nothing wrong found"
    return CellText(text=f"{subject}: {'; '.join((conclusion, *limits))}", tone=Tone.UNSURE if limits else Tone.GOOD)


def _describe_nothing_judged(run: Run, results: list[JudgementResult]) -> str:
    """Return a clause if nothing of ``results`` was judged, or nothing of a variant since its server refused all; else empty."""
    if not any(j.judged for j in results):
        return "nothing could be judged"
    return f"nothing could be judged of {', '.join(run.refusing)}: all refused" if run.refusing else ""


def _limits_of_pass(results: list[JudgementResult]) -> tuple[str, ...]:
    """Return counts of waived, lossy, refused and undecided judgements in words; () without any.

    They limit what the line "nothing wrong found" means. A failure of a lossy mode has the outcome FAIL and no fault: its test is skipped,
    so that it is only reported.
    """
    waived = sum(j.result is PytestOutcome.WAIVED for j in results)
    lossy = sum(j.result is PytestOutcome.SKIPPED and j.verdict is not None and j.verdict.outcome is Outcome.FAIL for j in results)
    refused = sum(j.verdict is not None and j.verdict.outcome is Outcome.REFUSED for j in results)
    undecided = sum(not j.judged for j in results) - refused  # a refused one is not judged either
    return (
        *([f"{waived} known failure{'s' * (waived != 1)} waived"] if waived else []),
        *([f"{lossy} failure{'s' * (lossy != 1)} of a lossy mode reported"] if lossy else []),
        *([f"{refused} of {len(results)} judgements refused by the server"] if refused else []),
        *([f"{undecided} of {len(results)} judgements undecided"] if undecided else []),
    )


def limits_of_clean(run: Run) -> str:
    """Return the limits of a clean run in words; empty if nothing is missing.

    They are the waived, lossy, refused and undecided judgements on correctness, and the answer on speed if it was timed and is not good.
    """
    of_speed, is_timed = speed(run), any(j.family is Family.SPEED for j in run.judgements)
    limits = _limits_of_pass([j for j in run.judgements if j.family is not Family.SPEED])
    return "; ".join((*limits, *([of_speed.text] if is_timed and of_speed.tone is not Tone.GOOD else [])))


def _describe_unjudged(failed: list[JudgementResult], count: int) -> str:
    """Return a text on failed judgements without a faulty server.

    A waived judgement that passes fails its test, since its waiver is no longer needed. If all are such, the text says that, and otherwise
    how many of the ``count`` judgements on correctness could not be made.
    """
    if all(j.waiver and j.verdict is not None and j.verdict.outcome is Outcome.PASS for j in failed):
        return f"a waiver is no longer needed ({_pair_names(failed)})"
    return f"{len(failed)} of {count} judgements could not be made"


def speed(run: Run) -> CellText:
    """Return one line on speed: above its gate, below it or undecided.

    Variants with wrong tokens are named, and their speed is not counted: the speed of wrong tokens is no speed. A fault of their speed
    itself is counted all the same. Where some are not counted, the line is about the other variants, and its tone never good.
    """
    results = [j for j in run.judgements if j.family is Family.SPEED]
    pairs_with_speed_fault = {j.pair for j in results if j.has_fault}
    uncounted = [j for j in results if j.pair in run.not_counted and j.pair not in pairs_with_speed_fault]
    if not uncounted:
        return _answer_on_speed(results)
    counted_results = [j for j in results if j not in uncounted]
    if not counted_results:
        return CellText(text=f"SPEED: {NOT_COUNTED} ({_pair_names(uncounted)})", tone=Tone.UNSURE)
    counted_answer = _answer_on_speed(counted_results)
    return CellText(
        text=f"{counted_answer.text}; {_pair_names(uncounted)} {NOT_COUNTED}",
        tone=Tone.UNSURE if counted_answer.tone is Tone.GOOD else counted_answer.tone,
    )


def _answer_on_speed(results: list[JudgementResult]) -> CellText:
    """Return the answer on speed by ``results``, judgements of the speed family.

    In order of precedence: no test, a fault, a judgement that could not be made, a gate without a decision, no gate (no test if no speedup
    was measured either), all gates met. In the last case the lowest speedup with a gate is shown.
    """
    if not results:
        return CellText(text="SPEED: not tested", tone=Tone.UNSURE)
    faulty = [j for j in results if j.has_fault]
    if faulty:
        return CellText(text=f"SPEED: {_name_speed_faults(faulty)}", tone=Tone.BAD)
    if any(j.result is PytestOutcome.ERROR for j in results):
        return CellText(text="SPEED: not measured", tone=Tone.BAD)
    without_decision = [j for j in results if _leaves_gate_open(j)]
    if without_decision:
        return CellText(text=f"SPEED: NOT GATED ({_pair_names(without_decision)})", tone=Tone.UNSURE)
    speedups = [j.verdict.promise for j in results if j.verdict and isinstance(j.verdict.promise, Speedup)]
    gated = [speedup for speedup in speedups if speedup.gates]
    if not gated:
        return CellText(text=f"SPEED: {'reported, without a gate' if speedups else 'not tested'}", tone=Tone.UNSURE)
    slowest = min(gated, key=lambda speedup: speedup.ratio)
    return CellText(text=f"SPEED: above its gate, {slowest.ratio:.2f}x{' or more' if len(gated) > 1 else ''}", tone=Tone.GOOD)


_MISSED_GATE = "BELOW ITS GATE"


def _name_speed_faults(failed: list[JudgementResult]) -> str:
    """Return the names of the faults of ``failed``, each with its variants, missed gates first."""
    by_name: dict[str, list[JudgementResult]] = {_MISSED_GATE: []}
    for result in failed:
        by_name.setdefault(_name_speed_fault(result), []).append(result)
    return ", ".join(f"{name} ({_pair_names(results)})" for name, results in by_name.items() if results)


def _name_speed_fault(result: JudgementResult) -> str:
    if _compares_stored_acceptance(result):
        return "ACCEPTANCE HAS CHANGED"
    return "SOME REQUESTS ARE NOT DRAFTED FOR" if _compares_traffic(result) else _MISSED_GATE


def undecided_speed_lines(run: Run) -> Iterator[CellText]:
    """Yield one sentence for each reason for an undecided speed or drafting.

    It names the variants and workloads with this reason, and what would settle them. It begins with NOT GATED, or with NOT DECIDED for
    drafting compared by kind of traffic, which has no gate. Variants with wrong tokens are left out, since their speed does not count. Only
    verdicts on speed and drafting have the outcome NOT_DECIDED.
    """
    by_reason: dict[tuple[str, str], list[str]] = {}
    for j in run.judgements:
        verdict = j.verdict
        if j.pair not in run.not_counted and verdict is not None and verdict.outcome is Outcome.NOT_DECIDED:
            status = "NOT DECIDED" if _compares_traffic(j) else "NOT GATED"
            reason = f"because {verdict.reason or verdict.headline}, settle it with {verdict.settle or 'another run'}"
            by_reason.setdefault((status, reason), []).append(f"{j.pair} ({j.workload})")
    for (status, reason), subjects in by_reason.items():
        yield CellText(text=printable(f"{status}: {', '.join(subjects)}, {reason}"), tone=Tone.UNSURE)


def fault_lines(run: Run) -> Iterator[CellText]:
    """Yield one sentence for each finding of the run.

    It names the variants, the broken promise, the fault, and the tests that saw it.
    """
    for finding in run.findings:
        yield fault_line(finding, ", ".join(finding.by_pair))


def fault_line(finding: SharedCause, subject: str) -> CellText:
    """Return the sentence on one finding: its kind, place, broken promise, name and tests.

    ``subject`` names the variants, or counts the cells, that have it. Kind and promise are those of its leader, the failure that names it.
    """
    leader = finding.leader
    text = f"{_kind_of_fault(leader)}: {subject}: {_broken_promise(leader)}: {finding.name} ({finding.tests})"
    return CellText(text=printable(text), tone=Tone.BAD)


def waived_lines(run: Run) -> Iterator[CellText]:
    """Yield one sentence for each failure expected by a waiver.

    It holds the verdict's headline, and the known bug, owner and last day of the waiver.
    """
    for j in run.judgements:
        if j.result is PytestOutcome.WAIVED and j.verdict is not None:
            about = f"{j.pair} {j.family.value} ({j.workload}): {j.verdict.headline}"
            yield CellText(text=printable(f"KNOWN: {about}; {j.waiver}"), tone=Tone.UNSURE)


def _kind_of_fault(result: JudgementResult) -> str:
    """Return the word that begins the line of ``result``, a fault: WRONG or FAILED.

    FAILED is for a server that does not speculate, and for a verify kernel noisier than its gate allows. Neither makes a token wrong.
    """
    if result.verdict is None:  # an assertion of the test failed
        return "WRONG"
    if result.misses_noise_gate:
        return "FAILED"
    # The only other outcome of a fault is NOT_SPECULATING.
    return "WRONG" if result.verdict.outcome is Outcome.FAIL else "FAILED"


def _broken_promise(result: JudgementResult) -> str:
    """Return a failed judgement's broken promise as a sentence without a full stop.

    Families of other packages have no sentence in :data:`BROKEN`, and are named instead.
    """
    if result.verdict is None:
        return f"an assertion of a {result.family.value} test failed"
    if result.verdict.outcome is Outcome.NOT_SPECULATING:
        return "the server does not speculate"
    if result.misses_noise_gate:
        return "a gate of the config is missed"
    if _compares_traffic(result):
        return "some requests do not get the drafts that others get"
    if _compares_stored_acceptance(result):
        return "acceptance is not what it was in the stored run"
    return BROKEN.get(result.family, f"{result.family.value} differs from the baseline")


def _compares_traffic(result: JudgementResult) -> bool:
    """Return True if a judgement compares drafting by kind of traffic."""
    return result.verdict is not None and isinstance(result.verdict.promise, DraftedTraffic)


def _compares_stored_acceptance(result: JudgementResult) -> bool:
    """Return True if the verdict finds acceptance changed since the stored run."""
    return result.verdict is not None and result.verdict.finding in {Finding.WORSE, Finding.MORE}


def _leaves_gate_open(result: JudgementResult) -> bool:
    """Return True if a judgement on speed without a fault has no decision on a gate.

    A pass means that every gate is met, or that there is none. Drafting compared by kind of traffic never has a gate.
    """
    is_pass = result.verdict is not None and result.verdict.outcome is Outcome.PASS
    return not is_pass and not _compares_traffic(result)


def _pair_names(judgements: Iterable[JudgementResult]) -> str:
    return printable(", ".join(dict.fromkeys(j.pair for j in judgements)))


def detectable(run: Run) -> tuple[tuple[str, str], ...]:
    """Return the faults ruled out by each passing judgement, with its place.

    A row has the variant and workload as text, and the faults that the judgement would have detected.
    """
    return tuple((f"{v.pair}, {v.workload}", v.rules_out) for v in _sensitive_verdicts(run))


def detectable_in_short(run: Run) -> tuple[tuple[str, str], ...]:
    """Return the faults ruled out by each variant's largest judgements.

    For a short report: of each variant and family only the passing judgement of most tokens counts. Only greedy and sampling are included
    if the run judged either. A row has the variants with the same text, and this text: the faults that the judgement would have detected.
    """
    largest: dict[tuple[str, Family], Verdict] = {}
    for verdict in sorted(_sensitive_verdicts(run), key=_count_tokens):
        largest[verdict.pair, verdict.family] = verdict  # replaces one of fewer tokens
    families = [f for f in table.families(run) if f in {Family.GREEDY, Family.SAMPLING}] or table.families(run)
    by_text: dict[str, list[str]] = {}
    for pair, family in ((pair, family) for family in families for pair in run.pairs):
        if (pair, family) in largest:
            by_text.setdefault(largest[pair, family].rules_out, []).append(pair)
    return tuple((", ".join(pairs), text) for text, pairs in by_text.items())


def _count_tokens(verdict: Verdict) -> int:
    return verdict.promise.tokens if isinstance(verdict.promise, (CheckedTokens, SampledTokens)) else 0


def _sensitive_verdicts(run: Run) -> list[Verdict]:
    """Return the passing verdicts with a text on detectable faults, speeds that do not count left out."""
    passed = (j.verdict for j in run.judgements if j.result is PytestOutcome.PASSED and not _is_void(run, j))
    return [verdict for verdict in passed if verdict is not None and verdict.outcome is Outcome.PASS and verdict.rules_out]


def _is_void(run: Run, judgement: JudgementResult) -> bool:
    """Return True for a speed of no value, since its variant has wrong tokens."""
    return judgement.family is Family.SPEED and judgement.pair in run.not_counted


def not_tested(run: Run) -> str:
    """Return a sentence on the families without a test; empty without any."""
    untested = [printable(name) for name in run.plan.rows if name not in run.families]
    return f"Not tested: {', '.join(untested)}" if untested else ""
