"""Baseline record: what a run's files tell of the distribution of its baseline, the server without speculation.

The records of two runs are compared. An arm is a server setup with answers in a run: the baseline, its control (the baseline booted again)
or a variant, which speculates. A score is the distribution that a server gives at each token of an answer, whichever arm emitted it.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

from pytest_specdec.files import captured, old_answers, run_documents, transcripts
from pytest_specdec.model.baseline_record import BaselineRecord, GreedyAnswer, Prefix
from pytest_specdec.model.captured import Capabilities, ReportedDraws
from pytest_specdec.model.pair import BASELINE, CONTROL, OLD_BASELINE
from pytest_specdec.model.plan import Role
from pytest_specdec.model.workload import Route

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_specdec.files.run_directory import RunDirectory
    from pytest_specdec.model.plan import Plan
    from pytest_specdec.model.transcript import Answer, Position, Transcript
    from pytest_specdec.model.workload import Request, Workload

_DIGEST_BYTES = 16
_TOKEN_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _ScoredSequence:
    """The tokens of a prompt and an answer of any arm, scored by the baseline."""

    arm: str
    request: Request
    prompt_ids: tuple[int, ...]
    """Token ids of the prompt; at least one."""
    positions: tuple[Position, ...]
    """The scores of the answer's tokens, one each."""


def read(directory: RunDirectory) -> BaselineRecord:
    """Return the record of a run's baseline, for comparison with another run.

    Scored positions are taken from the answers of every arm, since the scores are the baseline's own. Each is under a digest of all tokens
    before it, by which two runs find what they share. Answers at temperature 0 (``greedy``) are by question, from the first workload that
    asks it. Raises RunError if the plan or an existing file is invalid.
    """
    plan = run_documents.read_plan(directory)
    # A config's `scorer:` may be of another engine, whose scores say nothing of this baseline: they are then left out of the record.
    has_own_scores = all(boot.role is not Role.SCORER for boot in plan.boots)
    prompts: dict[str, tuple[int, ...]] = {}
    prefixes: dict[bytes, Prefix] = {}
    greedy: dict[str, GreedyAnswer] = {}
    questions: set[str] = set()
    chats: set[str] = set()
    began: dict[str, str] = {}
    for workload in plan.workloads:
        sent = run_documents.read_workload(directory, plan, workload.name)
        baseline_answers = transcripts.read(directory, BASELINE, workload.name)
        if baseline_answers is not None:
            began[workload.name] = baseline_answers.started_at
            questions.update(request.asks for request in sent.requests if request.takes_likeliest)
            for asks, answer in _greedy_answers(directory, sent, baseline_answers, has_own_scores=has_own_scores):
                greedy.setdefault(asks, answer)
        for scored in _scored_sequences(directory, plan, sent):
            prompt = scored.request.prompt_key
            if scored.arm != OLD_BASELINE:  # the old engine may have another chat template
                prompts.setdefault(prompt, scored.prompt_ids)
            if scored.request.route is Route.CHAT:
                chats.add(prompt)
            answer_ids = tuple(position.token_id for position in scored.positions)
            digests = _prefix_digests(scored.prompt_ids, answer_ids, scored.request.adapter)
            for digest, position in zip(digests, scored.positions, strict=True):
                prefixes.setdefault(digest, Prefix(prompt=prompt, position=position))
    draws, boots = _read_draws(directory, plan)
    baseline = run_documents.read_capabilities(directory).get(BASELINE, Capabilities())
    return BaselineRecord(
        prompts=prompts,
        chats=frozenset(chats),
        prefixes=prefixes if has_own_scores else {},
        greedy=greedy,
        unanswered=frozenset(questions - greedy.keys()),
        draws=draws if has_own_scores else ReportedDraws(),
        boots=boots,
        variant_draws=tuple(captured.read_calibration(directory, plan, pair.name) for pair in plan.pairs) if has_own_scores else (),
        single_precision=baseline.single_precision,
        began=began,
        old_answers=tuple(old_answers.read(directory, plan, draws)) if has_own_scores else (),
        new_answers=tuple(old_answers.read_new(directory, plan)),
    )


def _read_draws(directory: RunDirectory, plan: Plan) -> tuple[ReportedDraws, int]:
    """Return the draws of baseline and control, and the number of boots in them.

    Draws are sampled tokens, each with the log-probability that its server reported and its score; the two differ by noise. Preferred are
    those scored by another boot than drew them (2 boots). If there are none, all are returned (1 boot): noise between boots is not in them.
    """
    arms = captured.arms_scored_by_other_boots(plan)
    cross_boot_draws = captured.read_calibration(directory, plan, *arms) if arms else ReportedDraws()
    if cross_boot_draws:
        return cross_boot_draws, 2
    return captured.read_calibration(directory, plan, BASELINE, CONTROL), 1


