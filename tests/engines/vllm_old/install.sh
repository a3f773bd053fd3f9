#!/usr/bin/env bash
# The two sources of an early vLLM that declare its flags, out of its wheel, cached by version; nothing of it is run.
# usage: install.sh LINK        e.g. install.sh .venv-vllm-old
set -euo pipefail
link=$1
vllm=0.6.6
python=${PYTHON311:-python3.11}
cache=${SPECDEC_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pytest-specdec}
folder=$cache/vllm-arguments-$vllm
if [ ! -e "$folder/.installed" ]; then
  command -v "$python" >/dev/null || python=python3
  wheels=$(mktemp -d)
  trap 'rm -rf "$wheels"' EXIT
  "$python" -m pip --quiet --disable-pip-version-check download --no-deps --dest "$wheels" --only-binary=:all: \
    --platform manylinux1_x86_64 --python-version 3.11 "vllm==$vllm"
  mkdir -p "$folder"
  "$python" - "$wheels"/*.whl "$folder" <<'PY'
import pathlib, sys, zipfile
wheel, folder = zipfile.ZipFile(sys.argv[1]), pathlib.Path(sys.argv[2])
for name in ("vllm/engine/arg_utils.py", "vllm/entrypoints/openai/cli_args.py"):
    (folder / pathlib.PurePosixPath(name).name).write_bytes(wheel.read(name))
PY
  touch "$folder/.installed"
fi
ln -sfn "$folder" "$link"
echo "vllm $vllm: arguments"
