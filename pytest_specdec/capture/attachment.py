"""Attachment: checks of attached servers, comparable or not, before any workload is sent.

Attached servers run already, belong to somebody else and are reached by an address in the config. A boot is one visit to a server. That
two addresses lead to one server shows only if its counters can be read, and if no other client moves them meanwhile.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_specdec.capture.server.readiness import get, listed_models
from pytest_specdec.errors import EngineError
from pytest_specdec.model.plan import Role
from pytest_specdec.model.status import StepKind
from pytest_specdec.model.workload import Request, Route

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_specdec.capture.progress import Reporter
    from pytest_specdec.capture.server.server import ArmServer
    from pytest_specdec.capture.server_recipes import ServerRecipes
    from pytest_specdec.model.plan import Boot
    from pytest_specdec.model.transcript import Answer
    from pytest_specdec.model.workload import JSON

_FIRST_S = 15.0
"""Seconds for a first answer: these servers run already."""
_DEADLINE_S = 60.0
"""Seconds that one probe may take."""
_COMPARISONS = 3
"""Times that two addresses are compared: other clients may move the counters in between."""


def _probe_request(name: str, **fields: JSON) -> Request:
    route = Route.CHAT if "messages" in fields else Route.COMPLETIONS
    return Request(id=name, route=route, body={"max_tokens": 8, "temperature": 0.0, **fields})


_USER: JSON = {"role": "user", "content": "Name three colours.\n\n\tThen count: one two three one two three"}
_PROBES = (
    _probe_request("text", prompt="one two three one two three one two three one two"),
    _probe_request("spaces and accents", prompt="def café(x):\n\treturn  x + 3_000 # naïve €"),
    _probe_request("chat", messages=[_USER]),
    _probe_request("chat with a system message", messages=[{"role": "system", "content": "Be brief."}, _USER]),
)
"""Prompts on which tokenizers and templates differ; the first repeats itself, so that every drafter drafts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _VisitedServer:
    """The replies and counters of one attached server."""

    name: str
    server: ArmServer
    max_model_len: JSON
    answers: tuple[Answer, ...]
    """One per probe."""
    drafts: int | None
    """Verify steps that it counted while it answered the probes; None if it does not count them."""


def check(recipes: ServerRecipes, reporter: Reporter) -> dict[str, EngineError]:
    """Return the attached variants to leave out, each with its error.

    A variant is left out if it cannot be compared with the baseline: both must be reachable, be two servers and not one, and serve the same
    model with the same tokenizer. The other variants are captured without it. A scorer, which only scores given tokens, is not checked.
    Raises EngineError if the baseline, a draft model or all variants fail this check.
    """
    boots = _one_boot_per_arm([boot for boot in recipes.plan.boots if boot.attached and boot.role is not Role.SCORER])
    refused: dict[str, EngineError] = {}
    servers = [recipes.server(boot, reporter.check, lambda: reporter.left_s) for boot in boots]
    for server in servers:
        # They run already: none needs the minutes that a start may take.
        server.recipe = replace(server.recipe, boot_s=min(server.recipe.boot_s, _FIRST_S))
    try:
        for boot, server in zip(boots, servers, strict=True):
            reporter.step(boot, StepKind.BOOTING, boot.arm)
            with _record_refusals(boot, refused):
                server.start()
        _compare_with_baseline([(boot, server) for boot, server in zip(boots, servers, strict=True) if boot.arm not in refused], refused)
    finally:
        for server in servers:
            server.stop(0.0)  # ends the visit, not the server
    variants = {boot.arm for boot in boots if boot.role is Role.VARIANT}
    if refused and variants <= refused.keys():
        raise next(iter(refused.values()))
    return refused


@contextmanager
def _record_refusals(boot: Boot, refused: dict[str, EngineError]) -> Iterator[None]:
    """Record a variant's EngineError in ``refused``; raise other servers' errors.

    The block checks one server, that of ``boot``. After a variant's error the other variants are still captured.
    """
    try:
        yield
    except EngineError as error:
        if boot.role is not Role.VARIANT:
            raise
        refused[boot.arm] = error


