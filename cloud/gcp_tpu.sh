#!/usr/bin/env bash
# BERT on a TPU, by default a v3-128, and a small TPU that evaluates its checkpoints. See docs/clusters.md.
#
#   cloud/gcp_tpu.sh create | setup | train | eval | watch | logs [eval] | status | delete  [--dry-run]
#
# Settings, from the environment:
#   GCP_PROJECT, GCP_ZONE   where
#   BUCKET                  gs://bucket/folder with wiki/ and tfrecords/; the run writes to it. Or instead:
#   SHARE                   host:/folder of an NFS share (Filestore); every host mounts it as /mnt/bert
#   RUN                     folder of the run in BUCKET or SHARE, by default output
#   TPU_TYPE                v3-128, or v2-N, v3-N, v4-N, v5p-N (N TensorCores), v5litepod-N, v6e-N (N chips);
#                           refused if a step needs more than twice the memory of a core: see --steps_per_update
#   SPOT=1, RESERVED=1      asks for spot capacity, for reserved capacity
#   VALID_UNTIL             gives up waiting for capacity after this time, such as 6h; else it waits for ever
#   FLAGS                   more flags of run_pretraining.py for the training
#   TPU_NAME, TPU_VERSION   by default bert-train, and the software is looked up
#   EVAL_TPU_TYPE, EVAL_FLAGS, EVAL_TPU_NAME, EVAL_TPU_VERSION    the same for the evaluator: by default
#                           type 8 of the same family, such as v3-8, or none for no evaluator; and bert-eval
#   PAUSE                   seconds between two looks, by default 30
set -euo pipefail
unset CDPATH

readonly MOUNT=/mnt/bert
readonly TENSORFLOW=2.20.0 # as in environment/requirements-tpu.lock
readonly PRESET=configs/tpu_v3_128_bs8192.flags
readonly UNITS=/etc/systemd/system
root=$(cd "$(dirname "$0")/.." && pwd)

complain() { echo "gcp_tpu.sh: ${*//[[:cntrl:]]/?}" >&2; }
refuse() { complain "$@"; exit 2; }

for name in RUN VALID_UNTIL TPU_TYPE TPU_NAME EVAL_TPU_TYPE EVAL_TPU_NAME PAUSE; do
  [[ ${!name-set} =~ [^[:space:]] ]] ||
    refuse "$name= is empty, perhaps a variable that is not set; give a value, or leave it out"
done

BUCKET=${BUCKET:-} SHARE=${SHARE:-} RUN=${RUN:-output}
SPOT=${SPOT:-} RESERVED=${RESERVED:-} VALID_UNTIL=${VALID_UNTIL:-} PAUSE=${PAUSE:-30}
TPU_TYPE=${TPU_TYPE:-v3-128} FLAGS=${FLAGS:-}
TPU_NAME=${TPU_NAME:-bert-train} TPU_VERSION=${TPU_VERSION:-}
EVAL_TPU_TYPE=${EVAL_TPU_TYPE:-${TPU_TYPE%-*}-8} EVAL_FLAGS=${EVAL_FLAGS:-}
EVAL_TPU_NAME=${EVAL_TPU_NAME:-bert-eval} EVAL_TPU_VERSION=${EVAL_TPU_VERSION:-}

# --- settings ---------------------------------------------------------------------------------------

usage() {
  echo "usage: cloud/gcp_tpu.sh create | setup | train | eval | watch | logs [eval] |" \
    "status | delete  [--dry-run]" >&2
  sed -n '/^# Settings/,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$root/cloud/gcp_tpu.sh" >&2
  exit 2
}

fail() { complain "$@"; exit 1; }

