#!/usr/bin/env bash
# Runs in a second container with the same /output: evaluates each checkpoint of a training once, oldest first, and
# waits for the next one, until the target or the last step. Train with EVAL_FILE= then. Environment as in train_model.sh:
#
# DATA_DIR=/data  WIKI_DIR=/wiki  OUTPUT_DIR=/output  NUM_GPUS=0  EVAL_FILE=$DATA_DIR/eval_10k
set -euo pipefail
unset CDPATH
. "$(dirname "${BASH_SOURCE[0]}")/environment/launching.sh"
end_by_signals
cd "$(dirname "${BASH_SOURCE[0]}")"
require_values DATA_DIR WIKI_DIR OUTPUT_DIR NUM_GPUS EVAL_FILE

export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-2}

# A preset among "$@" may override, without a warning, what stands before --flagfile=/dev/null.
exec "${PYTHON:-python}" run_pretraining.py \
  --bert_config_file="${WIKI_DIR:-/wiki}/bert_config.json" \
  --input_file="${EVAL_FILE:-${DATA_DIR:-/data}/eval_10k}" \
  --output_dir="${OUTPUT_DIR:-/output}" \
  --num_gpus="${NUM_GPUS:-0}" \
  --max_seq_length=512 \
  --max_predictions_per_seq=76 \
  --eval_batch_size=8 \
  --num_train_steps=107538 \
  --flagfile=/dev/null \
  "$@" \
  --do_eval \
  --nodo_train # last: presets say --do_train
