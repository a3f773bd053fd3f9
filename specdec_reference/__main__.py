"""``python -m specdec_reference``: serve the reference engine."""

from __future__ import annotations

import os
import sys

# OpenBLAS reads these when numpy is imported. One thread, because a box of two cores also runs the client.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

from specdec_reference.cli import main  # noqa: E402 - the variables must be set first

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
