"""Images: requests with small pictures are answered as without speculation, and so are the texts beside them.

A pass means: no picture took the server down or was refused, every token at temperature 0 was the baseline's up to what its own reported
log-probabilities leave open, a picture changed no answer to a text or to another picture, and drafts were accepted after pictures too.
Sent where the model takes images: by its checkpoint, by the engine's arguments, or by `images: true` in the config.
"""

from __future__ import annotations

import pytest

from pytest_specdec import judge
from pytest_specdec.prompts import images


@pytest.mark.specdec(images.conversations(), family="images")
def test_pictures_and_the_texts_beside_them_are_answered_as_without_speculation(captured, check):
    check(judge.images.judge(captured))
