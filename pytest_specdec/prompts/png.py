"""PNG files of a palette, the same bytes on every machine: their data is stored, since compressors differ between releases."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["data_url", "encode"]

_MOST_STORED = 65535
"""Bytes of one stored block (RFC 1951, 3.2.4)."""


def encode(lines: Sequence[bytes], palette: Sequence[tuple[int, int, int]]) -> bytes:
    """Return a PNG of ``lines``, a byte for each pixel.

    The byte is an index of ``palette``, which has red, green and blue, 0..255. Raises ValueError for a picture of more
    than 65,535 bytes.
    """
    # A line begins with its filter: 0 for none.
    data = b"".join(b"\0" + line for line in lines)
    if len(data) > _MOST_STORED:
        msg = f"a picture of {len(data):,} bytes, expected at most {_MOST_STORED:,}"
        raise ValueError(msg)
    # A zlib stream (RFC 1950) of one final block that is stored.
    stored = b"\x78\x01\x01" + struct.pack("<HH", len(data), 0xFFFF ^ len(data)) + data + struct.pack(">I", zlib.adler32(data))
    # 8 bits a pixel, colour type 3 (palette), the only methods of compression and filtering, not interlaced.
    header = struct.pack(">IIBBBBB", len(lines[0]), len(lines), 8, 3, 0, 0, 0)
    colours = bytes(value for colour in palette for value in colour)
    chunks = ((b"IHDR", header), (b"PLTE", colours), (b"IDAT", stored), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, body) for name, body in chunks)


def data_url(png: bytes) -> str:
    """Return the data URL of a PNG."""
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
