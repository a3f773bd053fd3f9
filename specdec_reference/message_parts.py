"""Parts of a message: texts and images, which become placeholders in the prompt and patches at their places.

A patch is a square of an image's pixels. Each takes the place of one token: a placeholder, whose embedding the patch's replaces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec_reference.images import PLACEHOLDER, Patch, read_patches
from specdec_reference.request_fields import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.model.workload import JSON
    from specdec_reference.tokenizer import Tokenizer

__all__ = ["patches", "text"]


def text(part: JSON, *, images: bool) -> str:
    """Return the text of one part of a message.

    An image, where ``images`` are served, is a placeholder for each patch. Raises Refusal for any other part, and for an
    image that cannot be read.
    """
    if images and _is_image(part):
        return PLACEHOLDER * len(_pixels(part))
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(written := part.get("text"), str):
        return written
    raise Refusal(message=f"only text parts{' and images' * images} are supported in a message", param="messages")


def patches(messages: JSON, prompt: tuple[int, ...], tokenizer: Tokenizer) -> tuple[Patch, ...]:
    """Return the patches of all images at their places in ``prompt``, the chat's token ids.

    Raises Refusal where a text holds the placeholder itself.
    """
    pixels = [patch for part in _image_parts(messages) for patch in _pixels(part)]
    if not pixels:
        return ()
    (placeholder,) = tokenizer.encode(PLACEHOLDER)
    positions = [position for position, token in enumerate(prompt) if token == placeholder]
    if len(positions) != len(pixels):
        raise Refusal(message=f"beside an image no text may hold {PLACEHOLDER}", param="messages")
    return tuple(Patch(position=position, pixels=patch) for position, patch in zip(positions, pixels, strict=True))


def _is_image(part: JSON) -> bool:
    return isinstance(part, dict) and part.get("type") == "image_url"


def _image_parts(messages: JSON) -> Iterator[JSON]:
    """Yield the image parts of all messages, in order."""
    for message in messages if isinstance(messages, list) else []:
        content = message.get("content") if isinstance(message, dict) else None
        yield from filter(_is_image, content if isinstance(content, list) else [])


def _pixels(part: JSON) -> tuple[bytes, ...]:
    """Return the pixels of an image part's patches; raises Refusal."""
    image = part.get("image_url") if isinstance(part, dict) else None
    url = image.get("url") if isinstance(image, dict) else None
    if not isinstance(url, str):
        raise Refusal(message="an image part must have a URL: image_url.url", param="messages")
    try:
        return read_patches(url)
    except ValueError as error:
        raise Refusal(message=str(error), param="messages") from error