def _one_boot_per_arm(boots: Sequence[Boot]) -> list[Boot]:
    """Return one boot per arm, the baseline's first, to visit each server once.

    The control, a second boot of the baseline, counts as the baseline: both visit the same attached server.
    """
    by_arm: dict[str, Boot] = {}
    for boot in sorted(boots, key=lambda boot: boot.role not in {Role.BASELINE, Role.CONTROL}):
        by_arm.setdefault(Role.BASELINE.value if boot.role is Role.CONTROL else boot.arm, boot)
    return list(by_arm.values())


def _compare_with_baseline(boots_with_servers: Sequence[tuple[Boot, ArmServer]], refused: dict[str, EngineError]) -> None:
    """Record in ``refused`` every variant not comparable with the baseline.

    ``boots_with_servers`` begin with the baseline's boot and server, unless it is not attached: then nothing is compared. ``refused`` has
    an error for each variant left out, by arm. Raises EngineError if a draft model's server is not comparable, or if the baseline itself
    speculates.
    """
    baseline_roles = {Role.BASELINE, Role.CONTROL}  # the control is a second boot of the baseline, or its only one
    if not boots_with_servers or boots_with_servers[0][0].role not in baseline_roles:
        return
    (baseline_boot, baseline_server), *others = boots_with_servers
    # First: a speculating server that is attached as both arms would else be reported as a baseline that speculates.
    for boot, other_server in others:
        with _record_refusals(boot, refused):  # records a variant's error, and raises a draft model's
            _expect_two_servers(baseline_server, other_server)
    baseline = _visit(baseline_boot, baseline_server)
    _expect_no_drafts(baseline)
    for boot, other_server in others:
        if boot.arm not in refused:
            with _record_refusals(boot, refused):
                _expect_comparable(boot, baseline, _visit(boot, other_server))


def _expect_no_drafts(baseline: _VisitedServer) -> None:
    """Raise EngineError if the baseline's counters show drafts."""
    if baseline.drafts:
        what, remedy = "the server attached as the baseline speculates", "attach one without speculation; are the two `url` mixed up?"
        drafts = f"{baseline.drafts} drafts in {len(_PROBES)} answers"
        raise EngineError(what, where=_url(baseline.server), found=drafts, expected="none", remedy=remedy)


def _expect_comparable(boot: Boot, baseline: _VisitedServer, other: _VisitedServer) -> None:
    """Raise EngineError if a server is not comparable with the baseline.

    A variant has to serve the baseline's model. A draft model is another model, and only has to read prompts as the same tokens.
    """
    if boot.role is Role.VARIANT:
        _expect_same_model(baseline, other)
    _expect_same_prompts(baseline, other)


def _url(server: ArmServer) -> str:
    return server.recipe.setup.url


def _expect_two_servers(baseline: ArmServer, other: ArmServer) -> None:
    """Raise EngineError if both addresses lead to one server.

    A request is sent to the baseline's address. If the counters of tokens (``traffic``) read at both addresses agree before it and after
    it, and have moved, they belong to one server. Other clients may move the counters in between, so the check is repeated. Without
    counters nothing is raised. Two arms may share an address if the config has them send different requests.
    """
    if _url(baseline) == _url(other):
        return  # the config's lint of pairs has checked that the requests differ
    for _ in range(_COMPARISONS):
        traffic_before = (baseline.traffic(), other.traffic())
        baseline.client.send(_PROBES[0], streamed=False, deadline_s=_DEADLINE_S)
        traffic_after = (baseline.traffic(), other.traffic())
        is_counted = traffic_before[0] is not None and traffic_before[0].prompt_tokens is not None
        are_equal = traffic_before[0] == traffic_before[1] and traffic_after[0] == traffic_after[1]
        if is_counted and are_equal and traffic_before != traffic_after:
            what, remedy = "one server is attached as both arms", "give every arm the address of its own server"
            counters = f"the counters behind both are the same, and move together: {traffic_after[0]}"
            raise EngineError(what, where=f"{_url(baseline)}, {_url(other)}", found=counters, expected="two servers", remedy=remedy)


