#!/usr/bin/env bash
# Batch 8,192 on a TPU-v3-128, with a TPU-v3-8 that evaluates the checkpoints. See docs/clusters.md.
#
#   cloud/gcp_tpu.sh create | setup | train | eval | status | delete  [--dry-run]
#
# Settings, from the environment:
#   GCP_PROJECT, GCP_ZONE   where
#   SHARE                   host:/folder of an NFS share (Filestore) with wiki/ and tfrecords/;
#                           every host mounts it as /mnt/bert, and the run writes to it
#   RUN                     folder of the run on the share, by default output
#   TPU_NAME, EVAL_TPU_NAME           by default bert-train, bert-eval
#   TPU_VERSION, EVAL_TPU_VERSION     software of the TPU VMs
set -euo pipefail
unset CDPATH

readonly MOUNT=/mnt/bert
readonly TENSORFLOW=2.20.0 # as in requirements-tpu.lock
root=$(cd "$(dirname "$0")/.." && pwd)

RUN=${RUN:-output}
TPU_NAME=${TPU_NAME:-bert-train}
EVAL_TPU_NAME=${EVAL_TPU_NAME:-bert-eval}
TPU_VERSION=${TPU_VERSION:-tpu-vm-tf-$TENSORFLOW-pod-pjrt}
EVAL_TPU_VERSION=${EVAL_TPU_VERSION:-tpu-vm-tf-$TENSORFLOW-pjrt}

usage() {
  echo "usage: cloud/gcp_tpu.sh create | setup | train | eval | status | delete  [--dry-run]" >&2
  exit 2
}

require() { # NAME...: settings that must be given
  local name missing=()
  for name in "$@"; do [[ -n ${!name:-} ]] || missing+=("$name"); done
  if ((${#missing[@]})); then
    echo "gcp_tpu.sh: set ${missing[*]}; the first lines of cloud/gcp_tpu.sh explain them" >&2
    exit 2
  fi
}

run() { # COMMAND...: prints it, and runs it unless this is a dry run
  printf '$'
  printf ' %q' "$@"
  printf '\n'
  "$dry_run" || "$@"
}

tpu() { # VERB NAME ARGUMENT...
  local verb=$1 name=$2
  shift 2
  run gcloud compute tpus tpu-vm "$verb" "$name" --project="$GCP_PROJECT" --zone="$GCP_ZONE" "$@"
}

# However this script ends, it removes its archive and names the TPUs that still cost money.
leave() {
  local code=$? name state
  trap - EXIT
  if ! "$dry_run" && [[ $scratch ]]; then rm -rf -- "$scratch"; fi
  if "$dry_run" || [[ $action == status ]]; then exit "$code"; fi
  for name in "$TPU_NAME" "$EVAL_TPU_NAME"; do
    if state=$(gcloud compute tpus tpu-vm describe "$name" --project="$GCP_PROJECT" \
      --zone="$GCP_ZONE" --format='value(state)' 2>&1); then
      echo "gcp_tpu.sh: $name is $state and costs money until: cloud/gcp_tpu.sh delete" >&2
    elif [[ $state != *NOT_FOUND* ]]; then
      echo "gcp_tpu.sh: cannot tell whether $name still runs; look in the console: $state" >&2
    fi
  done
  exit "$code"
}

create() {
  tpu create "$TPU_NAME" --accelerator-type=v3-128 --version="$TPU_VERSION" --quiet
  tpu create "$EVAL_TPU_NAME" --accelerator-type=v3-8 --version="$EVAL_TPU_VERSION" --quiet
}

setup() {
  local name archive
  scratch=${TMPDIR:-/tmp}/bert-checkout.XXXXXX # mktemp makes a name that nobody can guess
  "$dry_run" || scratch=$(mktemp -d "$scratch")
  archive=$scratch/bert-checkout.tar.gz
  run git -C "$root" archive --format=tar.gz --output="$archive" HEAD
  for name in "$TPU_NAME" "$EVAL_TPU_NAME"; do
    run gcloud compute tpus tpu-vm scp "$archive" "$name:bert-checkout.tar.gz" \
      --project="$GCP_PROJECT" --zone="$GCP_ZONE" --worker=all
    tpu ssh "$name" --worker=all --command="$(on_each_host)"
  done
}

on_each_host() { # prints the commands of setup
  cat <<END
set -e
sudo apt-get -qq update
sudo apt-get -qq install --yes nfs-common python3.11-venv
sudo mkdir -p $MOUNT
mountpoint -q $MOUNT || sudo mount -t nfs $(printf %q "$SHARE") $MOUNT
mkdir -p bert && tar -xzf bert-checkout.tar.gz -C bert && cd bert
python3.11 -m venv .venv
.venv/bin/python -m pip install --quiet --no-deps --require-hashes -r requirements-tpu.lock
END
}

pretraining() { # FLAG...: the command line of run_pretraining.py, quoted for a remote shell
  printf '%q ' .venv/bin/python run_pretraining.py --flagfile=configs/tpu_v3_128_bs8192.flags \
    --bert_config_file="$MOUNT/wiki/bert_config.json" --output_dir="$MOUNT/$RUN" "$@"
}

train() { # one process, on the first host, drives all 128 cores over the network
  tpu ssh "$TPU_NAME" --worker=0 --command="cd bert && TPU_LOAD_LIBRARY=0 $(pretraining \
    --init_checkpoint="$MOUNT/wiki/tf1_ckpt/model.ckpt-28252" \
    --input_file="$MOUNT/tfrecords/part-*" \
    --tpu_name="$TPU_NAME" --tpu_zone="$GCP_ZONE" --gcp_project="$GCP_PROJECT")"
}

evaluate() { # waits for the checkpoints of the training, until one reaches the target
  tpu ssh "$EVAL_TPU_NAME" --worker=0 --command="cd bert && $(pretraining --nodo_train --do_eval \
    --input_file="$MOUNT/tfrecords/eval_10k" --num_tpu_cores=8)"
}

status() {
  local name
  for name in "$TPU_NAME" "$EVAL_TPU_NAME"; do
    tpu describe "$name" '--format=table(name,state,health,acceleratorType)' || true
  done
}

delete() { # both are tried, even if one fails
  local failed=0
  tpu delete "$TPU_NAME" --quiet || failed=1
  tpu delete "$EVAL_TPU_NAME" --quiet || failed=1
  return "$failed"
}

action=${1:-} dry_run=false scratch=
[[ $# -le 2 ]] || usage
case ${2:-} in
  --dry-run) dry_run=true ;;
  "") ;;
  *) usage ;;
esac
settings=(GCP_PROJECT GCP_ZONE)
case $action in
  setup) settings+=(SHARE) ;;
  create | train | eval | status | delete) ;;
  *) usage ;;
esac
require "${settings[@]}"
if [[ $action == setup && $SHARE != [!-]*:/* ]]; then
  echo "gcp_tpu.sh: SHARE=${SHARE//[[:cntrl:]]/?}: give host:/folder of an NFS share" >&2
  exit 2
fi
"$dry_run" || command -v gcloud >/dev/null || {
  echo "gcp_tpu.sh: no gcloud here; install the Google Cloud CLI, or use --dry-run" >&2
  exit 2
}
trap leave EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
case $action in
  eval) evaluate ;;
  *) "$action" ;;
esac
