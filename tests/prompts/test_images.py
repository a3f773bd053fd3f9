"""Pictures of our own: the same bytes on every machine, small, different, and sent in the order that shows what they leave behind."""

from __future__ import annotations

import base64
import hashlib
import zlib

import pytest

from pytest_specdec.model.images import image_urls, shorten_data_urls
from pytest_specdec.model.workload import Depth, Need
from pytest_specdec.prompts import images, png


def test_pictures_are_small_different_and_the_same_everywhere():
    assert len(set(images.PICTURES.values())) == len(images.PICTURES)
    assert max(map(len, images.PICTURES.values())) < 3500
    digest = hashlib.sha256("".join(images.PICTURES.values()).encode()).hexdigest()
    assert digest.startswith(DIGEST), "another digest is another version of the workload"


DIGEST = "31451fb3b52c68ed"


def test_a_png_is_what_zlib_reads():
    data = png.encode([b"\0\1", b"\1\0"], [(0, 0, 0), (255, 255, 255)])
    stored = data.partition(b"IDAT")[2].partition(b"IEND")[0][:-8]
    assert zlib.decompress(stored) == b"\0\0\1\0\1\0"
    with pytest.raises(ValueError, match="at most 65,535"):
        png.encode([bytes(300)] * 300, [(0, 0, 0)])
    assert base64.b64decode(png.data_url(data).partition(",")[2]) == data


def test_alone_first_then_together_and_texts_between_pictures():
    workload = images.conversations()
    assert (workload.needs, workload.scored) == (Need.IMAGES, False)
    turns = [[bool(image_urls(request)) for request in turn] for turn in workload.at(Depth.SMOKE).turns]
    assert [len(turn) for turn in turns] == [1] * 7 + [6]
    assert turns[-1] == [False, True, False, True, True, False]
    by_id = workload.by_id
    assert by_id["again/disc"].asks == by_id["image/disc"].asks == by_id["mixed/disc"].asks != by_id["other/square"].asks
    assert by_id["beside/copy"].asks == by_id["text/copy"].asks
    assert len(image_urls(by_id["two/disc-seven"])) == 2
    assert [len(turn) for turn in workload.turns][8:] == [8, 1, 1, 1, 1]


def test_shown_requests_have_no_data_of_images():
    text = f'{{"url": "{images.PICTURES["disc"]}"}}, data:text/plain;base64,QQ=='
    shown = shorten_data_urls(text)
    assert shown.startswith('{"url": "data:image/png;base64,<3,')
    assert shown.endswith("QQ==")
    assert len(shown) < 100
