"""Shrinking on live servers: the repro's own script says whether a smaller request still shows the fault."""

from __future__ import annotations

import contextlib
import io
import runpy
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openai import OpenAIError

from pytest_specdec.config.variables import set_in_environment
from pytest_specdec.errors import RunError
from pytest_specdec.model.transcript import Answer, Choice, Usage
from pytest_specdec.model.verdict import Symptom
from pytest_specdec.report import repro, repro_script, shrink

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_specdec.model.workload import Request

__all__ = ["LiveLimits", "shrink_on"]

_TRIES = 2
"""Times that requests are sent together: more would be spent on every request that can be left out."""
_WHOLE = 10**9
"""Characters of the texts that are compared: a smaller prompt has its first difference elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveLimits:
    """What shrinking may take; what is reached by then is the result."""

    requests: int
    seconds: float


def shrink_on(original: repro.Repro, baseline: str, speculative: str, limits: LiveLimits) -> repro.Repro:
    """Return a smaller repro of the same fault, found on live servers.

    It is ``original`` with smaller requests that still show the fault, as far as ``limits`` allow. ``baseline`` and ``speculative`` are the
    addresses of the two servers, whose answers to the smaller requests are in the repro. Raises RunError if the fault does not show on
    them, or if one of them does not answer.
    """
    with (
        tempfile.TemporaryDirectory(prefix="specdec-shrink-") as folder,
        set_in_environment({"BASELINE": baseline, "SPECULATIVE": speculative}),
    ):
        trials = _Trials(original, Path(folder), limits)
        trials.check()
        groups, request = shrink.shrink(original.groups, original.request, trials.shows)
        return trials.repro_of(groups, request)


class _Trials:
    """The repro's script, run on live servers with one smaller set of requests after another.

    Requests are sent in groups, one after another; those of a group are in flight together. The last has the request with the fault.
    """

    def __init__(self, original: repro.Repro, folder: Path, limits: LiveLimits) -> None:
        self._original, self._folder, self._limits = original, folder, limits
        self._requests, self._began_s = 0, time.monotonic()

    def check(self) -> None:
        """Raise RunError unless the fault shows before anything is left out.

        It is raised too if a server does not answer.
        """
        try:
            shows = self._is_wrong(self._original)
        except (OpenAIError, KeyError) as error:  # a KeyError is of a variable that is not set
            what, remedy = "a live server has no answer", "start both servers by the commands of the README"
            raise RunError(what, where="--baseline, --speculative", found=repr(error), expected="answers", remedy=remedy) from None
        if not shows:
            what, remedy = "the fault does not show on these servers", "start those of the run: the README has their commands"
            raise RunError(what, where="--speculative", found="right answers", expected="the fault", remedy=remedy)

    def shows(self, groups: shrink.Groups, request: Request) -> bool:
        """Return True if the script finds the answer to ``request`` wrong.

        ``groups`` are the requests to send, ``request`` among them the one with the fault. Returns False for requests
        that a server does not answer or the script cannot judge, and for all of them once the limits are reached.
        """
        if self._requests >= self._limits.requests or time.monotonic() - self._began_s >= self._limits.seconds:
            return False
        # A request that has lost its grammar cannot show an invalid document.
        if request.grammar is None and self._original.example.symptom is Symptom.DOCUMENT:
            return False
        try:
            return self._is_wrong(replace(self._original, groups=groups, request=request))
        except (OpenAIError, LookupError, TypeError, ValueError):
            return False

    def _is_wrong(self, smaller: repro.Repro) -> bool:
        """Return True if the script finds an answer wrong.

        Requests in flight together are sent up to twice, since their fault may depend on the order in which they arrive.
        Answers are compared as a whole (``_WHOLE``), since a smaller prompt has its first difference elsewhere. Raises
        OpenAIError if a server has no answer.
        """
        script = self._load(repro.script_of(smaller, characters=_WHOLE), smaller)
        for _ in range(_TRIES if len(smaller.groups[-1]) > 1 else 1):
            self._requests += 2 * sum(map(len, smaller.groups))  # each goes to both servers
            with contextlib.redirect_stdout(io.StringIO()):
                if script["compare"](script["ask"]("BASELINE"), script["ask"]("SPECULATIVE")):
                    return True
        return False

    def repro_of(self, groups: shrink.Groups, request: Request) -> repro.Repro:
        """Return the repro of smaller requests, with both servers' answers now.

        Requests in flight together are sent until the answers differ, ten times at most. If a server does not answer,
        the repro has the answers of the attempt before, if any.
        """
        smaller = replace(self._original, groups=groups, request=request)
        script = self._load(repro.script_of(smaller, characters=_WHOLE), smaller)
        baseline = speculative = None
        with contextlib.suppress(OpenAIError):  # The requests have shown the fault already; the README then has no answers.
            for _ in range(repro_script.TRIES if len(groups[-1]) > 1 else 1):
                baseline, speculative = (_answer(script, arm, request.id, groups[-1].index(request)) for arm in ("BASELINE", "SPECULATIVE"))
                if baseline != speculative:
                    break
        remaining = f"{sum(map(len, groups))} of {sum(map(len, self._original.groups))} requests are left"
        seconds = time.monotonic() - self._began_s
        return replace(
            smaller,
            baseline=replace(self._original.baseline, answer=baseline, score=None),
            speculative=replace(self._original.speculative, answer=speculative, score=None),
            shrunk=f"The requests were shrunk on live servers: {remaining}, after {self._requests:,} sent in {seconds:.0f} s.",
        )

    def _load(self, text: str, smaller: repro.Repro) -> dict[str, Any]:
        """Write a repro's script, run it, and return its names.

        ``text`` is the script, and ``smaller`` the repro whose requests it reads from a file beside it. Run like this, it only
        defines functions, so that nothing is sent.
        """
        (self._folder / "requests.json").write_text(repro.requests_of(smaller), encoding="utf-8")
        path = self._folder / "repro.py"
        path.write_text(text, encoding="utf-8")
        return runpy.run_path(str(path))


def _answer(script: dict[str, Any], arm: str, request_id: str, place: int) -> Answer:
    """Return a server's answer to the shrunk request with the fault.

    ``script`` has the functions of the repro's script by name. ``arm`` is the variable with the server's address, BASELINE
    or SPECULATIVE; ``place`` is the request's index in the last group, whose replies the script's ``ask`` returns.
    """
    ask: Callable[[str], list[dict[str, Any]]] = script["ask"]
    reply = ask(arm)[place]
    usage = reply.get("usage") or {}
    return Answer(
        request_id=request_id,
        status=200,
        choices=(Choice(text=script["text"](reply), finish_reason=reply["choices"][0].get("finish_reason")),),
        usage=Usage(prompt_tokens=usage.get("prompt_tokens", 0), completion_tokens=usage.get("completion_tokens", 0)),
    )
