"""Inexact numerics: noise of the stated size, by kernel, batch and boot, and nothing where none is asked for."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_specdec.config import shipped
from pytest_specdec.config.load import load
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.errors import EngineError
from specdec_reference.numerics import Kernel, Numerics, text_positions
from tests.reference.asgi_client import GREEDY, served

TEXTS = np.random.default_rng(1).integers(4096, size=(40, 50)).tolist()
PLACES = [place for text in TEXTS for place in text_positions(text[:20], text[20:])]
LOGITS = np.linspace(-3.0, 21.0, 512, dtype=np.float32)[None].repeat(len(PLACES), axis=0)


def off(spec, kernel=Kernel.DECODE, *, number=0, batch=1):
    return (Numerics.parse(spec, number).vary(LOGITS, kernel, PLACES, batch) - LOGITS).astype(np.float64)


def test_nothing_changes_where_nothing_is_asked_for():
    assert Numerics.parse("", 0).vary(LOGITS, Kernel.VERIFY, PLACES, 3) is LOGITS
    assert Numerics.parse("verify:3", 0).exact


@pytest.mark.parametrize(
    "spec, kernel, size",
    [
        ("normal:0.03", Kernel.DECODE, 0.03),
        ("normal:0.03", Kernel.VERIFY, 0.03),
        ("normal:0.03,verify:3", Kernel.VERIFY, 0.09),
        ("normal:0.03,verify:3", Kernel.PREFILL, 0.03),
        ("boot:0.1", Kernel.DECODE, 0.1),
        ("heavy:0.03", Kernel.DECODE, 0.03),
    ],
)
def test_noise_has_the_stated_size(spec, kernel, size):
    assert off(spec, kernel).std() == pytest.approx(size, rel=0.25 if "heavy" in spec else 0.03)


def test_heavy_noise_has_a_scale_for_every_position():
    scales = off("heavy:0.03").std(axis=1)
    assert np.median(scales) == pytest.approx(0.03 * 0.65, rel=0.1)  # of 1 / sqrt(chi square with 3 degrees)
    assert scales.max() > 5 * np.median(scales)


def test_jumps_come_at_the_stated_share_and_reach_every_logit():
    scales = off("jumps:0.02").std(axis=1)
    assert np.mean(scales > 0.0) == pytest.approx(0.02, abs=0.01)
    assert scales[scales > 0.0] == pytest.approx(1.0, rel=0.2)


@pytest.mark.parametrize("grid, step", [("bf16", 2.0**-3), ("fp16", 2.0**-6)])
def test_a_grid_has_the_steps_of_its_format_where_the_best_logits_lie(grid, step):
    rounded = Numerics.parse(f"grid:{grid}", 0).vary(LOGITS, Kernel.DECODE, PLACES, 1)
    best = rounded[LOGITS > 16.0]
    assert (best / step == np.round(best / step)).all()
    assert np.abs(best - LOGITS[LOGITS > 16.0]).max() == pytest.approx(step / 2, rel=0.1)


def test_the_same_step_computes_the_same_and_another_one_does_not():
    spec = "normal:0.03"
    assert (off(spec) == off(spec, number=7)).all()  # a boot's kernels are the other boot's
    assert not (off(spec) == off(spec, batch=2)).all()
    assert not (off(spec) == off(spec, Kernel.PREFILL)).all()


def test_a_boot_keeps_what_is_its_own_in_every_kernel_and_batch():
    spec = "boot:0.1"
    assert (off(spec) == off(spec, Kernel.PREFILL, batch=4)).all()
    assert np.abs(off(spec) - off(spec, number=7)).std() > 0.05


@pytest.mark.parametrize("spec", ["normal", "normal:x", "normal:-1", "nromal:0.1", "grid:int4"])
def test_a_wrong_word_or_size_is_refused(spec):
    with pytest.raises(EngineError, match="--numerics"):
        Numerics.parse(spec, 0)


ASKED = {"prompt": "import os\nimport sys\n", "temperature": 0, "max_tokens": 24, "logprobs": 1, "return_token_ids": True}


def reported(answer):
    return answer["choices"][0]["logprobs"]["token_logprobs"]


def test_a_server_alone_repeats_itself_and_one_that_verifies_is_as_far_off_as_said():
    with served(numerics="normal:0.03") as client, served() as exact:
        first, again, exactly = client.complete(ASKED), client.complete(ASKED), exact.complete(ASKED)
    assert reported(first) == reported(again)
    assert reported(first)[0] != reported(exactly)[0]
    with served(GREEDY, numerics="normal:0.0001,verify:300") as speculating:
        verified = speculating.complete(ASKED)
    far = [abs(a - b) for a, b in zip(reported(verified), reported(exactly), strict=False)]
    assert far[0] < 1e-3  # the prefill's own
    assert max(far[1:]) > 1e-3


def test_an_engine_with_numerics_declares_no_single_precision(tmp_path):
    path = tmp_path / "noisy.yaml"
    for numerics, single in (("", True), ("normal:0.03", False)):
        path.write_text((shipped.CONFIGS / "reference.yaml").read_text().replace("max-num-seqs: 32", f"numerics: '{numerics}'"))
        assert engine_of("reference").single_precision(load(path)) is single
