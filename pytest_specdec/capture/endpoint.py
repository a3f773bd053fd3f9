"""An endpoint beside the OpenAI ones: a GET that answers, or does not."""

from __future__ import annotations

from pytest_specdec.capture.engines.command import HOST
from pytest_specdec.capture.transport import HTTPX, Bounds, Transport

__all__ = ["SECONDS", "get"]

_OK = 200
SECONDS = 10.0
"""Seconds for an answer, by default."""


def get(port: int, path: str | None, *, api_key: str | None = None, seconds: float = SECONDS) -> str | None:
    """Return the body of a 200 for ``path`` on the loopback interface; None for anything else, in ``seconds`` at the latest."""
    if path is None:
        return None
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    client = HTTPX.Client(transport=Transport(), trust_env=False, follow_redirects=False, timeout=seconds, headers=headers)
    try:
        with client, Bounds(seconds=seconds):
            response = client.get(f"http://{HOST}:{port}{path}")
    except (HTTPX.HTTPError, OSError, ValueError):
        return None
    return response.content.decode(errors="replace") if response.status_code == _OK else None
