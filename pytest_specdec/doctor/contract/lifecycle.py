"""The clauses on a server's life: program, readiness, version, recognition, end."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pytest_specdec.capture.server.readiness import ReadyServer, ask, get, look
from pytest_specdec.doctor.contract.clause import Clause, broken, kept, not_claimed, unchecked
from pytest_specdec.engines import registry
from pytest_specdec.engines.plain_dialect import PlainDialect
from pytest_specdec.engines.protocol import AnyEngine, Recognising

if TYPE_CHECKING:
    from typing import Self

    from pytest_specdec.capture.server.server import ServerRecipe
    from pytest_specdec.doctor.contract.clause import Finding
    from pytest_specdec.doctor.contract.visit import Visit
    from pytest_specdec.engines.protocol import Dialect

_OK = 200
_PAUSE_S = 0.02
_COMMIT = 7
"""Digits of a commit, by which two versions are one."""
_WORDS = re.compile(r"[0-9a-z]+")


class ReadinessWatch:
    """Asks the health path of a server that boots, from a thread; at its first 200, whether a completion is answered."""

    def __init__(self, recipe: ServerRecipe) -> None:
        self._recipe = recipe
        self._over = threading.Event()
        self.early: str | None = None
        """What was wrong with the first 200; empty where nothing was, None before one."""
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        """Wait for the first 200, then ask for a completion."""
        setup, dialect = self._recipe.setup, self._recipe.dialect
        until_s = time.monotonic() + self._recipe.boot_s
        while dialect.health_path is not None and not self._over.is_set() and time.monotonic() < until_s:
            if get(setup, dialect.health_path) is not None:
                answer = ask(setup, dialect, self._recipe.draft_tokens, time.monotonic() + min(60.0, self._recipe.boot_s))
                self.early = "" if isinstance(answer, ReadyServer) else answer.text
                if isinstance(answer, ReadyServer):
                    answer.client.close()
                return
            time.sleep(_PAUSE_S)


def _check_boot(visit: Visit) -> Finding:
    """Check for a completion from a started server."""
    if visit.arm.recipe.command is None:
        return not_claimed("attached: it is not started")
    return kept(f"a completion after {visit.arm.readiness_s:.1f} s, model {visit.arm.model}")


def _check_health(visit: Visit) -> Finding:
    """Check the health path of the server.

    It answers 200, and its first 200 was followed by a completion.
    """
    path = visit.dialect.health_path
    if path is None:
        return not_claimed("no such path")
    status = look(visit.arm.recipe.setup, path).status
    if status != _OK:
        return broken(f"{path}: {status} from a server that answers")
    if visit.early is None:
        return kept(f"{path}: 200; its first 200 was not seen")
    return (
        broken(f"{path}: 200 before it was ready: {visit.early}") if visit.early else kept(f"{path}: first 200 with the first completion")
    )


def _check_version(visit: Visit) -> Finding:
    """Check for a version on the server's version path."""
    path = visit.dialect.version_path
    if path is None:
        return not_claimed("no such path")
    text = get(visit.arm.recipe.setup, path)
    if text is None:
        return broken(f"no 200 from {path}")
    version = visit.dialect.version(text)
    return kept(version) if version else broken(f"no version in {text[:100]!r}")


def _check_program(visit: Visit) -> Finding:
    """Check the versions of the program and of its server.

    They are the same, as far as both report one.
    """
    program, served = visit.program_version, visit.arm.version
    if program is None:
        return not_claimed("the program is not asked")
    if not served:
        return kept(f"{program}; the server names none")
    words, served_words = set(_WORDS.findall(program.lower())), set(_WORDS.findall(served.lower()))
    agrees = words <= served_words or served_words <= words or any(len(word) >= _COMMIT for word in words & served_words)
    evidence = f"program {program}, server {served}"
    return kept(evidence) if agrees else broken(evidence)


