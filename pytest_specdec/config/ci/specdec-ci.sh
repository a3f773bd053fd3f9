#!/bin/sh
# What CI runs: sh specdec-ci.sh [smoke|standard|deep]
#
# With SPECDEC_AGAINST, a run directory of the engine release in use, the line UPGRADE says whether the upgrade changed the baseline's answers or
# speculation broke; a change beyond numerics is a finding, and what cannot be told is undecided.
# Exits by the class of the run: 0 clean, 1 finding, 75 infrastructure, 76 undecided, 78 setup invalid; 2 to 5 are pytest's own.
# Leaves specdec-run/ (run.json, report.html, report.md, answers, server logs; matrix.html, matrix.md and groups/ for a config with `matrix`)
# and specdec.xml (JUnit).
set -eu
depth="${1:-standard}"

# An environment of its own, beside the engine's: the engine is started by the config's command or image, and its locked packages stay as they are.
if [ ! -x .specdec-env/bin/python ]; then
    python3 -m venv .specdec-env
    .specdec-env/bin/python -m pip install --quiet "${SPECDEC_PACKAGE:-pytest-specdec}"
fi

if [ -n "${SPECDEC_AGAINST:-}" ]; then against="--specdec-against=$SPECDEC_AGAINST"; else against=; fi
judge() {
    .specdec-env/bin/python -m pytest ${SPECDEC_SUITES:-@SUITES@} --specdec-config="${SPECDEC_CONFIG:-@CONFIG@}" \
        --specdec-baselines="${SPECDEC_BASELINES:-baselines}" --specdec-exit-codes --junit-xml=specdec.xml ${against:+"$against"} "$@"
}

# An earlier run in this workspace is moved aside: nothing is deleted or written over.
if [ -e specdec-run ]; then mv specdec-run "specdec-run.$(date +%Y%m%dT%H%M%S)"; fi
code=0
judge --specdec-depth="$depth" --specdec-run-dir=specdec-run || code=$?
# What a server failed on once is asked again. A finding never is: a retry changes nothing about it.
if [ "$code" -eq 75 ] && { [ -f specdec-run/plan.json ] || [ -f specdec-run/matrix.json ]; }; then
    code=0
    judge --specdec-resume=specdec-run || code=$?
fi
exit "$code"
