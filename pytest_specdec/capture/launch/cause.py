"""The cause: the first exception that a server's log tells of, before everything that followed from it."""

from __future__ import annotations

import re

__all__ = ["cause"]

_LOGGED = r"^(?:\([^)]*\) )?(?:(?:ERROR|CRITICAL|FATAL)\b.*?\] )?"
"""What engines write before a line: the process in brackets, then level, time and place."""
_RAISED = re.compile(_LOGGED + r"(?P<what>(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Interrupt)(?:: .*)?)$")
_ABORTED = re.compile(_LOGGED + r"(?P<what>(?:Segmentation fault|terminate called after|GGML_ASSERT|CUDA error).*)$")
_FRAME = re.compile(r'File "(?:[^"]*/)?(?P<file>[^"/]+)", line (?P<line>\d+), in (?P<function>\S+)')


def cause(log: str) -> str:
    """Return the first exception of a traceback in ``log`` and the frame that raised it, or the words of an abort; empty without either."""
    frame = ""
    for line in log.splitlines():
        if found := _FRAME.search(line):
            frame = f"{found['file']}:{found['line']}, in {found['function']}"
        elif found := _ABORTED.match(line):
            return found["what"]
        elif frame and (found := _RAISED.match(line)):
            return f"{found['what']} ({frame})"
    return ""
