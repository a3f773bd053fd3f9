from __future__ import annotations

import pytest

from pytest_specdec.capture.server.process import cause

VLLM = """\
(APIServer pid=10) WARNING 11-21 13:39:33 [system_utils.py:255] This can cause fd limit errors like `OSError: [Errno 24] Too many`
(Worker pid=12) ERROR 11-21 13:40:26 [multiproc_executor.py:1063] Traceback (most recent call last):
(Worker pid=12) ERROR 11-21 13:40:26 [multiproc_executor.py:1063]   File "/x/ops/topk_topp_sampler.py", line 529, in apply_top_k_only
(Worker pid=12) ERROR 11-21 13:40:26 [multiproc_executor.py:1063]     max_top_k = k.max()
(Worker pid=12) ERROR 11-21 13:40:26 [multiproc_executor.py:1063] RuntimeError: max(): Expected reduction dim to be specified
(EngineCore pid=11) ERROR 11-21 13:40:26 [core.py:1512]   File "/x/vllm/v1/engine/core.py", line 1500, in run_busy_loop
(EngineCore pid=11) ERROR 11-21 13:40:26 [core.py:1512] RuntimeError: Worker failed with error 'max(): …'
INFO:     127.0.0.1:35294 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error
"""
PYTHON = """\
INFO:     Application startup complete.
Traceback (most recent call last):
  File "engine.py", line 7, in step
    raise KeyError(token)
KeyError: 42
"""


@pytest.mark.parametrize(
    "log, expected",
    [
        (VLLM, "RuntimeError: max(): Expected reduction dim to be specified (topk_topp_sampler.py:529, in apply_top_k_only)"),
        (PYTHON, "KeyError: 42 (engine.py:7, in step)"),
        ("main: loading\nGGML_ASSERT(n_tokens > 0) failed\nAborted\n", "GGML_ASSERT(n_tokens > 0) failed"),
        ("RuntimeError: said by a model, without a traceback\n", ""),
        ("INFO: all is well\n", ""),
        ("", ""),
    ],
)
def test_the_first_exception_is_the_cause(log, expected):
    assert cause(log) == expected
