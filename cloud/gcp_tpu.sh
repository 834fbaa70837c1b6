#!/usr/bin/env bash
# BERT on a TPU VM of Google Cloud, by default a v3-128: jax on each of its hosts. See docs/clusters.md.
#
#   cloud/gcp_tpu.sh train | logs | delete  [--dry-run]
#
# Settings, from the environment:
#   GCP_PROJECT, GCP_ZONE   where
#   BUCKET                  gs://bucket/folder with wiki/ and tfrecords/; the run writes to it
#   RUN                     folder of the run in BUCKET, by default output
#   TPU_TYPE                v3-128, or v2-N, v3-N, v4-N, v5p-N (N TensorCores), v5litepod-N, v6e-N (N chips)
#   TPU_NAME                by default bert
#   FLAGS                   more flags of run_pretraining.py
#   CREATE                  more flags of gcloud's queued-resources create, such as --spot, --reserved,
#                           --valid-until-duration=6h or another --runtime-version
#   PAUSE                   seconds between two looks, by default 30
set -euo pipefail
unset CDPATH

readonly JOURNAL="sudo journalctl --unit=\"bert@\$USER\" --output=cat --lines=100"
root=$(cd "$(dirname "$0")/.." && pwd)

complain() { echo "gcp_tpu.sh: ${*//[[:cntrl:]]/?}" >&2; }
refuse() { complain "$@"; exit 2; }
fail() { complain "$@"; exit 1; }

for name in RUN TPU_TYPE TPU_NAME PAUSE; do
  [[ ${!name-set} =~ [^[:space:]] ]] ||
    refuse "$name= is empty, perhaps a variable that is not set; give a value, or leave it out"
done
RUN=${RUN:-output} FLAGS=${FLAGS:-} CREATE=${CREATE:-} PAUSE=${PAUSE:-30}
TPU_TYPE=${TPU_TYPE:-v3-128} TPU_NAME=${TPU_NAME:-bert}

usage() {
  sed -n '/^#   cloud/,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$root/cloud/gcp_tpu.sh" >&2
  exit 2
}

check() { # checks the settings that train is given
  local bucket='^gs://[a-z0-9][a-z0-9._-]*(/[A-Za-z0-9._=-]+)*/?$'
  [[ ${BUCKET:-} =~ $bucket ]] ||
    refuse "BUCKET=${BUCKET:-}: give gs://bucket/folder, of letters, digits and . _ - ="
  [[ $TPU_TYPE =~ ^(v2|v3|v4|v5p|v5litepod|v6e)-[1-9][0-9]{0,4}$ ]] || refuse "TPU_TYPE=$TPU_TYPE: give" \
    "v2-N, v3-N, v4-N or v5p-N with N TensorCores, v5litepod-N (v5e) or v6e-N with N chips"
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

look() { # COMMAND...: prints what it answers, and in a dry run only the command
  if "$dry_run"; then show "$@"; else "$@" 2>&1; fi
}

tpus() { # HOW GROUP VERB ARGUMENT...
  "$1" gcloud compute tpus "${@:2}" --project="$GCP_PROJECT" --zone="$GCP_ZONE"
}

on_hosts() { # HOW WHICH COMMAND: all or 0; the chief, which prints and writes the log, is 0
  tpus "$1" tpu-vm ssh "$TPU_NAME" --worker="$2" --command="$3"
}

error_in() { grep -m 1 ERROR <<<"$1" || head -n 1 <<<"$1"; } # the line that says why

state() { # prints the request's state, and so the TPU's: ACTIVE while it is there; NOT_FOUND; or UNKNOWN and the reason
  local said fields=state.state,state.failedData.error.message
  if said=$(tpus look queued-resources describe "$TPU_NAME" "--format=value($fields)"); then
    echo "${said%$'\t'}" # gcloud ends an empty last column with a tab
  elif [[ $said == *NOT_FOUND* ]]; then
    echo NOT_FOUND
  else
    echo "UNKNOWN ($(error_in "$said"))"
  fi
}

# active, activating (between two starts), inactive (exit code 0), failed, absent; other: not this command
run_state() {
  local said ask="systemctl is-active \"bert@\$USER\""
  ask="if grep -qsxF -- $(printf %q "$(command_line)") bert/start.sh
then $ask; elif $ask; then echo other; else echo absent; fi"
  said=$(on_hosts look 0 "$ask") || true
  if "$dry_run"; then echo "$said"; return; fi
  said=$(grep -oxE 'active|activating|deactivating|inactive|failed|absent|other' <<<"$said" | tail -n 1) || true
  echo "${said:-unreachable}"
}

leave() { # however this script ends, it removes its archive and says what still costs money
  local code=$? found
  trap - EXIT
  if "$dry_run"; then exit "$code"; fi
  [[ -z $scratch ]] || rm -rf -- "$scratch"
  found=$(state)
  [[ $found == NOT_FOUND ]] || complain "$TPU_NAME is $found; it may cost money until: cloud/gcp_tpu.sh delete"
  exit "$code"
}

# Asks for the TPU where there is none, starts the run where it does not run, and watches it to its
# end, through preemptions. It may be stopped and repeated: the run is a service of the hosts.
train() {
  local now last='' attempts=0
  scratch=${TMPDIR:-/tmp}/bert-checkout.XXXXXX # mktemp makes a name that nobody can guess
  "$dry_run" || scratch=$(mktemp -d "$scratch")
  run git -C "$root" archive --format=tar.gz --output="$scratch/bert-checkout.tar.gz" HEAD
  if "$dry_run"; then state && request && run_state && start && return; fi
  while true; do
    now=$(state)
    [[ $now != ACTIVE ]] || now=$(run_state)
    [[ $now == "$last" ]] || echo "$TPU_NAME: $now"
    case $last,$now in
      ,UNKNOWN*) fail "cannot look for $TPU_NAME: $now" ;;
      ,NOT_FOUND) request ;;
      *,NOT_FOUND) fail "$TPU_NAME is gone, and this command has not deleted it" ;;
      *,FAILED*) fail "$TPU_NAME is not granted: $now; cloud/gcp_tpu.sh delete, then try again" ;;
      # Seen twice, because a TPU that is being deleted is in such a state for a moment.
      SUSPENDED,SUSPENDED) delete && request ;;
      *,absent | ,failed) # up to five times: ssh fails while a TPU VM starts, or is preempted
        ((++attempts <= 5)) ||
          fail "$TPU_NAME does not run; the lines above say why; then: cloud/gcp_tpu.sh train"
        start && attempts=0 || now=absent
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
  local said command create software=tpu-ubuntu2204-base
  case $TPU_TYPE in # cloud.google.com/tpu/docs/runtimes, for jax
    v5litepod-*) software=v2-alpha-tpuv5-lite ;;
    v5p-*) software=v2-alpha-tpuv5 ;;
    v6e-*) software=v2-alpha-tpuv6e ;;
  esac
  read -d '' -ra create <<<"$CREATE" || true
  command=(queued-resources create "$TPU_NAME" --node-id="$TPU_NAME" --accelerator-type="$TPU_TYPE"
    --runtime-version="$software" --quiet "${create[@]}")
  tpus show "${command[@]}"
  "$dry_run" || said=$(tpus look "${command[@]}") || fail "$TPU_NAME was not requested: $(error_in "$said")"
}