def _greedy_answers(
    directory: RunDirectory, workload: Workload, transcript: Transcript, *, has_own_scores: bool
) -> Iterator[tuple[str, GreedyAnswer]]:
    """Yield the baseline's answers at temperature 0, by their question.

    A question, :attr:`Request.asks`, is a text of route and body without the seed; ``transcript`` is the baseline's. Only requests whose
    answer takes the most probable token each time, with no parameter that changes the probabilities, count (``takes_likeliest``). Without
    ``has_own_scores``, as where another server scored, the answers come without scored positions.
    """
    greedy = {request.id: request for request in workload.requests if request.takes_likeliest}
    baseline, control = map(_first_passes, (transcript, transcripts.read(directory, CONTROL, workload.name)))
    scores = (
        {score.key: score.positions for score in transcripts.read_scores(directory, BASELINE, BASELINE, workload.name)}
        if greedy and has_own_scores
        else {}
    )
    for request_id, request in greedy.items():
        answer, control_answer = baseline.get(request_id), control.get(request_id)
        if answer is not None:
            positions = scores.get(answer.key, ())
            are_of_answer = tuple(position.token_id for position in positions) == answer.choice.token_ids
            yield (
                request.asks,
                GreedyAnswer(
                    request_id=request_id,
                    prompt=request.prompt_key,
                    choice=answer.choice,
                    positions=positions if are_of_answer else (),  # other tokens were scored: no scores of this answer
                    control=control_answer.choice if control_answer else None,
                    # The limit as it was sent: `room` is the factor by which all planned ones were raised.
                    limit=None if request.token_limit is None else transcript.room * request.token_limit,
                ),
            )


def _first_passes(transcript: Transcript | None) -> Mapping[str, Answer]:
    """Return an arm's answers in the first pass, by request id.

    Failed answers are left out, and so are those with text or calls whose token ids the server did not report.
    """
    answers = () if transcript is None else transcript.answers
    return {answer.request_id: answer for answer in answers if answer.ok and not answer.pass_index and _has_known_tokens(answer)}


def _has_known_tokens(answer: Answer) -> bool:
    """Return True if an answer has token ids, or no token at all."""
    choice = answer.choice
    return bool(choice.token_ids) or not (answer.tokens or choice.written or choice.tool_calls)


def _scored_sequences(directory: RunDirectory, plan: Plan, workload: Workload) -> Iterator[_ScoredSequence]:
    """Yield the scored answers to ``workload`` with their prompts, arm by arm.

    An answer is left out if the ids of its prompt are unknown, or if other tokens than its own were scored.
    """
    # `under` is the model that scored: not a draft model, nor the old engine's baseline.
    tasks = (task for boot in plan.boots if boot.under == BASELINE for task in boot.scores if task.workload == workload.name)
    for arm in dict.fromkeys(task.arm for task in tasks):
        transcript = transcripts.read(directory, arm, workload.name)
        scores = {score.key: score for score in transcripts.read_scores(directory, BASELINE, arm, workload.name)}
        for answer in () if transcript is None else transcript.answers:
            score, request = scores.get(answer.key), workload.by_id.get(answer.request_id)
            if score is None or request is None or tuple(position.token_id for position in score.positions) != answer.choice.token_ids:
                continue
            prompt_ids = answer.prompt_token_ids or score.prompt_token_ids
            if prompt_ids:
                yield _ScoredSequence(arm=arm, request=request, prompt_ids=prompt_ids, positions=score.positions)


def _prefix_digests(prompt_ids: Sequence[int], answer_ids: Sequence[int], adapter: str = "") -> Iterator[bytes]:
    """Yield one digest per answer token, of all ids before it.

    Equal digests in two runs mark positions with the same tokens before them. The ids of the prompt are included, and so is the name of the
    LoRA adapter: after the same ids two adapters have two distributions.
    """
    ids = b"".join(token.to_bytes(_TOKEN_BYTES, "little", signed=True) for token in prompt_ids)
    state = blake2b(ids, digest_size=_DIGEST_BYTES, key=blake2b(adapter.encode(), digest_size=_DIGEST_BYTES).digest() if adapter else b"")
    for token in answer_ids:
        yield state.copy().digest()
        state.update(token.to_bytes(_TOKEN_BYTES, "little", signed=True))
