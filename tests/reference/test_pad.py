"""A padded checkpoint costs more and says the same."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from specdec_reference import checkpoint, model, pad

LAYERS = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    written = tmp_path_factory.mktemp("checkpoints") / "padded"
    assert pad.main(["target", str(written), f"--layers={LAYERS}"]) == 0
    return written


def logits(name):
    decoder = model.load(checkpoint.read(name), 64)
    tokens = np.random.default_rng(7).integers(5, 4096, (2, 40))
    hidden = decoder.forward(tokens, decoder.cache(2), np.zeros(2, np.intp))
    return decoder.logits(hidden)


def test_a_padded_checkpoint_says_what_the_target_says_bit_for_bit(folder):
    assert checkpoint.read(str(folder)).shape.layers == LAYERS
    assert np.array_equal(logits(str(folder)), logits("target"))


def test_its_layers_cost_what_layers_cost(folder):
    tensors = load_file(folder / "model.safetensors")
    own = {name.removeprefix("model.layers.0."): t for name, t in tensors.items() if name.startswith("model.layers.0.")}
    for index in range(4, LAYERS):
        added = {name: tensors[f"model.layers.{index}.{name}"] for name in own}
        assert {name: (t.shape, t.dtype) for name, t in added.items()} == {name: (t.shape, t.dtype) for name, t in own.items()}
        silent = {name for name, tensor in added.items() if not tensor.any()}
        assert silent == {"self_attn.o_proj.weight", "mlp.down_proj.weight"}


def test_everything_beside_the_weights_is_the_targets(folder):
    source = checkpoint.locate("target")
    assert {path.name for path in folder.iterdir()} == {path.name for path in source.iterdir()}
    same = [path for path in source.iterdir() if path.name not in {"config.json", "model.safetensors"}]
    assert [(folder / path.name).read_bytes() for path in same] == [path.read_bytes() for path in same]
    original, config = (json.loads((each / "config.json").read_text()) for each in (source, folder))
    assert config == {**original, "num_hidden_layers": LAYERS, "layer_types": ["full_attention"] * LAYERS}


def test_what_is_there_is_left_as_it_is(folder, capsys):
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert pad.main(["target", str(folder), f"--layers={LAYERS}"]) == 0
    assert "as it was" in capsys.readouterr().out
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


def test_another_checkpoint_is_not_overwritten(folder, capsys):
    assert pad.main(["target", str(folder), f"--layers={LAYERS + 1}"]) == 2
    assert "the folder is in use" in capsys.readouterr().err


@pytest.mark.parametrize("args, words", [(["target", "--layers=3"], "takes none away"), (["targett"], "did you mean 'target'?")])
def test_what_can_not_be_padded_is_refused(tmp_path, args, words, capsys):
    assert pad.main([args[0], str(tmp_path / "new"), *args[1:]]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_weights_are_written_in_single_precision_where_that_is_asked_for(tmp_path):
    folder = tmp_path / "single"
    assert pad.main(["target", str(folder), "--layers=4", "--float32"]) == 0
    assert {str(tensor.dtype) for tensor in load_file(folder / "model.safetensors").values()} == {"float32"}
    assert json.loads((folder / "config.json").read_text())["dtype"] == "float32"
    assert np.array_equal(logits(str(folder)), logits("target"))
