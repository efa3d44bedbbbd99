#!/usr/bin/env bash
# Fetches every model of models.txt into $MODELS and says so with a file whose name follows from the
# list, so that a pod can wait for just the list it was given. Lines of models.txt:
#   catalog NAME                          a name from `specdec models list`
#   hub REPOSITORY REVISION FOLDER [LINK] a hub model; LINK is switched to FOLDER when all are there
set -euo pipefail
list="$(dirname "$0")/models.txt"

fetch_hub() { # repository revision folder
    local folder="$MODELS/$3"
    if [[ "$(cat "$folder/.revision" 2>/dev/null)" == "$2" ]]; then return; fi
    # The originals beside the safetensors would double the download.
    hf download "$1" --revision "$2" --local-dir "$folder" --exclude 'original/*'
    echo "$2" >"$folder/.revision"
}

while read -r kind name revision folder _; do
    case "$kind" in
        catalog) specdec models fetch "$name" ;;
        hub) fetch_hub "$name" "$revision" "$folder" ;;
        '' | '#'*) ;;
        *) echo "models.txt: unknown kind '$kind'" >&2; exit 2 ;;
    esac
done <"$list"

# By rename, so that a draft that starts just now sees the old link or the new one, never none.
while read -r kind _ _ folder link; do
    if [[ "$kind" == hub && -n "$link" ]]; then
        ln -sfn "$folder" "$MODELS/.$link.new"
        mv -T "$MODELS/.$link.new" "$MODELS/$link"
    fi
done <"$list"

touch "$MODELS/.filled-$(sha256sum <"$list" | cut -c1-16)"
