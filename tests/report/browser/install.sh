#!/usr/bin/env bash
# playwright-core, which drives a Chromium that is already here, and axe-core, cached by version and linked as .browser; neither brings a browser.
# usage: install.sh LINK        e.g. install.sh .browser
set -euo pipefail
link=$1
playwright=1.65.1
axe=4.14.1
cache=${SPECDEC_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pytest-specdec}
folder=$cache/browser-$playwright-$axe
if [ ! -e "$folder/.installed" ]; then
  command -v npm >/dev/null || { echo "playwright-core and axe-core come by npm, which is not here: install it" >&2; exit 1; }
  rm -rf "$folder" && mkdir -p "$folder"
  npm install --silent --no-audit --no-fund --no-save --ignore-scripts --prefix "$folder" "playwright-core@$playwright" "axe-core@$axe"
  touch "$folder/.installed"
fi
ln -sfn "$folder" "$link"
echo "playwright-core $playwright, axe-core $axe"
