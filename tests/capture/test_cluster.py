"""What a group needs of a node, and the errors of clusters that cannot give it."""

from __future__ import annotations

import socket
import sys
from types import SimpleNamespace

import pytest

from pytest_specdec.capture import ray_cluster
from pytest_specdec.capture.cluster import Node, find_fitting, needs_of, require_fit
from pytest_specdec.config.load import load
from pytest_specdec.errors import CaptureError, ConfigError, PlanError

CPU = Node(id="1", name="small/1", resources={"CPU": 4.0, "memory": 8e9}, labels={"ray.io/node-id": "1"})
GPU = Node(id="2", name="large/2", resources={"CPU": 16.0, "GPU": 8.0, "disk": 1.0}, labels={"ray.io/accelerator-type": "H100"})
VLLM = """
engine: {kind: vllm, model: m, args: {tensor-parallel-size: 4}}
variants: {ngram-k3: {args: {speculative-config: {method: ngram, num_speculative_tokens: 3}}}}
"""


@pytest.fixture
def loaded(tmp_path):
    def _loaded(text):
        path = tmp_path / "fleet.yaml"
        path.write_text(text)
        return load(path)

    return _loaded


def test_gpus_follow_from_the_arguments_and_only_where_there_are_any(loaded):
    config = loaded(VLLM)
    assert needs_of(config, [CPU, GPU]).devices == 4
    assert needs_of(config, [CPU]).devices == 0


def test_cpus_resources_and_labels_are_stated(loaded):
    needs = needs_of(loaded(VLLM + "cluster: {cpus: 8, resources: {disk: 1}, labels: {ray.io/accelerator-type: H100}}\n"), [CPU, GPU])
    assert str(needs) == "8 CPU, 4 GPU, 1 disk, ray.io/accelerator-type=H100"
    assert find_fitting(needs, [CPU, GPU]) == [GPU]


@pytest.mark.parametrize("stated", ["cpus: 32", "labels: {ray.io/accelerator-type: H200}", "resources: {disk: 2}"])
def test_a_group_that_fits_no_node_is_one_error_with_what_the_nodes_have(loaded, stated):
    needs = needs_of(loaded(f"{VLLM}cluster: {{{stated}}}\n"), [CPU, GPU])
    with pytest.raises(PlanError) as raised:
        require_fit({"fp8": needs}, [CPU, GPU])
    lines = str(raised.value).splitlines()
    assert f"  found:    fp8 needs {needs}" in lines
    assert "  expected: small/1: 4 CPU" in lines
    assert "            large/2: 16 CPU, 8 GPU, 1 disk, ray.io/accelerator-type=H100" in lines


@pytest.mark.parametrize("address, words", [("ray://head:10001", "ray job submit"), ("local", "no address"), ("head", "no address")])
def test_other_addresses_than_those_of_a_cluster_are_refused(monkeypatch, address, words):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(exceptions=SimpleNamespace(RayError=KeyError)))
    with pytest.raises(ConfigError, match=words):
        ray_cluster.connect(address)


def test_a_cluster_that_does_not_answer_is_one_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(exceptions=SimpleNamespace(RayError=KeyError)))
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(CaptureError, match="no cluster to capture on"):
            ray_cluster.connect(f"127.0.0.1:{closed.getsockname()[1]}")


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'pytest-specdec\[ray\]'"):
        ray_cluster.connect("auto")
