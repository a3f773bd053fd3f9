"""For every pytest run of this repository: numpy gets one thread, since its idle threads spin and take processor time from the servers."""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
