#!/usr/bin/env bash
# Runs `make test`, or other targets that are named, as somebody might who has just cloned this repository: in a folder
# called unstuck, below one with a space and an accent in its name, without HOME, with Ctrl-C and hang-ups ignored, and,
# where root starts it, as an ordinary user:
#
#   NEWCOMER=tester PYTHON=/usr/bin/python3.11 tests/newcomer.sh test
set -euo pipefail
source=$(cd "$(dirname "$0")/.." && pwd)
world=$(mktemp -d "${TMPDIR:-/tmp}/newcomer.XXXXXX")
trap 'rm -rf "$world"' EXIT
mkdir "$world/où est"
git clone --quiet "$source" "$world/où est/unstuck"
as=()
if [ "$(id -u)" = 0 ]; then
    : "${NEWCOMER:?is to name an ordinary user, since root starts this}"
    chown -R "$NEWCOMER:" "$world"
    as=(runuser -u "$NEWCOMER" --)
fi
cd "$world/où est/unstuck"
trap '' INT HUP
"${as[@]}" env -u HOME -u USER -u LOGNAME make "${@:-test}"
