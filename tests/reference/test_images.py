"""Images of the reference engine: read as they were written, worth a token a patch, seen in the answer, and told apart by the cache."""

from __future__ import annotations

import base64
import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest

from pytest_specdec.prompts import images as prompts
from pytest_specdec.prompts import png
from specdec_reference import images
from tests.reference.asgi_client import PROBABILISTIC, served

PATCHES = (48 // images.PATCH) ** 2
TEXT = {"type": "text", "text": prompts._ASK}


def picture(name):
    return {"type": "image_url", "image_url": {"url": prompts.PICTURES[name]}}


def chunk(name, body):
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def filtered_png(pixels, kinds, colour):
    """A PNG of ``pixels``, (height, width, channels), whose lines are filtered by ``kinds`` in turn."""
    height, width, channels = pixels.shape
    lines, above = b"", np.zeros((width + 1, channels), int)
    for row in range(height):
        line, kind = np.vstack([np.zeros((1, channels), int), pixels[row].astype(int)]), kinds[row % len(kinds)]
        coded = []
        for column in range(1, width + 1):
            left, up, corner = line[column - 1], above[column], above[column - 1]
            paeth = [min((a, b, c), key=lambda n, p=a + b - c: abs(p - n)) for a, b, c in zip(left, up, corner, strict=True)]
            coded.append((line[column] - (0 * left, left, up, (left + up) // 2, np.array(paeth))[kind]) % 256)
        lines += bytes([kind]) + np.array(coded, np.uint8).tobytes()
        above = line
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("colour, channels", [(0, 1), (2, 3), (4, 2), (6, 4)])
def test_every_filter_and_colour_type_of_eight_bits_is_read(colour, channels):
    pixels = np.random.default_rng(colour).integers(0, 256, (10, 7, channels), np.uint8)
    shown = pixels[..., :3] if channels > 2 else np.repeat(pixels[..., :1], 3, axis=-1)
    assert (images.decode_png(filtered_png(pixels, range(5), colour)) == shown).all()


def test_a_picture_of_the_suite_is_read_as_it_was_drawn():
    pixels = images.decode_png(base64.b64decode(prompts.PICTURES["disc"].partition(",")[2]))
    assert (pixels.shape, [*pixels[24, 24]], [*pixels[0, 0]]) == ((48, 48, 3), [214, 40, 40], [255, 255, 255])


@pytest.mark.parametrize(
    "url, why",
    [
        ("https://example.org/a.png", "begins with data:image/png"),
        ("data:image/png;base64,!!", "cannot be read"),
        (png.data_url(b"GIF89a"), "must be a PNG"),
        (png.data_url(png.encode([bytes(9)] * 9, [(0, 0, 0)])[:60]), "cannot be read"),
        (png.data_url(png.encode([bytes(600)], [(0, 0, 0)])), "at most 512 pixels"),
    ],
)
def test_what_cannot_be_read_says_why(url, why):
    with pytest.raises(ValueError, match=why):
        images.read_patches(url)


@pytest.fixture(scope="module")
def client():
    with served(PROBABILISTIC, images=True, spec_decode_metrics="detailed", tells_cached=True) as client:
        yield client


@pytest.fixture(scope="module")
def baseline():
    with served(None, images=True, tells_cached=True) as client:
        yield client


def ask(client, *parts):
    return client.chat([*parts], temperature=0, max_tokens=10, return_token_ids=True)


def ids(answer):
    return answer["choices"][0]["token_ids"]


def test_an_image_takes_a_position_a_patch_and_changes_the_answer_as_its_place_does(baseline):
    shown, plain = [ask(baseline, picture(name), TEXT) for name in ("disc", "square")], ask(baseline, TEXT)
    assert {answer["usage"]["prompt_tokens"] for answer in shown} == {plain["usage"]["prompt_tokens"] + PATCHES}
    behind = ask(baseline, TEXT, picture("disc"))
    assert len({tuple(ids(answer)) for answer in (*shown, plain, behind)}) == 4


def test_speculation_changes_no_answer_and_drafts_are_accepted(client, baseline):
    for parts in ((picture("three"), TEXT), (picture("four"), picture("seven"), TEXT)):
        fast, slow = (ask(each, *parts) for each in (client, baseline))
        assert ids(fast) == ids(slow)
        assert fast["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"] > 0


def test_the_prefix_cache_tells_images_apart_and_finds_the_same_one_again(client):
    first = ask(client, picture("disc"), TEXT)
    other = ask(client, picture("square"), TEXT)
    again = ask(client, picture("disc"), TEXT)
    cached = [(answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0) for answer in (other, again)]
    assert cached[0] < PATCHES < cached[1]
    assert ids(again) == ids(first) != ids(other)


def test_a_server_without_images_refuses_them_and_no_text_may_hold_the_placeholder(client):
    with served(PROBABILISTIC) as text_alone:
        status, error = text_alone.refused({"messages": [{"role": "user", "content": [picture("disc")]}]}, "/v1/chat/completions")
    assert (status, error["message"]) == (400, "only text parts are supported in a message")
    for parts, why in (
        ([picture("disc"), {"type": "text", "text": images.PLACEHOLDER}], "no text may hold"),
        ([{"type": "image_url"}], "must have a URL"),
        ([{"type": "audio"}], "only text parts and images"),
    ):
        status, error = client.refused({"messages": [{"role": "user", "content": parts}]}, "/v1/chat/completions")
        assert (status, why in error["message"]) == (400, True)


def test_patches_differ_by_their_pixels_alone():
    one, same, other = (images.Patch(position=place, pixels=bytes([shade]) * 432) for place, shade in ((3, 9), (4, 9), (3, 10)))
    assert one.key == same.key != other.key
    assert max(one.key, other.key) < 0
    assert replace(one, position=4) == same
