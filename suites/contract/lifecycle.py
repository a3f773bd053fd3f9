"""The contract on a server's life: program, readiness, version, recognition, end."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from pytest_specdec.capture.server.readiness import ReadyServer, ask, get, look
from pytest_specdec.engines import registry
from pytest_specdec.engines.optional import AnyEngine, Recognising
from pytest_specdec.engines.plain_dialect import PlainDialect

from .claims import claims, not_claimed, unchecked

if TYPE_CHECKING:
    from typing import Self

    from pytest_specdec.capture.server.recipe import ServerRecipe
    from pytest_specdec.engines.protocol import Dialect

    from .claims import Note
    from .visit import Visit

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


class Program:
    """The claim on the program of a server, which may take long to be asked."""

    @claims("program")
    def test_program(self, visit: Visit, note: Note) -> None:
        """The program and its server report the same version, as far as both report one."""
        program, served = visit.program_version, visit.arm.version
        if program is None:
            not_claimed("the program is not asked")
        if not served:
            note(f"{program}; the server names none")
            return
        words, served_words = set(_WORDS.findall(program.lower())), set(_WORDS.findall(served.lower()))
        evidence = f"program {program}, server {served}"
        assert words <= served_words or served_words <= words or any(len(word) >= _COMMIT for word in words & served_words), evidence
        note(evidence)


class Lifecycle:
    """The claims on a server from its boot to its end."""

    @claims("check", "command")
    def test_boot(self, visit: Visit, note: Note) -> None:
        """A started server answers a completion."""
        if visit.arm.recipe.command is None:
            not_claimed("attached: it is not started")
        note(f"a completion after {visit.arm.readiness_s:.1f} s, model {visit.arm.model}")

    @claims("health_path")
    def test_readiness(self, visit: Visit, note: Note) -> None:
        """The health path answers 200, and its first 200 was followed by a completion."""
        path = visit.dialect.health_path
        if path is None:
            not_claimed("no such path")
        status = look(visit.arm.recipe.setup, path).status
        assert status == _OK, f"{path}: {status} from a server that answers"
        assert not visit.early, f"{path}: 200 before it was ready: {visit.early}"
        note(f"{path}: 200; its first 200 was not seen" if visit.early is None else f"{path}: first 200 with the first completion")

    @claims("version_path", "version")
    def test_version(self, visit: Visit, note: Note) -> None:
        """The version path holds a version."""
        path = visit.dialect.version_path
        if path is None:
            not_claimed("no such path")
        text = get(visit.arm.recipe.setup, path)
        assert text is not None, f"no 200 from {path}"
        version = visit.dialect.version(text)
        assert version, f"no version in {text[:100]!r}"
        note(version)

    @claims("draft")
    def test_drafting(self, visit: Visit, note: Note) -> None:
        """The arguments of a variant speculate, and those of the baseline do not."""
        draft = visit.engine.draft(visit.arm.recipe.setup.args)
        if visit.variant == "":
            assert draft is None, f"{draft.kind} drafts of {draft.tokens} tokens in the baseline"
            note("None")
            return
        if draft is None and visit.arm.recipe.command is None:
            not_claimed("attached, so its arguments are unknown")
        assert draft is not None, "None for a variant"
        evidence = f"{draft.kind}, {draft.tokens} tokens, {draft.sampling}"
        widest = max((max(timed.answer.choice.windows or (0,)) for timed in visit.drafted[1]), default=0)
        assert widest <= draft.tokens + 1 or not draft.tokens, f"{evidence}, and a window of {widest}"
        note(evidence)

    @claims("recognises")
    def test_recognised(self, visit: Visit, note: Note) -> None:
        """No engine with another dialect recognises the server, and its own engine does.

        Where its own engine does not either, nothing can be said.
        """
        engine, setup = visit.engine, visit.arm.recipe.setup
        attached = replace(setup, attached=setup.url)  # as it would be recognised
        if isinstance(engine, AnyEngine):
            not_claimed("it stands for any engine")
        others = [
            other for other in registry.installed_engines() if isinstance(other, Recognising) and other.recognises(partial(get, setup))
        ]
        strangers = [other.kind for other in others if not _speaks_dialect(visit.dialect, other.dialect(visit.config, attached))]
        assert not strangers, f"taken for {', '.join(strangers)}"
        if not isinstance(engine, Recognising):
            not_claimed("the engine does not know its servers by their endpoints")
        if not engine.recognises(partial(get, setup)):
            unchecked("its endpoints do not show here what it is")
        note("by its endpoints")

    @claims("wrong_build")
    def test_build(self, visit: Visit, note: Note) -> None:
        """The log shows no sign of a wrong build."""
        if not visit.claims("wrong_build"):
            not_claimed("the log is not looked at")
        if visit.arm.recipe.setup.attached is not None:
            unchecked("the log of an attached server is not ours")
        complaint = visit.dialect.wrong_build(visit.log())
        assert not complaint, complaint
        note("the log is that of the build that was asked for")

    @claims("command")
    @pytest.mark.usefixtures("survey")
    def test_end(self, visit: Visit, note: Note) -> None:
        """The server ends within ``stop_s`` of being asked to, and is not killed.

        Nothing can be asked after this.
        """
        recipe = visit.arm.recipe
        if recipe.command is None:
            not_claimed("attached: it is not stopped")
        if not visit.arm.running:
            unchecked(f"it ended before: {visit.arm.wait_for_end()}")
        began_s = time.monotonic()
        visit.arm.stop(recipe.stop_s)
        took_s = time.monotonic() - began_s
        assert get(recipe.setup, "/v1/models", seconds=1.0) is None, "something still answers on its port"
        evidence = f"ended after {took_s:.1f} s of {recipe.stop_s:g}"
        assert took_s < recipe.stop_s, f"{evidence}: it had to be killed"
        note(evidence)


def _speaks_dialect(dialect: Dialect, other: Dialect) -> bool:
    """Return True if requests in their dialect are understood.

    It is the same dialect, or one made of it.
    """
    return isinstance(dialect, type(other)) and type(other) is not PlainDialect
