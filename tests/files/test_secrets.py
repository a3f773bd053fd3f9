"""Secrets: values that reach no artifact."""

from __future__ import annotations

import random
import string

import pytest

from pytest_specdec.files.secrets import Secrets

TOKEN = "".join(random.Random(7).choices(string.ascii_letters + string.digits + "-_.", k=1_282))


def test_values_of_variables_named_like_secrets_are_struck_out():
    secrets = Secrets.of({"HF_TOKEN": "hf_abcdef", "API_KEY": "short", "HOME": "/root"}, also=("key", None, "hf_abcdef-longer"))
    assert secrets.mask("hf_abcdef-longer hf_abcdef short /root key") == "*** *** short /root ***"
    assert "hf_" not in repr(secrets)


@pytest.mark.parametrize("start, stop", [(0, 1_282), (0, 435), (900, 1_282), (17, 25), (18, 26), (19, 27), (20, 28), (600, 700)])
@pytest.mark.parametrize("before", ["", "a", "ab", "abc"])
def test_every_piece_of_eight_characters_is_masked(before, start, stop):
    """Whatever cuts a text before it is masked leaves a piece."""
    masked = Secrets(values=(TOKEN,)).mask(f"{before} key={TOKEN[start:stop]}, refused")
    assert masked == f"{before} key=***, refused"


def test_two_pieces_are_masked_one_by_one():
    assert Secrets(values=(TOKEN,)).mask(f"{TOKEN[:20]} and {TOKEN[40:60]}") == "*** and ***"


def test_texts_beside_a_secret_are_left_alone():
    secrets = Secrets(values=(TOKEN, "=" * 40, "sesame-open-now"))
    text = "=" * 20 + f" {TOKEN[5:12]} sesame opens the engine, 12345678 tokens "
    assert secrets.mask(text) == text


def test_an_excerpt_is_masked_before_it_is_cut():
    assert Secrets(values=("sesame-open-now",)).excerpt("12345 sesame-open-now", 12) == "12345 ***"
