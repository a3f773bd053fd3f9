#!/usr/bin/env bash
# A release of mlx-lm in a venv, with the newest mlx that it takes; on Linux that computes on the CPU.
# usage: [MLX=VERSION] bash mlx_lm.sh VERSION FOLDER
set -euo pipefail
. "$(dirname "$0")/folder.sh"
begin "$@"
make_venv
pip install "mlx-lm==$version" "mlx[cpu]${MLX:+==$MLX}"
finish
