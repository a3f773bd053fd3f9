"""The wide model is the trained one in exact arithmetic, and near it with random layers between."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import widened
from specdec_reference import checkpoint, model

PROMPT = np.arange(40, 72)[None]


def probabilities(folder):
    """Of the next token at each position of one prompt [32, 4096]."""
    loaded = model.load(checkpoint.read(str(folder)), 64)
    logits = loaded.logits(loaded.forward(PROMPT, loaded.cache(1), np.zeros(1, np.intp))).astype(np.float64)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("layers, least, most", [(4, 0.0, 0.001), (6, 0.01, 0.25)])
def test_a_wide_model_gives_the_probabilities_of_the_trained_one(tmp_path, layers, least, most):
    assert widened.write(tmp_path, width=512, layers=layers) > 4_000_000
    wide = probabilities(tmp_path)
    assert wide.shape == (32, 4096)
    assert least < np.abs(wide - probabilities(widened.CHECKPOINT)).sum(axis=1).mean() / 2 < most
