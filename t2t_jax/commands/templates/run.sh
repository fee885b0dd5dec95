#!/usr/bin/env bash
# Train on the text in corpus/, score, and translate. Flags are those of t2t-jax train, as in
#   ./run.sh --training.num-train-steps 20000
# To resume an interrupted training run, run this script again.
set -euo pipefail
cd "$(dirname "$0")"

t2t-jax train --config config.py runs/first "$@"
t2t-jax evaluate runs/first --split test
t2t-jax translate runs/first --input corpus/test.@{source} --output translations.@{target}
echo "the translations are in $PWD/translations.@{target}"
