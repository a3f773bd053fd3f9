#!/usr/bin/env bash
# A release of mlx-lm in a venv, with the newest mlx of its minor version; on Linux that computes on the CPU.
# usage: [MLX=VERSION] bash mlx_lm.sh VERSION FOLDER
set -euo pipefail
. "$(dirname "$0")/folder.sh"
begin "$@"
make_venv
# mlx-lm asks for a least version alone, and 0.30.7 answers nothing with mlx 0.32: "There is no Stream(cpu, 0) in current thread".
pip install "mlx-lm==$version" "mlx[cpu]==${MLX:-${version%.*}.*}"
finish
