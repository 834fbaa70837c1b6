#!/usr/bin/env bash
# Runs in the container: fine-tunes the newest checkpoint of the run in /output on GLUE or SQuAD. Settings come from the
# environment; flags override them:
#
#   finetune_model.sh --task=rte --learning_rate=2e-5
#
# DATA_DIR=/data            the unpacked GLUE, or the JSON files of SQuAD
# WIKI_DIR=/wiki            bert_config.json, vocab.txt
# OUTPUT_DIR=/output        results go to its folder finetuning
# INIT_CHECKPOINT=$OUTPUT_DIR    a checkpoint, or the folder of a run
# NUM_GPUS=(1 where there are GPUs)    0 = the CPU; more than one are of no use
# SEED=1                    with --sweep the only one of its seeds
set -euo pipefail
unset CDPATH
. "$(dirname "${BASH_SOURCE[0]}")/environment/launching.sh"
end_by_signals
cd "$(dirname "${BASH_SOURCE[0]}")"
require_values DATA_DIR WIKI_DIR OUTPUT_DIR INIT_CHECKPOINT NUM_GPUS SEED

wiki=${WIKI_DIR:-/wiki} output=${OUTPUT_DIR:-/output}
checkpoint=${INIT_CHECKPOINT:-$output}
seed=--seed
for flag in "$@"; do
  case $flag in --sweep|--sweep=[Tt1]*) seed=--seeds ;; --nosweep|--sweep=*) seed=--seed ;; esac
done
num_gpus=$(count_visible_gpus)
case $num_gpus in 0|*[!0-9]*) ;; *) num_gpus=1 ;; esac
export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-2}

# exec: as in train_model.sh, python gets docker stop's SIGTERM.
exec "${PYTHON:-python}" run_finetuning.py \
  --data_dir="${DATA_DIR:-/data}" \
  --checkpoint="$checkpoint" \
  --bert_config_file="$wiki/bert_config.json" \
  --vocab_file="$wiki/vocab.txt" \
  --output_dir="$output/finetuning" \
  --num_gpus="$num_gpus" \
  ${SEED:+"$seed=$SEED"} \
  "$@"
