#!/usr/bin/env bash
# BERT on a TPU VM of Google Cloud, by default a v3-128: jax on each of its hosts. See docs/clusters.md.
#
#   cloud/gcp_tpu.sh train | logs | delete  [--dry-run]
#
# Settings, from the environment:
#   GCP_PROJECT, GCP_ZONE   where
#   BUCKET                  gs://bucket/folder with wiki/ and tfrecords/; the run writes to it. Or instead:
#   SHARE                   host:/folder of an NFS share (Filestore); every host mounts it as /mnt/bert
#   RUN                     folder of the run in BUCKET or SHARE, by default output
#   TPU_TYPE                v3-128, or v2-N, v3-N, v4-N, v5p-N (N TensorCores), v5litepod-N, v6e-N (N chips)
#   TPU_NAME, TPU_VERSION   by default bert, and the software that Google names for the type
#   FLAGS                   more flags of run_pretraining.py
#   SPOT=1, RESERVED=1      asks for spot capacity, for reserved capacity
#   VALID_UNTIL             gives up waiting for capacity after this time, such as 6h; else it waits for ever
#   PAUSE                   seconds between two looks, by default 30
set -euo pipefail
unset CDPATH

readonly MOUNT=/mnt/bert
readonly PRESET=configs/tpu_v3_128_bs8192.flags
readonly JOURNAL="sudo journalctl --unit=\"bert@\$USER\" --output=cat --lines=100"
root=$(cd "$(dirname "$0")/.." && pwd)

complain() { echo "gcp_tpu.sh: ${*//[[:cntrl:]]/?}" >&2; }
refuse() { complain "$@"; exit 2; }
fail() { complain "$@"; exit 1; }

for name in RUN VALID_UNTIL TPU_TYPE TPU_NAME PAUSE; do
  [[ ${!name-set} =~ [^[:space:]] ]] ||
    refuse "$name= is empty, perhaps a variable that is not set; give a value, or leave it out"
done

BUCKET=${BUCKET:-} SHARE=${SHARE:-} RUN=${RUN:-output} FLAGS=${FLAGS:-}
SPOT=${SPOT:-} RESERVED=${RESERVED:-} VALID_UNTIL=${VALID_UNTIL:-} PAUSE=${PAUSE:-30}
TPU_TYPE=${TPU_TYPE:-v3-128} TPU_NAME=${TPU_NAME:-bert} TPU_VERSION=${TPU_VERSION:-}

usage() {
  sed -n '/^#   cloud/,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$root/cloud/gcp_tpu.sh" >&2
  exit 2
}

