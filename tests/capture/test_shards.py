"""The cells of a matrix in shards: each cell once, a baseline shared where it can be, and shards about as long as each other."""

from __future__ import annotations

import pytest

from pytest_specdec.capture import shards
from pytest_specdec.config import matrix
from pytest_specdec.config.matrix_expression import select
from pytest_specdec.errors import ConfigError

CONFIG = """
engine: {{kind: reference, model: target}}
variants:
  draft-k3: {{args: {{speculative-config: {{method: draft_model, model: draft, num_speculative_tokens: 3}}}}}}
matrix:
  axes:
    engine.args.max-num-seqs: [{seqs}]
    variants.args.speculative-config.num_speculative_tokens: [{tokens}]
"""


@pytest.fixture
def config_of(tmp_path):
    """A matrix of as many groups and cells in each."""

    def _config(groups, cells):
        path = tmp_path / "m.yaml"
        seqs, tokens = (", ".join(str(value + 1) for value in range(count)) for count in (groups, cells))
        path.write_text(CONFIG.format(seqs=seqs, tokens=tokens))
        return matrix.load_matrix(path)

    return _config


def arms(groups):
    """The servers that a shard boots: its cells, and a baseline and a control of each of its groups."""
    return sum(len(group.cells) + 2 for group in groups)


@pytest.mark.parametrize("groups, cells, count", [(2, 4, 3), (7, 1, 3), (1, 9, 4), (3, 5, 2), (5, 2, 10), (4, 3, 1)])
def test_every_cell_is_in_one_shard_and_no_shard_is_long(config_of, groups, cells, count):
    config = config_of(groups, cells)
    parts = [shards.part(config, config.matrix, number, count) for number in range(1, count + 1)]
    assert sorted(cell.name for part in parts for group in part for cell in group.cells) == sorted(
        cell.name for cell in config.matrix.cells
    )
    for part in parts:
        assert len({group.name for group in part}) == len(part), "two directories of one name"
    fair = sum(map(arms, parts)) / count
    assert max(map(arms, parts)) <= fair * 4 / 3 + 1


def test_a_group_is_cut_only_where_that_makes_the_longest_shard_shorter(config_of):
    config = config_of(4, 3)
    assert [len(part) for number in (1, 2) for part in [shards.part(config, config.matrix, number, 2)]] == [2, 2]
    assert sum(len(shards.part(config, config.matrix, number, 3)) for number in (1, 2, 3)) > 4


def test_shards_are_the_same_where_a_checkpoint_is_on_disk_and_where_it_is_not(tmp_path):
    """Each job has the models of its own cells at most: by the files, some cells would be in two shards and others in none."""
    path = tmp_path / "m.yaml"
    path.write_text(CONFIG.format(seqs="1, 2", tokens="1, 2").replace("target}", "a}") + "    engine.model: [a, b, c]\n")
    config = matrix.load_matrix(path)

    def names():
        return [[group.cell_names for group in shards.part(config, config.matrix, number, 3)] for number in (1, 2, 3)]

    elsewhere = names()
    (tmp_path / "c").mkdir()
    with (tmp_path / "c" / "model.safetensors").open("wb") as file:
        file.truncate(400 * 10**9)
    assert names() == elsewhere


def test_shards_are_of_the_selected_cells_alone(config_of):
    config = config_of(2, 4)
    selected = select(config.matrix, "max-num-seqs=1")
    assert [group.name for number in (1, 2) for group in shards.part(config, selected, number, 2)] == ["max-num-seqs-1", "max-num-seqs-1"]


def test_a_shard_without_a_cell_is_one_clear_error(config_of):
    config = config_of(1, 2)
    with pytest.raises(ConfigError) as raised:
        shards.part(config, config.matrix, 3, 3)
    assert "found:    3/3 of 2 cells" in str(raised.value)