def _check_drafting(visit: Visit) -> Finding:
    """Check the arguments of the server for speculation.

    Those of the baseline do not speculate, and those of a variant do.
    """
    args = visit.arm.recipe.setup.args
    draft = visit.engine.draft(args)
    if visit.variant == "":
        return kept("None") if draft is None else broken(f"{draft.kind} drafts of {draft.tokens} tokens in the baseline")
    if draft is None:
        return not_claimed("attached, so its arguments are unknown") if visit.arm.recipe.command is None else broken("None for a variant")
    evidence = f"{draft.kind}, {draft.tokens} tokens, {draft.sampling}"
    widest = max((max(timed.answer.choice.windows or (0,)) for timed in visit.drafted[1]), default=0)
    return kept(evidence) if widest <= draft.tokens + 1 or not draft.tokens else broken(f"{evidence}, and a window of {widest}")


def _check_recognition(visit: Visit) -> Finding:
    """Check for wrong recognition by another engine.

    No engine with another dialect recognises the server. Where its own engine does not either, nothing can be said.
    """
    engine, setup = visit.engine, visit.arm.recipe.setup
    attached = replace(setup, attached=setup.url)  # as it would be recognised
    if isinstance(engine, AnyEngine):
        return not_claimed("it stands for any engine")
    others = [other for other in registry.installed_engines() if isinstance(other, Recognising) and other.recognises(partial(get, setup))]
    strangers = [other for other in others if not _speaks_dialect(visit.dialect, other.dialect(visit.config, attached))]
    if strangers:
        return broken(f"taken for {', '.join(other.kind for other in strangers)}")
    if not isinstance(engine, Recognising):
        return not_claimed("the engine does not know its servers by their endpoints")
    return kept("by its endpoints") if engine.recognises(partial(get, setup)) else unchecked("its endpoints do not show here what it is")


def _speaks_dialect(dialect: Dialect, other: Dialect) -> bool:
    """Return True if requests in their dialect are understood.

    It is the same dialect, or one made of it.
    """
    return isinstance(dialect, type(other)) and type(other) is not PlainDialect


def _check_build(visit: Visit) -> Finding:
    """Check the log for signs of a wrong build."""
    if not visit.claims("wrong_build"):
        return not_claimed("the log is not looked at")
    if visit.arm.recipe.setup.attached is not None:
        return unchecked("the log of an attached server is not ours")
    complaint = visit.dialect.wrong_build(visit.log())
    return broken(complaint) if complaint else kept("the log is that of the build that was asked for")


def _check_end(visit: Visit) -> Finding:
    """Check the server's end within ``stop_s`` of being asked to.

    It must end without being killed. Nothing can be asked after this.
    """
    recipe = visit.arm.recipe
    if recipe.command is None:
        return not_claimed("attached: it is not stopped")
    if not visit.arm.running:
        return unchecked(f"it ended before: {visit.arm.wait_for_end()}")
    began_s = time.monotonic()
    visit.arm.stop(recipe.stop_s)
    took_s = time.monotonic() - began_s
    if get(recipe.setup, "/v1/models", seconds=1.0) is not None:
        return broken("something still answers on its port")
    evidence = f"ended after {took_s:.1f} s of {recipe.stop_s:g}"
    return kept(evidence) if took_s < recipe.stop_s else broken(f"{evidence}: it had to be killed")


CLAUSES = (
    Clause(name="boot", members=("check", "command"), check=_check_boot),
    Clause(name="readiness", members=("health_path",), check=_check_health),
    Clause(name="version", members=("version_path", "version"), check=_check_version),
    Clause(name="program", members=("program",), check=_check_program, variant=False),
    Clause(name="drafting", members=("draft",), check=_check_drafting),
    Clause(name="recognised", members=("recognises",), check=_check_recognition),
    Clause(name="build", members=("wrong_build",), check=_check_build),
)
ENDING = Clause(name="end", members=("command",), check=_check_end)