require() { # NAME...: settings that must be given
  local name missing=()
  for name in "$@"; do [[ -n ${!name:-} ]] || missing+=("$name"); done
  ((${#missing[@]} == 0)) ||
    refuse "set ${missing[*]}; the first lines of cloud/gcp_tpu.sh explain them"
}

setting() { # ROLE NAME: prints TPU_NAME for train, EVAL_TPU_NAME for eval, and so on
  local name=$2
  [[ $1 == train ]] || name=EVAL_$2
  printf %s "${!name}"
}

check_place() {
  [[ $BUCKET$SHARE ]] ||
    refuse "set BUCKET or SHARE; the first lines of cloud/gcp_tpu.sh explain them"
  if [[ $BUCKET && $SHARE ]]; then refuse "BUCKET and SHARE exclude each other; unset one of them"; fi
  if [[ $SHARE && $SHARE != [!-]*:/* ]]; then refuse "SHARE=$SHARE: give host:/folder of an NFS share"; fi
  if [[ $BUCKET && ! $BUCKET =~ ^gs://[a-z0-9][a-z0-9._-]*(/[A-Za-z0-9._=-]+)*/?$ ]]; then
    refuse "BUCKET=$BUCKET: give gs://bucket/folder, of letters, digits and . _ - ="
  fi
  place=${BUCKET%/}
  place=${place:-$MOUNT}
}

check_types() { # the batches of the preset must be whole on every core
  local role type flags cores flag size prefix=
  for role in "${roles[@]}"; do
    [[ $role == train ]] || prefix=EVAL_
    type=$(setting "$role" TPU_TYPE)
    [[ $type =~ ^(v2|v3|v4|v5p|v5litepod|v6e)-[1-9][0-9]{0,4}$ ]] || refuse "${prefix}TPU_TYPE=$type: give" \
      "v2-N, v3-N, v4-N or v5p-N with N TensorCores, v5litepod-N (v5e) or v6e-N with N chips"
    read_flags "$role"
    cores=$(value_of num_tpu_cores "${flags[@]}")
    for flag in train_batch_size eval_batch_size; do
      if [[ $role$flag == evaltrain_batch_size ]]; then continue; fi
      size=$(value_of "$flag" "${flags[@]}")
      [[ $cores =~ ^[1-9][0-9]{0,5}$ && $size =~ ^[1-9][0-9]{0,8}$ ]] ||
        refuse "${prefix}FLAGS: --num_tpu_cores=$cores --$flag=$size: give positive numbers"
      ((size % cores == 0)) || refuse "${prefix}TPU_TYPE=$type has $cores cores, which cannot share" \
        "--$flag=$size equally; choose another, or set ${prefix}FLAGS=--$flag=$(((size / cores + 1) * cores))"
      [[ $role$flag != traintrain_batch_size ]] || check_fit "$type" $((size / cores)) "${flags[@]}"
    done
  done
}

check_fit() { # TYPE EXAMPLES FLAG...: of a core; a step that needs twice its memory is not rented for
  local type=$1 examples=$2 fitting advice
  shift 2
  [[ $(value_of precision "$@") == bfloat16 && $(value_of recompute "$@") == blocks ]] || return 0
  case ${type%-*} in # by the estimate of mlperf_bert/training/memory.py
    v2) fitting=68 ;;
    v3) fitting=214 ;;
    v4) fitting=493 ;;
    v5litepod) fitting=219 ;;
    v5p) fitting=1681 ;;
    v6e) fitting=502 ;;
  esac
  advice="raise --steps_per_update and divide --train_batch_size by it (docs/clusters.md)"
  ((examples <= 2 * fitting)) ||
    refuse "TPU_TYPE=$type: $examples examples of a core do not fit, about $fitting do; $advice"
  ((examples <= fitting)) || complain "warning: TPU_TYPE=$type: $examples examples of a core may" \
    "not fit, about $fitting do; $advice"
}

read_flags() { # ROLE: puts its own flags into flags
  local type
  type=$(setting "$1" TPU_TYPE)
  read -d '' -ra flags <<<"--num_tpu_cores=${type##*-} $(setting "$1" FLAGS)" || true
}

value_of() { # NAME FLAG...: prints the last value of a flag, in the preset and then the given flags
  local name=$1
  shift
  { cat "$root/$PRESET" && printf '%s\n' "$@"; } | sed -n "s/^--$name=//p" | tail -n 1
}

# --- gcloud -----------------------------------------------------------------------------------------

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
  for attempt in 1 2 3 4; do
    if "$@"; then return; fi
    complain "attempt $attempt of 5 failed; the next in $PAUSE seconds"
    sleep "$PAUSE"
  done
  "$@"
}

look() { # COMMAND...: prints what it answers, and in a dry run only the command
  if "$dry_run"; then show "$@"; else "$@" 2>&1; fi
}

