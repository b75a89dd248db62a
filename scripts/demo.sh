#!/usr/bin/env bash
# What a user would type, from a folder of videos to a trained toy model: scripts/demo.sh BIN OUT [SOURCE]
set -euo pipefail
bin=$1 out=$2 source=${3:-}

step() {
    printf '\n\033[1m$ %s\033[0m\n' "$*"
    PATH="$bin:$PATH" "$@"
}

mkdir -p "$out"
if [ -z "$source" ]; then
    source=$out/footage
    [ -f "$source/truth.json" ] || step python scripts/make_footage.py "$source"
fi
step vidpipe run pipelines/data/quickstart.toml --source "$source" --output "$out/dataset"
step vidpipe status "$out/dataset"
step trainer train pipelines/train/quickstart.toml --data "$out/dataset" --output "$out/run"
step trainer sample "$out/run" --output "$out/sample.mp4"

printf '\nDone in %d s. Look at:\n' "$SECONDS"
printf '  %-28s %s\n' \
    "$out/dataset/report.html" "what came in, what was kept or rejected and why, a contact sheet of clips" \
    "$out/sample.mp4" "what the model makes of held-out captions" \
    "$out/run/loss.svg" "the loss curve; numbers are in metrics.jsonl, and for $bin/tensorboard --logdir $out/run" \
    "notebooks/01_data_quality.ipynb" "the same dataset, to play with"
