#!/usr/bin/env bash
# Waits until fill.sh has fetched all of models.txt.
set -euo pipefail
list="$(dirname "$0")/models.txt"
marker="$MODELS/.filled-$(sha256sum <"$list" | cut -c1-16)"

until [[ -e "$marker" ]]; do
    echo "waiting for $marker (kubectl logs -n specdec job/specdec-weights)"
    sleep "${POLL_S:-5}"
done
