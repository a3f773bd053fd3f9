#!/usr/bin/env bash
# A release of transformers in a venv, with what `transformers serve` imports and a torch for the CPU.
# usage: bash transformers.sh VERSION FOLDER
set -euo pipefail
. "$(dirname "$0")/folder.sh"
begin "$@"
check_python
make_venv
# Its own extra `serving` brings a web interface of other packages; the server imports these, and accelerate to place the weights.
# Before 5.21 the command imports requests (cli/chat.py), which neither transformers nor any extra of its declares; huggingface_hub 0 brought it.
pip install "transformers==$version" "torch==$torch" accelerate fastapi openai requests uvicorn
finish
