"""The burst probe on real servers of an engine that has counters, which are hidden from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_specdec.capture.burst_probe import BurstProbe
from pytest_specdec.capture.server import ports
from pytest_specdec.capture.server.recipe import ServerRecipe
from pytest_specdec.capture.server.server import ArmServer
from pytest_specdec.engines.plain_dialect import PlainDialect
from pytest_specdec.engines.protocol import HOST, Command, ServerSetup
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.stats.bursts import compare_streams

BUILT = Path(__file__).parents[2] / ".llama-server"
DRAFT = ("--spec-type", "draft-simple", "-md")


class Uncounted(PlainDialect):
    """What is known of a server that tells nothing beyond the protocol."""

    health_path = "/health"


@pytest.fixture
def streams(tmp_path):
    def _streams(*speculative):
        setup = ServerSetup(model="target", port=ports.free(), args={}, secrets=Secrets())
        argv = (BUILT / "llama-server", "-m", BUILT / "target.gguf", "--host", HOST, "--port", setup.port)
        argv = (*argv, "-c", 2048, "-np", 1, "-t", 1, *speculative)
        recipe = ServerRecipe(
            dialect=Uncounted(),
            setup=setup,
            command=Command(argv=tuple(map(str, argv)), env={}, secrets=Secrets()),
            draft_tokens=0,
            log=tmp_path / "s" / f"{setup.port}.log",
            boot_s=60.0,
            stop_s=5.0,
        )
        with ArmServer(recipe, lambda: None) as arm:
            return BurstProbe(arm).run()

    return _streams


@pytest.mark.nightly
@pytest.mark.skipif(not (BUILT / "llama-server").exists(), reason="llama-server is not here: make llama-env")
def test_a_server_that_drafts_is_known_by_its_stream_and_one_that_does_not_is_not(streams):
    """Drafted by the model itself, so that all is accepted, however busy the machine is; then by another one.

    Which of them brings more tokens a step is not asserted: arrival times tell that only where the client is never late.
    """
    baseline = streams()
    assert len(baseline) >= 24
    assert not compare_streams(streams(), baseline).drafting
    drafted = compare_streams(streams(*DRAFT, BUILT / "target.gguf", "--spec-draft-n-max", 3), baseline)
    assert drafted.drafting, drafted
    by_another = compare_streams(streams(*DRAFT, BUILT / "draft.gguf"), baseline)
    assert min(drafted.tokens_per_step, by_another.tokens_per_step) > 1.1
