"""Baseline record: the files of a run read as what it knows of its baseline's distribution."""

from __future__ import annotations

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


def read(directory: RunDirectory) -> BaselineRecord:
    """Return the record of a run's baseline, for comparison with another run.

    Scored positions are taken from the answers of every arm, since the scores are the baseline's own. Prompts are taken from all arms but
    the old engine's. If another server scored, as a config with ``scorer:`` asks, its scores may be of another engine: then neither scores
    nor noise are in the record. Raises RunError if the plan or an existing file is invalid.
    """
    plan = run_documents.read_plan(directory)
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
        for arm, request, prompt_ids, answer_ids, positions in _scored_answers(directory, plan, sent):
            prompt = request.prompt_key
            if arm != OLD_BASELINE:
                prompts.setdefault(prompt, prompt_ids)
            if request.route is Route.CHAT:
                chats.add(prompt)
            for key, position in zip(_prefix_digests(prompt_ids, answer_ids, request.adapter), positions, strict=True):
                prefixes.setdefault(key, Prefix(prompt=prompt, position=position))
    arms = captured.arms_scored_by_other_boots(plan)
    other_boots = captured.read_calibration(directory, plan, *arms) if arms else ReportedDraws()
    draws = other_boots or captured.read_calibration(directory, plan, BASELINE, CONTROL)
    baseline = run_documents.read_capabilities(directory).get(BASELINE, Capabilities())
    return BaselineRecord(
        prompts=prompts,
        chats=frozenset(chats),
        prefixes=prefixes if has_own_scores else {},
        greedy=greedy,
        unanswered=frozenset(questions - greedy.keys()),
        draws=draws if has_own_scores else ReportedDraws(),
        boots=2 if other_boots else 1,
        variant_draws=tuple(captured.read_calibration(directory, plan, pair.name) for pair in plan.pairs) if has_own_scores else (),
        single_precision=baseline.single_precision,
        began=began,
        old_answers=tuple(old_answers.read(directory, plan, draws)) if has_own_scores else (),
        new_answers=tuple(old_answers.read_new(directory, plan)),
    )


def _greedy_answers(
    directory: RunDirectory, workload: Workload, own: Transcript, *, has_own_scores: bool
) -> Iterator[tuple[str, GreedyAnswer]]:
    """Yield the baseline's answers at temperature 0, by their question.

    The question is the text of :attr:`Request.asks`, and ``own`` the baseline's transcript. Only requests that take the most probable token
    of the unprocessed distribution count. An answer has no positions if its scores are of other tokens, or, without ``has_own_scores``, of
    another server than the baseline.
    """
    greedy = {request.id: request for request in workload.requests if request.takes_likeliest}
    baseline, control = map(_first_passes, (own, transcripts.read(directory, CONTROL, workload.name)))
    scores = (
        {score.key: score.positions for score in transcripts.read_scores(directory, BASELINE, BASELINE, workload.name)}
        if greedy and has_own_scores
        else {}
    )
    for request_id, request in greedy.items():
        answer, again = baseline.get(request_id), control.get(request_id)
        if answer is not None:
            positions = scores.get(answer.key, ())
            yield (
                request.asks,
                GreedyAnswer(
                    request_id=request_id,
                    prompt=request.prompt_key,
                    choice=answer.choice,
                    positions=positions if tuple(position.token_id for position in positions) == answer.choice.token_ids else (),
                    control=again.choice if again else None,
                    limit=None if request.token_limit is None else own.room * request.token_limit,
                ),
            )


def _first_passes(transcript: Transcript | None) -> Mapping[str, Answer]:
    """Return an arm's answers in the first pass, by request id.

    Failed answers are left out, and so are those that have something to read but no token ids.
    """
    answers = () if transcript is None else transcript.answers
    return {answer.request_id: answer for answer in answers if answer.ok and not answer.pass_index and _has_known_tokens(answer)}


def _has_known_tokens(answer: Answer) -> bool:
    """Return True if an answer has token ids, or no token at all."""
    choice = answer.choice
    return bool(choice.token_ids) or not (answer.tokens or choice.written or choice.tool_calls)


def _scored_answers(
    directory: RunDirectory, plan: Plan, workload: Workload
) -> Iterator[tuple[str, Request, tuple[int, ...], tuple[int, ...], tuple[Position, ...]]]:
    """Yield all answers to ``workload`` scored by the baseline, with their scores.

    Each is the arm, the request, the token ids of the prompt, the token ids of the answer, and the scored positions, one per token of the
    answer. An answer is left out if the ids of its prompt are unknown, or if other tokens than its own were scored.
    """
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
                yield arm, request, prompt_ids, answer.choice.token_ids, score.positions


def _prefix_digests(prompt_ids: Sequence[int], answer_ids: Sequence[int], adapter: str = "") -> Iterator[bytes]:
    """Yield one digest per answer token, of the LoRA adapter and all ids before it.

    The ids of the prompt are included. After the same ids two adapters have two distributions.
    """
    ids = b"".join(token.to_bytes(_TOKEN_BYTES, "little", signed=True) for token in prompt_ids)
    state = blake2b(ids, digest_size=_DIGEST_BYTES, key=blake2b(adapter.encode(), digest_size=_DIGEST_BYTES).digest() if adapter else b"")
    for token in answer_ids:
        yield state.copy().digest()
        state.update(token.to_bytes(_TOKEN_BYTES, "little", signed=True))
