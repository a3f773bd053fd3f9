"""Images in a prompt: a PNG becomes patches, and a patch takes the place of a token.

The engine has no vision tower. Each patch is embedded by one seeded random projection of its pixels, so that answers depend on what an
image shows; in vLLM, too, a prompt holds a placeholder token for every embedding of an image.
"""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

PLACEHOLDER: Final = "<|endoftext|>"
"""The text of the token that stands for a patch in a prompt's token ids."""
PATCH: Final = 12
"""Pixels on a side of a patch; smaller patches at the edges are filled up with zeros."""
_MOST_SIDE: Final = 512
"""Pixels on a side of an image that is taken."""
_PREFIX: Final = "data:image/png;base64,"
_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_CHANNELS: Final = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""By colour type, the samples of a pixel."""
_PALETTE: Final = 3
_SEED: Final = 20_261_128


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """A square of an image, at its place in a prompt."""

    position: int
    """Of its placeholder in the prompt, from 0."""
    pixels: bytes
    """Red, green and blue of each pixel, row by row."""

    @property
    def key(self) -> int:
        """A number by its pixels, below every token id."""
        return -1 - zlib.crc32(self.pixels)


@lru_cache(maxsize=64)
def read_patches(url: str) -> tuple[bytes, ...]:
    """Return the pixels of an image's patches, row by row.

    ``url`` is a data URL of a PNG with 8 bits a sample, not interlaced. Raises ValueError for anything else.
    """
    if not url.startswith(_PREFIX):
        msg = f"an image must be a URL that begins with {_PREFIX}"
        raise ValueError(msg)
    try:
        pixels = decode_png(base64.b64decode(url.removeprefix(_PREFIX), validate=True))
    except (binascii.Error, zlib.error, struct.error, IndexError) as error:
        msg = f"an image cannot be read: {error}"
        raise ValueError(msg) from error
    height, width = (-(-side // PATCH) * PATCH for side in pixels.shape[:2])  # up to whole patches, with zeros
    filled = np.zeros((height, width, 3), np.uint8)
    filled[: pixels.shape[0], : pixels.shape[1]] = pixels
    return tuple(
        filled[row : row + PATCH, column : column + PATCH].tobytes() for row in range(0, height, PATCH) for column in range(0, width, PATCH)
    )


def decode_png(data: bytes) -> NDArray[np.uint8]:
    """Return the pixels of a PNG, (height, width, 3).

    Transparency is ignored. Raises ValueError for another format, zlib.error, struct.error or IndexError for a damaged one.
    """
    if not data.startswith(_SIGNATURE):
        msg = "an image must be a PNG"
        raise ValueError(msg)
    chunks = list(_read_chunks(data))
    width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", _join_chunks(chunks, b"IHDR"))
    if depth != 8 or interlaced or colour not in _CHANNELS or not 0 < max(width, height) <= _MOST_SIDE:  # noqa: PLR2004 - bits a sample
        msg = f"an image must have 8 bits a sample, no interlacing and at most {_MOST_SIDE} pixels on a side"
        raise ValueError(msg)
    lines = zlib.decompress(_join_chunks(chunks, b"IDAT"))
    samples = _unfilter(lines, height, width * _CHANNELS[colour], _CHANNELS[colour]).reshape(height, width, -1)
    if colour == _PALETTE:
        palette = np.frombuffer(_join_chunks(chunks, b"PLTE"), np.uint8).reshape(-1, 3)
        return palette[samples[..., 0]]
    return samples[..., :3] if samples.shape[-1] > 2 else np.repeat(samples[..., :1], 3, axis=-1)  # noqa: PLR2004 - grey, with alpha or not


def _read_chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the name and the body of each chunk."""
    at = len(_SIGNATURE)
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        yield data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        at += 12 + length  # length, name and checksum are 4 bytes each


def _join_chunks(chunks: Sequence[tuple[bytes, bytes]], wanted: bytes) -> bytes:
    """Return the bodies of all chunks of one name; empty without any."""
    return b"".join(body for name, body in chunks if name == wanted)


def _unfilter(lines: bytes, height: int, width: int, distance: int) -> NDArray[np.uint8]:
    """Undo the filters of a PNG's lines and return the samples, (height, width).

    A line is its filter's number, then each sample as the difference from a prediction by its neighbours (PNG specification,
    section 9). ``distance`` is that to the sample of the pixel before, in bytes.
    """
    # A line and a pixel of zeros stand for what is above and left of the image.
    samples = np.zeros((height + 1, width + distance), np.int64)
    for row in range(height):
        start = row * (width + 1)
        kind, line = lines[start], lines[start + 1 : start + 1 + width]
        for column in range(width):
            left, above = int(samples[row + 1, column]), int(samples[row, column + distance])
            # By the filter's number: none, left, above, their mean, Paeth's.
            predicted = (0, left, above, (left + above) // 2, _predict_paeth(left, above, int(samples[row, column])))[kind]
            samples[row + 1, column + distance] = (line[column] + predicted) % 256
    return samples[1:, distance:].astype(np.uint8)


def _predict_paeth(left: int, above: int, corner: int) -> int:
    """Return the sample nearest to left + above - corner: PNG's filter 4."""
    estimate = left + above - corner
    return min((left, above, corner), key=lambda neighbour: abs(estimate - neighbour))


@cache
def _projection(hidden: int) -> NDArray[np.float32]:
    """Return the matrix from a patch's pixels to hidden states, the same in every process."""
    random = np.random.Generator(np.random.SFC64(_SEED))
    return random.standard_normal((3 * PATCH * PATCH, hidden)).astype(np.float32)


def embed(patches: Sequence[Patch], embedding: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the embeddings of patches, (patches, hidden).

    Each has the length that tokens' embeddings have, the root mean square over ``embedding``, (vocabulary, hidden).
    """
    pixels = np.array([np.frombuffer(patch.pixels, np.uint8) for patch in patches], np.float32)
    projected = (pixels / np.float32(255.0) - np.float32(0.501)) @ _projection(embedding.shape[1])
    length = np.sqrt(np.vecdot(embedding, embedding).mean())
    scaled: NDArray[np.float32] = projected * (length / np.linalg.norm(projected, axis=1, keepdims=True))
    return scaled