def _visit(boot: Boot, server: ArmServer) -> _VisitedServer:
    """Return a server's answers to the probes, its drafts and context length.

    Counters are read before and after the probes: their growth shows whether this server drafts. ``boot`` only gives the server's name in
    errors: the control's is the baseline's.
    """
    setup, counters_before = server.recipe.setup, server.counters()
    answers = tuple(server.client.send(probe, streamed=False, deadline_s=_DEADLINE_S).answer for probe in _PROBES)
    counters_after, cards = server.counters(), listed_models(get(setup, "/v1/models"))
    return _VisitedServer(
        name=boot.arm if boot.role in {Role.VARIANT, Role.DRAFT} else Role.BASELINE.value,
        server=server,
        max_model_len=cards.get(server.model, {}).get("max_model_len"),
        answers=answers,
        drafts=None if counters_before is None or counters_after is None else (counters_after - counters_before).drafts,
    )


def _expect_same_model(baseline: _VisitedServer, other: _VisitedServer) -> None:
    """Raise EngineError if the context length or engine version differs.

    Only values reported by both servers are compared. The model's name needs no comparison: each server was checked for the name in the
    config when it was reached.
    """
    facts = {
        "max_model_len": (baseline.max_model_len, other.max_model_len),
        "engine version": (baseline.server.version, other.server.version),
    }
    for fact, (of_baseline, of_other) in facts.items():
        if of_baseline and of_other and of_baseline != of_other:
            values = f"{fact} {of_baseline} of the baseline and {of_other} of {other.name}"
            what, remedy = "the attached servers are no pair", "serve the same model by the same release; only speculation may differ"
            raise EngineError(what, where=_both_urls(baseline, other), found=values, expected="the same", remedy=remedy)


def _expect_same_prompts(baseline: _VisitedServer, other: _VisitedServer) -> None:
    """Raise EngineError if the servers tokenize a probe's prompt differently.

    Token ids are compared, or token counts if a server reports no ids. A prompt refused by only one of the servers counts as a difference.
    """
    for probe, baseline_answer, other_answer in zip(_PROBES, baseline.answers, other.answers, strict=True):
        if difference := _describe_difference(baseline_answer, other_answer):
            what = f"{other.name} reads prompts otherwise than the baseline: another tokenizer, or another chat template"
            remedy = "serve both with the same model folder, tokenizer and --chat-template"
            where = _both_urls(baseline, other)
            raise EngineError(what, where=where, found=f"probe {probe.id!r}: {difference}", expected="the same tokens", remedy=remedy)


def _both_urls(baseline: _VisitedServer, other: _VisitedServer) -> str:
    return f"{_url(baseline.server)}, {_url(other.server)}"


def _describe_difference(baseline_answer: Answer, other_answer: Answer) -> str:
    """Return how two servers read the same prompt differently, in words.

    Token ids are compared if both servers report them, else token counts. Returns an empty string if these agree or are unknown, or if both
    servers refuse the prompt.
    """
    if baseline_answer.ok != other_answer.ok:
        refused = other_answer if baseline_answer.ok else baseline_answer
        return f"only one answers; the other: {refused.status or 'no answer'}, {refused.error}"
    ids = baseline_answer.prompt_token_ids, other_answer.prompt_token_ids
    if all(ids):
        return "" if ids[0] == ids[1] else f"token ids {_format_ids(ids[0])} and {_format_ids(ids[1])}"
    counts = [answer.usage.prompt_tokens for answer in (baseline_answer, other_answer) if answer.usage is not None]
    return f"{counts[0]} and {counts[1]} prompt tokens" if len(set(counts)) > 1 else ""


def _format_ids(token_ids: Sequence[int]) -> str:
    return f"{', '.join(map(str, token_ids[:8]))}{', …' * (len(token_ids) > 8)} ({len(token_ids)})"  # noqa: PLR2004 - as shown
