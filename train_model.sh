#!/usr/bin/env bash
# Runs in the container: trains until masked-LM accuracy 0.720. Settings come from the environment; flags override them:
#
#   train_model.sh --train_batch_size=48 --learning_rate=0.0002
#
# DATA_DIR=/data            TFRecords part-*, and eval_10k
# WIKI_DIR=/wiki            bert_config.json, tf1_ckpt/model.ckpt-28252
# OUTPUT_DIR=/output        checkpoints, bert.log, metrics.jsonl
# NUM_GPUS=(all that CUDA_VISIBLE_DEVICES leaves)    0 = the CPU
# SEED=(a random one)       a fixed one is for debugging only: such a run is not a submission
# EVAL_FILE=$DATA_DIR/eval_10k    empty: no evaluation in the training; run eval_model.sh at the same time
# INIT_CHECKPOINT=$WIKI_DIR/tf1_ckpt/model.ckpt-28252
#
# The other values are for eight V100 GPUs with 16 GB: batch 24. They have no reference convergence points.
set -euo pipefail
unset CDPATH
. "$(dirname "${BASH_SOURCE[0]}")/environment/launching.sh"
end_by_signals
cd "$(dirname "${BASH_SOURCE[0]}")"
require_values DATA_DIR WIKI_DIR OUTPUT_DIR NUM_GPUS SEED INIT_CHECKPOINT

data=${DATA_DIR:-/data}
wiki=${WIKI_DIR:-/wiki}
checkpoint=${INIT_CHECKPOINT:-$wiki/tf1_ckpt/model.ckpt-28252}
evaluation=${EVAL_FILE-$data/eval_10k}
num_gpus=$(count_visible_gpus)

# Read by TensorFlow: there are as many threads as this container has cores.
export TF_NUM_INTRAOP_THREADS=${TF_NUM_INTRAOP_THREADS:-$(nproc)}
export TF_NUM_INTEROP_THREADS=${TF_NUM_INTEROP_THREADS:-2}
export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-2}

# exec: python replaces this shell. As process 1 of the container it gets docker stop's SIGTERM and saves a
# checkpoint, tracers attach to it, and its exit code is the container's.
# A preset among "$@" may override, without a warning, what stands before --flagfile=/dev/null.
exec "${PYTHON:-python}" run_pretraining.py \
  --do_train \
  --bert_config_file="$wiki/bert_config.json" \
  --init_checkpoint="$checkpoint" \
  --input_file="$data/part-*" \
  ${evaluation:+--eval_input_file="$evaluation"} \
  --output_dir="${OUTPUT_DIR:-/output}" \
  --num_gpus="$num_gpus" \
  ${SEED:+--seed="$SEED"} \
  --max_seq_length=512 \
  --max_predictions_per_seq=76 \
  --optimizer=lamb \
  --train_batch_size=24 \
  --eval_batch_size=8 \
  --learning_rate=0.0001 \
  --num_train_steps=107538 \
  --num_warmup_steps=1562 \
  --start_warmup_step=0 \
  --save_checkpoints_steps=6250 \
  --flagfile=/dev/null \
  "$@"