check_place() { # sets place
  local bucket='^gs://[a-z0-9][a-z0-9._-]*(/[A-Za-z0-9._=-]+)*/?$'
  [[ ! $SHARE && $BUCKET =~ $bucket || ! $BUCKET && $SHARE == [!-]*:/* ]] || refuse "BUCKET=$BUCKET SHARE=$SHARE:" \
    "give one of both, gs://bucket/folder (of letters, digits and . _ - =) or host:/folder of an NFS share"
  place=${BUCKET%/}
  place=${place:-$MOUNT}
}

check_type() { # sets flags, those after the preset's, and steps, which are those of an update
  local number=${TPU_TYPE#*-}
  [[ $TPU_TYPE =~ ^(v2|v3|v4|v5p|v5litepod|v6e)-[1-9][0-9]{0,4}$ ]] || refuse "TPU_TYPE=$TPU_TYPE: give" \
    "v2-N, v3-N, v4-N or v5p-N with N TensorCores, v5litepod-N (v5e) or v6e-N with N chips"
  # The two cores of a chip are two devices of jax on v2 and v3, and one on v4 and v5p.
  case $TPU_TYPE in v4-* | v5p-*) number=$((number / 2)) ;; esac
  read -d '' -ra flags <<<"--num_tpu_cores=$number $FLAGS" || true
  steps=$({ cat "$root/$PRESET" && printf '%s\n' "${flags[@]}"; } | sed -n 's/^--steps_per_update=//p' | tail -n 1)
  [[ $steps =~ ^[1-9][0-9]{0,7}$ ]] || refuse "FLAGS: --steps_per_update=$steps: give a positive number"
}

show() { # COMMAND...: prints it
  printf '$'
  printf ' %q' "$@"
  printf '\n'
}

run() { # COMMAND...: prints it, and runs it unless this is a dry run
  show "$@"
  "$dry_run" || "$@"
}

again() { # COMMAND...: up to five times, because ssh fails while a TPU VM starts
  local attempt
  for attempt in 1 2 3 4 5; do
    if "$@"; then return; fi
    complain "attempt $attempt of 5 failed"
    ((attempt == 5)) || sleep "$PAUSE"
  done
  return 1
}

look() { # COMMAND...: prints what it answers, and in a dry run only the command
  if "$dry_run"; then show "$@"; else "$@" 2>&1; fi
}

tpus() { # HOW GROUP VERB ARGUMENT...
  "$1" gcloud compute tpus "${@:2}" --project="$GCP_PROJECT" --zone="$GCP_ZONE"
}

on_hosts() { # HOW WHICH COMMAND: all or 0; the chief, which prints and writes the log, is 0
  tpus "$1" tpu-vm ssh "$TPU_NAME" --worker="$2" --command="$3"
}

describe() { # GROUP: prints the state of the request or of the TPU VM, NOT_FOUND, or UNKNOWN and the reason
  local said fields=state
  [[ $1 == tpu-vm ]] || fields=state.state,state.failedData.error.message
  if said=$(tpus look "$1" describe "$TPU_NAME" "--format=value($fields)"); then
    echo "${said%$'\t'}" # gcloud ends an empty last column with a tab
  elif [[ $said == *NOT_FOUND* ]]; then
    echo NOT_FOUND
  else
    echo "UNKNOWN ($(error_in "$said"))"
  fi
}

error_in() { grep -m 1 ERROR <<<"$1" || head -n 1 <<<"$1"; } # the line that says why

state() { # of the TPU VM; of its request while there is none
  local request node
  request=$(describe queued-resources)
  if "$dry_run"; then echo "$request" && describe tpu-vm && return; fi
  # 0, because in a trap a bare return gives the exit code of the script.
  if [[ $request != NOT_FOUND && $request != ACTIVE* ]]; then echo "$request" && return 0; fi
  node=$(describe tpu-vm)
  [[ $request == NOT_FOUND ]] || node=${node/#NOT_FOUND/SUSPENDED} # it was granted, and is gone
  echo "$node"
}

# active, activating (between two starts), inactive (exit code 0), failed, absent; other: not this command
run_state() {
  local said ask="systemctl is-active \"bert@\$USER\""
  [[ -z $line ]] || ask="if grep -qsxF -- $(printf %q "$line") bert/start.sh
then $ask; elif $ask; then echo other; else echo absent; fi"
  said=$(on_hosts look 0 "$ask") || true
  if "$dry_run"; then echo "$said"; return; fi
  said=$(grep -oxE 'active|activating|deactivating|inactive|failed|absent|other' <<<"$said" | tail -n 1) || true
  echo "${said:-unreachable}"
}

# However this script ends, it removes its archive and says what still costs money.
leave() {
  local code=$? found
  trap - EXIT
  if "$dry_run"; then exit "$code"; fi
  [[ -z $scratch ]] || rm -rf -- "$scratch"
  found=$(state)
  case $found in
    NOT_FOUND) ;;
    UNKNOWN*) complain "cannot tell whether $TPU_NAME costs money; look in the console: $found" ;;
    FAILED* | SUSPENDED | PREEMPTED | TERMINATED)
      complain "$TPU_NAME is ${found%%[[:space:]]*} and costs nothing;" \
        "its request stays until: cloud/gcp_tpu.sh delete" ;;
    *) complain "$TPU_NAME is $found and costs money, or will when it is granted, until: cloud/gcp_tpu.sh delete" ;;
  esac
  exit "$code"
}

# Asks for the TPU where there is none, starts the run where it does not run, and watches it to its
# end, through preemptions. It may be stopped and repeated: the run is a service of the hosts.
train() {
  local now last=''
  scratch=${TMPDIR:-/tmp}/bert-checkout.XXXXXX # mktemp makes a name that nobody can guess
  "$dry_run" || scratch=$(mktemp -d "$scratch")
  run git -C "$root" archive --format=tar.gz --output="$scratch/bert-checkout.tar.gz" HEAD
  if "$dry_run"; then state && request && run_state && start && return; fi
  while true; do
    now=$(state)
    [[ $now != READY ]] || now=$(run_state)
    [[ $now == "$last" ]] || echo "$TPU_NAME: $now"
    case $last,$now in
      ,UNKNOWN*) fail "cannot look for $TPU_NAME: $now" ;;
      ,NOT_FOUND) request ;;
      *,NOT_FOUND) fail "$TPU_NAME is gone, and this command has not deleted it" ;;
      *,FAILED*) fail "$TPU_NAME is not granted: $now; cloud/gcp_tpu.sh delete, then try again" ;;
      # Seen twice, for a TPU that somebody deletes is in such a state for a moment.
      SUSPENDED,SUSPENDED | PREEMPTED,PREEMPTED | TERMINATED,TERMINATED) delete && request ;;
      *,absent | ,failed) # a TPU that is preempted meanwhile is no failure
        start || [[ $(state) != READY ]] ||
          fail "$TPU_NAME does not run; the lines above say why; then: cloud/gcp_tpu.sh train"
        ;;
      *,other) fail "$TPU_NAME runs another command; docs/clusters.md says how to stop it" ;;
      failed,failed) # seen twice: at a preemption the run can fail before the TPU is gone
        on_hosts look 0 "$JOURNAL" || true
        fail "the run on $TPU_NAME has failed, for good; the lines above say why"
        ;;
      *,inactive) echo "$TPU_NAME: the run has ended" && return ;;
    esac
    last=$now
    sleep "$PAUSE"
  done
}

request() { # queues a request for the TPU
  local said command software=tpu-ubuntu2204-base
  case $TPU_TYPE in # cloud.google.com/tpu/docs/runtimes, for jax
    v5litepod-*) software=v2-alpha-tpuv5-lite ;;
    v5p-*) software=v2-alpha-tpuv5 ;;
    v6e-*) software=v2-alpha-tpuv6e ;;
  esac
  command=(queued-resources create "$TPU_NAME" --node-id="$TPU_NAME" --accelerator-type="$TPU_TYPE"
    --runtime-version="${TPU_VERSION:-$software}" --quiet)
  [[ $SPOT != 1 ]] || command+=(--spot)
  [[ $RESERVED != 1 ]] || command+=(--reserved)
  [[ -z $VALID_UNTIL ]] || command+=("--valid-until-duration=$VALID_UNTIL")
  tpus show "${command[@]}"
  "$dry_run" || said=$(tpus look "${command[@]}") || fail "$TPU_NAME was not requested: $(error_in "$said")"
}

start() { # puts this commit and its environment on every host, and then starts it on all at once
  again tpus run tpu-vm scp "$scratch/bert-checkout.tar.gz" "$TPU_NAME:bert-checkout.tar.gz" --worker=all &&
    again on_hosts run all "$(setup)" &&
    again on_hosts run all "$(service)"
}

setup() { # prints the commands of a host, whose own Python may be 3.10
  cat <<END
set -e
sudo apt-get -qq update; sudo apt-get -qq install --yes python3-venv${SHARE:+ nfs-common}
python3 -m venv uv; uv/bin/pip install --quiet uv; uv/bin/uv python install --quiet 3.13
mkdir -p bert && tar -xzf bert-checkout.tar.gz -C bert && cd bert
PYTHON="\$(../uv/bin/uv python find --managed-python 3.13)" environment/setup.sh .venv environment/requirements-tpu.lock
END
}

service() { # prints the commands that install and start it, so that it outlives this connection
  cat <<END
set -e
cat >bert/start.sh <<'START'
set -e
cd bert
$([[ -z $SHARE ]] || printf '%s\n' "sudo mkdir -p $MOUNT" \
    "mountpoint -q $MOUNT || sudo mount -t nfs $(printf %q "$SHARE") $MOUNT")
$line
START
sudo cp bert/cloud/bert@.service /etc/systemd/system
sudo systemctl daemon-reload
sudo systemctl reset-failed 'bert@*'
sudo systemctl enable --quiet "bert@\$USER"
sudo systemctl restart "bert@\$USER"
END
}

command_line() { # of every host, quoted for its shell; jax finds the other hosts by itself
  printf exec
  # Saved as often as the rules evaluate at this batch: every 28 updates.
  printf ' %q' .venv/bin/python run_pretraining.py --flagfile="$PRESET" \
    --bert_config_file="$place/wiki/bert_config.json" \
    --init_checkpoint="$place/wiki/tf1_ckpt/model.ckpt-28252" \
    --input_file="$place/tfrecords/part-*" --eval_input_file="$place/tfrecords/eval_10k" \
    --output_dir="$place/$RUN" --save_checkpoints_steps=$((28 * steps)) "${flags[@]}"
}

logs() { # until Ctrl-C
  on_hosts run 0 "$JOURNAL --follow" ||
    fail "the connection has ended, the run goes on; then: cloud/gcp_tpu.sh logs"
}

delete() { # the request, with the TPU, and a TPU that was made without one; both are tried
  tpus run queued-resources delete "$TPU_NAME" --force --quiet || true
  [[ $(state) == NOT_FOUND ]] || tpus run tpu-vm delete "$TPU_NAME" --quiet || true
  "$dry_run" || [[ $(state) == NOT_FOUND ]] || fail "$TPU_NAME is not deleted; the lines above say why"
}

[[ $#,$* =~ ^(1,(train|logs|delete)|2,(train|logs|delete)\ --dry-run)$ ]] || usage
action=$1 scratch='' place='' line='' steps='' flags=()
dry_run=$([[ $# == 1 ]] && echo false || echo true)
for name in GCP_PROJECT GCP_ZONE; do
  [[ ${!name:-} ]] || refuse "set $name; the first lines of cloud/gcp_tpu.sh explain it"
done
for name in SPOT RESERVED; do
  [[ ${!name} =~ ^[01]?$ ]] || refuse "$name=${!name}: give 1, or leave it out"
done
if [[ $action == train ]]; then
  check_place
  check_type
  line=$(command_line)
fi
trap leave EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
"$action"