tpus() { # HOW GROUP VERB ARGUMENT...
  local how=$1 group=$2 verb=$3
  shift 3
  "$how" gcloud compute tpus "$group" "$verb" "$@" --project="$GCP_PROJECT" --zone="$GCP_ZONE"
}

on_first_host() { # HOW ROLE COMMAND
  tpus "$1" tpu-vm ssh "$(setting "$2" TPU_NAME)" --worker=0 --command="$3"
}

answer() { # COMMAND...: prints its answer, NOT_FOUND, or UNKNOWN and the reason
  local said
  if said=$("$@"); then
    echo "${said%$'\t'}" # gcloud ends an empty last column with a tab
  elif [[ $said == *NOT_FOUND* ]]; then
    echo NOT_FOUND
  else
    echo "UNKNOWN ($(error_in "$said"))"
  fi
}

error_in() { grep -m 1 ERROR <<<"$1" || head -n 1 <<<"$1"; } # the line that says why

request_state() { # ROLE: of the queued resource
  answer tpus look queued-resources describe "$(setting "$1" TPU_NAME)" \
    '--format=value(state.state,state.failedData.error.message)'
}

node_state() { # ROLE: of the TPU VM
  answer tpus look tpu-vm describe "$(setting "$1" TPU_NAME)" '--format=value(state)'
}

state() { # ROLE: of the TPU VM; of its request while there is none
  local request node
  if "$dry_run"; then request_state "$1" && node_state "$1" && return; fi
  request=$(request_state "$1")
  case $request in
    NOT_FOUND) node_state "$1" ;; # made without a request
    ACTIVE*)
      node=$(node_state "$1")
      echo "${node/#NOT_FOUND/SUSPENDED}"
      ;;
    *) echo "$request" ;;
  esac
}

run_state() { # ROLE: active, activating (between two starts), inactive (exit code 0), failed, absent
  local said
  said=$(on_first_host look "$1" \
    "systemctl is-active \"bert@\$USER\" || test -e $UNITS/bert@.service || echo absent") || true
  if "$dry_run"; then echo "$said"; return; fi
  said=$(grep -oxE 'active|activating|deactivating|inactive|failed|absent' <<<"$said" | tail -n 1) || true
  echo "${said:-unreachable}"
}

advice() { # TEXT: what to do about it
  case $1 in
    *[Qq]uota*)
      echo "ask for more quota (console: IAM, Quotas, Cloud TPU API), or change TPU_TYPE, GCP_ZONE or SPOT" ;;
    *PERMISSION_DENIED* | *credential* | *auth*login* | *"active account"*)
      echo "sign in with: gcloud auth login; $GCP_PROJECT must give you the role roles/tpu.admin" ;;
    *INVALID_ARGUMENT*)
      echo "$GCP_ZONE may not have this type: gcloud compute tpus accelerator-types list --zone=$GCP_ZONE" ;;
    *capacity* | FAILED* | SUSPEND* | PREEMPTED | TERMINATED)
      echo "no capacity, it seems: try again later, with SPOT=1, or in another GCP_ZONE" ;;
    *) echo "when that is right, the same command again" ;;
  esac
}

# However this script ends, it removes its archive and names what still costs money.
leave() {
  local code=$? role name found
  trap - EXIT
  if ! "$dry_run" && [[ $scratch ]]; then rm -rf -- "$scratch"; fi
  if "$dry_run" || [[ $action == status ]]; then exit "$code"; fi
  for role in train eval; do
    name=$(setting "$role" TPU_NAME)
    found=$(state "$role")
    case $found in
      NOT_FOUND) ;;
      UNKNOWN*) complain "cannot tell whether $name still runs; look in the console: $found" ;;
      CREATING | ACCEPTED | WAITING_FOR_RESOURCES | PROVISIONING)
        complain "$name is $found and will cost money when it is granted, unless: cloud/gcp_tpu.sh delete" ;;
      FAILED* | SUSPENDED | PREEMPTED | TERMINATED)
        complain "$name is ${found%%[[:space:]]*} and costs nothing;" \
          "its request stays until: cloud/gcp_tpu.sh delete" ;;
      *) complain "$name is $found and costs money until: cloud/gcp_tpu.sh delete" ;;
    esac
  done
  exit "$code"
}

# --- the verbs --------------------------------------------------------------------------------------

