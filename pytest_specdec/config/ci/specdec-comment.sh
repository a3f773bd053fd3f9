#!/bin/sh
# Write specdec-run/report.md, or matrix.md of a matrix, into the one comment of a GitHub pull request that has it: sh specdec-comment.sh CONFIG NUMBER
#
# Needs gh, GH_TOKEN and GITHUB_REPOSITORY, as a GitHub runner has them.
set -eu
marker="<!-- pytest-specdec $1 -->"
comments="repos/$GITHUB_REPOSITORY/issues/$2/comments"
report=specdec-run/report.md
if [ -f specdec-run/matrix.md ]; then report=specdec-run/matrix.md; fi
{ echo "$marker"; cat "$report"; } > specdec-comment.md
id=$(gh api --paginate "$comments" --jq ".[] | select(.body | startswith(\"$marker\")) | .id" | head -n 1)
if [ -n "$id" ]; then
    gh api --method PATCH "repos/$GITHUB_REPOSITORY/issues/comments/$id" -F body=@specdec-comment.md
else
    gh api "$comments" -F body=@specdec-comment.md
fi
