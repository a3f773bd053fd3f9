"""Images in requests: the addresses in the content parts of messages, and requests as they are shown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_specdec.model.workload import JSON, Request

__all__ = ["image_urls", "shorten_data_urls"]

_DATA = re.compile(r"(data:[\w.+-]+/[\w.+-]+;base64,)([A-Za-z0-9+/=]{32,})")


def image_urls(request: Request) -> tuple[str, ...]:
    """Return the addresses of all images in a request's messages, in order.

    Most are data URLs. Empty for a request of text alone.
    """
    messages = request.body.get("messages")
    parts = (part for message in _mappings(messages) for part in _mappings(message.get("content")))
    images = (part.get("image_url") for part in parts if part.get("type") == "image_url")
    return tuple(str(image.get("url")) for image in images if isinstance(image, Mapping))


def shorten_data_urls(text: str) -> str:
    """Return ``text`` with the data in its data URLs replaced by a count.

    ``data:image/png;base64,iVBO…`` becomes ``data:image/png;base64,<3,172 characters>``. No server can be sent the result.
    """
    return _DATA.sub(lambda match: f"{match[1]}<{len(match[2]):,} characters>", text)


def _mappings(value: JSON) -> list[Mapping[str, JSON]]:
    """Return the objects in a list; empty for anything else."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, Sequence) and not isinstance(value, str) else []