create() {
  local role now=NOT_FOUND
  for role in "${roles[@]}"; do
    "$dry_run" || now=$(state "$role")
    require_answer "$role" "$now"
    if [[ $now == NOT_FOUND ]]; then request "$role"; fi
  done
  for role in "${roles[@]}"; do wait_for "$role"; done
}

require_answer() { # ROLE STATE
  [[ $2 != UNKNOWN* ]] || fail "cannot look for $(setting "$1" TPU_NAME): $2; $(advice "$2")"
}

request() { # ROLE: queues a request for its TPU
  local name said command
  name=$(setting "$1" TPU_NAME)
  choose_version "$1"
  command=(queued-resources create "$name" --node-id="$name"
    --accelerator-type="$(setting "$1" TPU_TYPE)" --runtime-version="$version" --quiet)
  [[ $SPOT != 1 ]] || command+=(--spot)
  [[ $RESERVED != 1 ]] || command+=(--reserved)
  [[ -z $VALID_UNTIL ]] || command+=("--valid-until-duration=$VALID_UNTIL")
  tpus show "${command[@]}"
  if "$dry_run"; then return; fi
  said=$(tpus look "${command[@]}") ||
    fail "$name was not requested: $(error_in "$said"); $(advice "$said")"
}

# Sets version. All hosts of a pod run the TensorFlow of their software, so it must fit the training's.
choose_version() { # ROLE
  local type pod='' suffix=v5p-and-below command offered fitting prefix=''
  version=$(setting "$1" TPU_VERSION)
  if [[ $version ]]; then return; fi
  type=$(setting "$1" TPU_TYPE)
  ((${type##*-} <= 8)) || pod=-pod
  [[ $type != v5litepod-* && $type != v6e-* ]] || suffix=v5e-and-v6
  version=tpu-vm-tf-$TENSORFLOW$pod-pjrt
  command=(tpu-vm versions list '--format=value(version)')
  tpus show "${command[@]}"
  if "$dry_run"; then return; fi
  offered=$(tpus look "${command[@]}") ||
    fail "cannot list the TPU software of $GCP_ZONE: $(error_in "$offered"); $(advice "$offered")"
  fitting=$(grep -xE "tpu-vm-tf-[0-9.]+$pod-pjrt(-$suffix)?" <<<"$offered" | sort -V) || true
  if ! grep "^tpu-vm-tf-${TENSORFLOW%.*}\." <<<"$fitting" >/dev/null; then
    [[ $1 == train ]] || prefix=EVAL_
    fail "$GCP_ZONE has no $version; the nearest is $(nearest_to "$version" "$fitting"):" \
      "choose another GCP_ZONE, or try it with ${prefix}TPU_VERSION=..."
  fi
  version=$(grep "^tpu-vm-tf-${TENSORFLOW%.*}\." <<<"$fitting" | tail -n 1)
}

nearest_to() { # VERSION LIST: prints its neighbour, the older one if there is one
  [[ $2 ]] || { echo none; return; }
  printf '%s\n' "$1" "$2" | sort -V | grep -xF -B 1 -A 1 -- "$1" | grep -vxF -m 1 -- "$1"
}

wait_for() { # ROLE: until its TPU is there
  local name now last=''
  name=$(setting "$1" TPU_NAME)
  if "$dry_run"; then state "$1"; return; fi
  while true; do
    now=$(state "$1")
    [[ $now == "$last" ]] || echo "$name: $now"
    case $now in
      READY) return ;;
      FAILED* | SUSPEND* | PREEMPTED | TERMINATED | NOT_FOUND)
        fail "$name is not granted: $now; cloud/gcp_tpu.sh delete, then: $(advice "$now")" ;;
    esac
    last=$now
    sleep "$PAUSE"
  done
}

setup() {
  local role
  pack
  for role in "${roles[@]}"; do prepare "$role"; done
}

pack() { # sets scratch, with the archive of this commit
  scratch=${TMPDIR:-/tmp}/bert-checkout.XXXXXX # mktemp makes a name that nobody can guess
  "$dry_run" || scratch=$(mktemp -d "$scratch")
  run git -C "$root" archive --format=tar.gz --output="$scratch/bert-checkout.tar.gz" HEAD
}

prepare() { # ROLE: puts this commit and its environment on every host
  local name after="the lines above say why; then: cloud/gcp_tpu.sh setup"
  name=$(setting "$1" TPU_NAME)
  again tpus run tpu-vm scp "$scratch/bert-checkout.tar.gz" "$name:bert-checkout.tar.gz" --worker=all ||
    fail "$name did not get the checkout; $after"
  again tpus run tpu-vm ssh "$name" --worker=all --command="$(on_each_host)" ||
    fail "$name is not set up; $after"
}

on_each_host() { # prints the commands of setup
  local packages=python3.11-venv
  [[ -z $SHARE ]] || packages="nfs-common $packages"
  cat <<END
set -e
sudo apt-get -qq update
sudo apt-get -qq install --yes $packages
$(mounting)
mkdir -p bert && tar -xzf bert-checkout.tar.gz -C bert && cd bert
PYTHON=python3.11 environment/setup.sh .venv environment/requirements-tpu.lock
END
}

mounting() { # prints the commands that mount the share, if there is one
  [[ -z $SHARE ]] || printf '%s\n' "sudo mkdir -p $MOUNT" \
    "mountpoint -q $MOUNT || sudo mount -t nfs $(printf %q "$SHARE") $MOUNT"
}

start() { # ROLE: as a service of the first host, which outlives this connection and restarts the run
  again on_first_host run "$1" "$(service "$1")" ||
    fail "$(setting "$1" TPU_NAME) does not run; the lines above say why; then: cloud/gcp_tpu.sh $1"
}

service() { # ROLE: prints the commands that install and start it
  cat <<END
set -e
cat >bert/start.sh <<'START'
set -e
cd bert
$(mounting)
$("command_to_$1")
START
sudo cp bert/cloud/bert@.service $UNITS
sudo systemctl daemon-reload
sudo systemctl reset-failed 'bert@*'
sudo systemctl enable --quiet --now "bert@\$USER"
END
}

command_to_train() { # one process, on the first host, drives the cores of all hosts over the network
  local type=${TPU_TYPE##*-} pod=()
  ((type <= 8)) || pod=(--tpu_name="$TPU_NAME" --tpu_zone="$GCP_ZONE" --gcp_project="$GCP_PROJECT")
  ((type <= 8)) || printf 'export TPU_LOAD_LIBRARY=0\n'
  printf 'export TPU_ACCELERATOR_TYPE=%q\n' "$TPU_TYPE" # from it a run knows the memory of a core
  pretraining train --init_checkpoint="$place/wiki/tf1_ckpt/model.ckpt-28252" \
    --input_file="$place/tfrecords/part-*" ${pod[@]+"${pod[@]}"}
}

command_to_eval() { # waits for the run, then for its checkpoints, until one reaches the target
  local record=$place/$RUN/run.json look='test -e' flags
  read_flags train
  [[ -z $BUCKET ]] || look='gcloud storage ls'
  printf 'until %s %q; do sleep 30; done\n' "$look" "$record"
  pretraining eval --nodo_train --do_eval --input_file="$place/tfrecords/eval_10k" \
    --num_train_steps="$(value_of num_train_steps "${flags[@]}")"
}

pretraining() { # ROLE FLAG...: the command line of run_pretraining.py, quoted for a remote shell
  local flags
  read_flags "$1"
  shift
  printf 'exec'
  printf ' %q' .venv/bin/python run_pretraining.py --flagfile="$PRESET" \
    --bert_config_file="$place/wiki/bert_config.json" --output_dir="$place/$RUN" "$@" "${flags[@]}"
}

# Keeps the run going, until the evaluator has ended, or the training where there is no evaluator.
watch() {
  local i role name now why last=('' '') ended=('' '')
  pack
  if "$dry_run"; then # what happens when all is preempted
    for role in "${roles[@]}"; do renew "$role"; done
    return
  fi
  while true; do
    for i in "${!roles[@]}"; do
      [[ -z ${ended[i]} ]] || continue
      role=${roles[i]}
      name=$(setting "$role" TPU_NAME)
      now=$(state "$role")
      [[ $now != READY ]] || now=$(run_state "$role")
      [[ ${last[i]} ]] || require_answer "$role" "$now"
      [[ $now == "${last[i]}" ]] || echo "$name: $now"
      case $now in
        SUSPENDED | PREEMPTED | TERMINATED) keep_trying "$role" renew ;;
        absent) keep_trying "$role" resume ;;
        NOT_FOUND | FAILED*) fail "$name is not there: $now; cloud/gcp_tpu.sh delete, then create" ;;
        failed) # seen twice: at a preemption the run can fail before the TPU is gone
          why="cloud/gcp_tpu.sh logs"
          [[ $role == train ]] || why+=" eval"
          [[ ${last[i]} != failed ]] || fail "the run on $name has failed, for good; why: $why"
          ;;
        inactive)
          echo "$name: the run has ended"
          ended[i]=yes
          ;;
      esac
      last[i]=$now
    done
    [[ -z ${ended[${#roles[@]} - 1]} ]] || return 0
    sleep "$PAUSE"
  done
}

keep_trying() { # ROLE VERB: a TPU that is preempted meanwhile is no failure
  ("$2" "$1") || [[ $(state "$1") != READY ]] ||
    fail "$(setting "$1" TPU_NAME) does not run; the lines above say why; then: cloud/gcp_tpu.sh watch"
}

renew() { # ROLE: gives back what is left of a preempted TPU, and asks for another
  remove "$1" || fail "$(setting "$1" TPU_NAME) is not deleted; the lines above say why"
  request "$1"
  wait_for "$1"
  resume "$1"
}

resume() { # ROLE: on a TPU that has nothing yet
  prepare "$1"
  start "$1"
}

logs() { # of the training or the evaluator, from the last 100 lines on, until Ctrl-C
  on_first_host run "$logs_of" \
    "sudo journalctl --unit=\"bert@\$USER\" --output=cat --lines=100 --follow" ||
    fail "the connection has ended, the run goes on; then: cloud/gcp_tpu.sh logs"
}

status() {
  local role name now
  for role in train eval; do
    if "$dry_run"; then state "$role"; run_state "$role"; continue; fi
    name=$(setting "$role" TPU_NAME)
    now=$(state "$role")
    [[ $now != READY ]] || now="READY, the run is $(run_state "$role")"
    echo "$name: $now"
  done
}

delete() { # both are tried, even if one fails
  local failed=0
  remove train || failed=1
  remove eval || failed=1
  return "$failed"
}

remove() { # ROLE: deletes its request, with the TPU, and a TPU that was made without a request
  local name failed=0
  name=$(setting "$1" TPU_NAME)
  gone "$name: request" "$(request_state "$1")" ||
    tpus run queued-resources delete "$name" --force --quiet || failed=1
  gone "$name: TPU" "$(node_state "$1")" ||
    tpus run tpu-vm delete "$name" --quiet || failed=1
  return "$failed"
}

gone() { # WHAT STATE: says what was found; whether there is nothing to delete
  if "$dry_run"; then echo "$2"; return 1; fi
  echo "$1 ${2/#NOT_FOUND/not there}"
  [[ $2 == NOT_FOUND ]]
}

action=${1:-} dry_run=false scratch='' logs_of='train' version='' place=''
shift || true
if [[ $action == logs && ${1:-} == eval ]]; then
  logs_of='eval'
  shift
fi
case $*,$# in
  --dry-run,1) dry_run=true ;;
  ,0) ;;
  *) usage ;;
esac
roles=(train)
[[ $EVAL_TPU_TYPE == none ]] || roles+=(eval)
case $action in
  create | setup | train | eval | watch | logs | status | delete) require GCP_PROJECT GCP_ZONE ;;
  *) usage ;;
esac
"$dry_run" || command -v gcloud >/dev/null ||
  refuse "no gcloud here; install the Google Cloud CLI, or use --dry-run"
for name in SPOT RESERVED; do
  [[ ${!name} =~ ^[01]?$ ]] || refuse "$name=${!name}: give 1, or leave it out"
done
case $action in setup | train | eval | watch) check_place ;; esac
case $action in create | train | eval | watch) check_types ;; esac
[[ $TPU_NAME != "$EVAL_TPU_NAME" ]] || refuse "TPU_NAME and EVAL_TPU_NAME are both $TPU_NAME; change one"
[[ $action$EVAL_TPU_TYPE != evalnone ]] || refuse "EVAL_TPU_TYPE=none: there is no evaluator"
trap leave EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
case $action in
  train | eval) start "$action" ;;
  *) "$action" ;;
esac
