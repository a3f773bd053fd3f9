"""An endpoint beside the OpenAI ones: a GET that answers, or does not."""

from __future__ import annotations

import http.client

from pytest_specdec.capture.launch.port import HOST

__all__ = ["get"]

_OK = 200
_SECONDS = 10.0


def get(port: int, path: str | None, *, api_key: str | None = None) -> str | None:
    """Return the body of a 200 for ``path`` on the loopback interface; None for anything else, or without a path."""
    if path is None:
        return None
    connection = http.client.HTTPConnection(HOST, port, timeout=_SECONDS)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {api_key}"} if api_key else {})
        response = connection.getresponse()
        body = response.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return None
    else:
        return body if response.status == _OK else None
    finally:
        connection.close()