start() { # puts this commit and its environment on every host, and then starts it on all at once
  tpus run tpu-vm scp "$scratch/bert-checkout.tar.gz" "$TPU_NAME:bert-checkout.tar.gz" --worker=all &&
    on_hosts run all "$(setup)" &&
    on_hosts run all "$(service)"
}

setup() { # prints the commands of a host, whose own Python may be 3.10
  cat <<'END'
set -e
sudo apt-get -qq update; sudo apt-get -qq install --yes python3-venv
python3 -m venv uv; uv/bin/pip install --quiet uv; uv/bin/uv python install --quiet 3.13
mkdir -p bert && tar -xzf bert-checkout.tar.gz -C bert && cd bert
PYTHON="$(../uv/bin/uv python find --managed-python 3.13)" environment/setup.sh .venv environment/requirements-tpu.lock
END
}

service() { # prints the commands that install and start it, so that it outlives this connection
  cat <<END
set -e
cat >bert/start.sh <<'START'
cd bert || exit
$(command_line)
START
sudo cp bert/cloud/bert@.service /etc/systemd/system
sudo systemctl daemon-reload
sudo systemctl reset-failed 'bert@*'
sudo systemctl enable --quiet "bert@\$USER"
sudo systemctl restart "bert@\$USER"
END
}

command_line() { # of every host, quoted for its shell; jax finds the other hosts by itself
  local place=${BUCKET%/} devices=${TPU_TYPE#*-} flags
  # The two cores of a chip are two devices of jax on v2 and v3, and one on v4 and v5p.
  case $TPU_TYPE in v4-* | v5p-*) devices=$((devices / 2)) ;; esac
  read -d '' -ra flags <<<"$FLAGS" || true
  printf exec
  # Saved as often as the rules evaluate at this batch: every 28 updates.
  printf ' %q' .venv/bin/python run_pretraining.py --flagfile=configs/tpu_v3_128_bs8192.flags \
    --bert_config_file="$place/wiki/bert_config.json" \
    --init_checkpoint="$place/wiki/tf1_ckpt/model.ckpt-28252" \
    --input_file="$place/tfrecords/part-*" --eval_input_file="$place/tfrecords/eval_10k" \
    --output_dir="$place/$RUN" --save_checkpoints_steps=28 --num_tpu_cores="$devices" "${flags[@]}"
}

logs() { # prints the log until Ctrl-C
  on_hosts run 0 "$JOURNAL --follow" ||
    fail "the connection has ended, the run continues; then: cloud/gcp_tpu.sh logs"
}

delete() { # deletes the request, and with it the TPU
  tpus run queued-resources delete "$TPU_NAME" --force --quiet || true
  "$dry_run" || [[ $(state) == NOT_FOUND ]] || fail "$TPU_NAME is not deleted; the lines above say why"
}

[[ $#,$* =~ ^(1,(train|logs|delete)|2,(train|logs|delete)\ --dry-run)$ ]] || usage
action=$1 scratch=''
dry_run=$([[ $# == 1 ]] && echo false || echo true)
for name in GCP_PROJECT GCP_ZONE; do
  [[ ${!name:-} ]] || refuse "set $name; the first lines of cloud/gcp_tpu.sh explain it"
done
[[ $action != train ]] || check
trap leave EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
"$action"
