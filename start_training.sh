#!/usr/bin/env bash
# Runs on the host: trains in a container. Builds the image if it is missing.
#
#   DATA_DIR=tfrecords WIKI_DIR=wiki OUTPUT_DIR=output ./start_training.sh [options] [flags of run_pretraining.py]
#   ./start_training.sh --demo         the whole benchmark in miniature, needs no data
#
# Options:
#   --demo         run the demo into $OUTPUT_DIR/demo
#   --eval         evaluate the checkpoints in OUTPUT_DIR (eval_model.sh) instead of training
#   --finetune     fine-tune the run in OUTPUT_DIR on GLUE or SQuAD (finetune_model.sh); DATA_DIR holds the task's files
#   --detach       run in the background; prints the container's name and the host's PID of its process 1
#   --dry-run      print the command and do nothing
#   --help
#
# Environment:
#   DATA_DIR=./data WIKI_DIR=./wiki    mounted read-only: TFRecords and eval_10k; bert_config.json and checkpoint
#   OUTPUT_DIR=./output                mounted for writing; made if missing
#                                      each of the three may be gs://BUCKET/FOLDER, which is not mounted;
#                                      not OUTPUT_DIR with --demo or --finetune
#   GOOGLE_APPLICATION_CREDENTIALS=    key file for gs://; if not given, that of gcloud auth application-default login
#   TF_CONFIG, or what srun or mpirun sets, and JAX_COORDINATOR_ADDRESS    several hosts make one run: passed on, and the
#                                      container uses the host's network
#   NUM_GPUS=(all; 0 for --eval)       or as many as the job was given by CUDA_VISIBLE_DEVICES, NVIDIA_VISIBLE_DEVICES,
#                                      SLURM_STEP_GPUS or SLURM_JOB_GPUS: numbers, such as 2,3, or UUIDs
#   SEED=  EVAL_FILE=  INIT_CHECKPOINT=    see train_model.sh; the two paths are those in the container, below /data, /wiki or
#                                      /output, or gs://: a file in another folder is put, not linked, into one of these
#   TF_XLA_FLAGS=   TF_NUM_INTRAOP_THREADS=(all cores)  TF_NUM_INTEROP_THREADS=2    read by TensorFlow
#   ENGINE=(docker, else podman)
#   ACCELERATOR=(gpu; cpu without)     or gpu-cuda13: what the image has (docs/containers.md)
#   IMAGE=(mlperf-bert:ACCELERATOR)    BUILD_OPTIONS=(more arguments of the build)
#   MEMORY=(no limit)  such as 8g, without swap: a container that needs more is killed
#   RELABEL=yes    where SELinux is enforcing, the mounted folders get the label of containers' files (:z). RELABEL=no leaves
#                  them as they are, as a network file system needs, and starts the container without SELinux's separation
#   NAME=(a new one)  SHM_SIZE=1g      STOP_TIMEOUT=300: seconds that a stop waits for the checkpoint
set -euo pipefail
unset CDPATH
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

fail() { echo "start_training.sh: ${*//[[:cntrl:]]/?}" >&2; exit 1; }

. "$here/environment/launching.sh"
require_values DATA_DIR WIKI_DIR OUTPUT_DIR GOOGLE_APPLICATION_CREDENTIALS NUM_GPUS SEED INIT_CHECKPOINT ENGINE \
  ACCELERATOR IMAGE MEMORY RELABEL NAME SHM_SIZE STOP_TIMEOUT

program=./train_model.sh last='' demo='' detach='' dry_run='' hosts='' flags=() chosen=()
choose() { program=$1; [ "${chosen[*]:-}" = "$2" ] || chosen+=("$2"); }
for argument in "$@"; do
  previous=$last last=$argument
  case $argument in
    --demo) demo=yes; choose '' "$argument" ;;
    --eval) choose ./eval_model.sh "$argument" ;;
    --finetune) choose ./finetune_model.sh "$argument" ;;
    --detach) detach=yes ;;
    --dry-run) dry_run=yes ;;
    # The host's folder, as a campaign gives it to each run.
    --output_dir="${OUTPUT_DIR:-/output}") ;;
    --output_dir=/output|--output_dir=/output/*|--output_dir=gs://*) flags+=("$argument") ;;
    --output_dir=*) fail "$argument: only /output can be written in the container; give OUTPUT_DIR=${argument#*=} instead" ;;
    --help|-h) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    -*) flags+=("$argument") ;;
    *)
      # The value of a flag stands after its name, or behind =; the program refuses what a flag does not take.
      case $previous in
        ''|--demo|--eval|--finetune|--detach|--dry-run|*=*|[!-]*)
          fail "$argument: is not an option or a flag's value; give --name=value, and quote a pattern, as in '--input_file=/data/part-*'" ;;
      esac
      flags+=("$argument") ;;
  esac
done

[ ${#chosen[@]} -lt 2 ] || fail "${chosen[0]} and ${chosen[1]}: give one of them"

# Checks sizes and times that the engine would check only after the image is built.
size='^([0-9]+(\.[0-9]+)?[kmgtKMGT]?i?[bB]?)?$'
[[ ${RELABEL:=yes} =~ ^(yes|no)$ ]] || fail "RELABEL=$RELABEL: give yes or no, or leave it out"
for name in MEMORY SHM_SIZE; do
  [[ ${!name:-} =~ $size ]] || fail "$name=${!name}: give a size, such as 512m or 8g, or leave it out"
done
[[ ${STOP_TIMEOUT:-} =~ ^[0-9]{0,9}$ ]] || fail "STOP_TIMEOUT=$STOP_TIMEOUT: give whole seconds, or leave it out"
[[ ${NAME:-} =~ ^([a-zA-Z0-9][a-zA-Z0-9_.-]*)?$ ]] \
  || fail "NAME=$NAME: give letters, digits, _ . and -, the first one a letter or digit, or leave it out"

answers() { command -v "$1" >/dev/null && { [ "$dry_run" ] || "$1" info >/dev/null 2>&1; }; }

find_engine() {
  local engine
  for engine in docker podman; do
    if answers "$engine"; then echo "$engine"; return; fi
  done
  fail "no container engine answers: install docker or podman, or start its daemon; ENGINE=... selects another"
}
if [ -z "${ENGINE:-}" ]; then
  engine=$(find_engine)
elif answers "$ENGINE"; then
  engine=$ENGINE
else
  fail "ENGINE=$ENGINE does not answer: install it, start its daemon, or leave ENGINE out"
fi

# docker may be podman under another name. A rootless docker has mapped the root of its containers to this user.
is_podman='' rootless=''
case ${engine##*/} in
  podman*) is_podman=yes ;;
  *)
    options=$("$engine" info --format '{{.SecurityOptions}}' 2>/dev/null) || options=''
    if [ ! "$options" ]; then # it is podman, or a dry run without a daemon
      case $("$engine" --version 2>/dev/null || true) in podman*) is_podman=yes ;; esac
      options=${DOCKER_HOST:-}
    fi
    case $options in *name=rootless*|unix:///run/user/*/docker.sock) rootless=yes ;; esac ;;
esac

# --- GPUs: those that this job was given ----------------------------------------------------------------------
read_gpus() { # NAME of a variable: sets gpus
  local text=${!1//, /,} number='(0|[1-9][0-9]{0,3})' uuid='(GPU|MIG)-[0-9A-Za-z/-]+'
  gpus=()
  case $text in ''|none|void|NoDevFiles|-1) return ;; esac
  [[ $text =~ ^($number(,$number)*|$uuid(,$uuid)*)$ ]] \
    || fail "$1=${!1}: give numbers of GPUs, such as 2,3, or their UUIDs, or leave it out"
  IFS=, read -r -a gpus <<<"$text"
  [ ! "$(printf '%s\n' "${gpus[@]}" | sort | uniq -d)" ] || fail "$1=${!1} names a GPU twice; name each once"
}
is_given() { case " ${given[*]} " in *" $1 "*) ;; *) return 1 ;; esac; }

# The engine takes the host's numbers, which are those of nvidia-smi. Slurm's variables have them. CUDA_VISIBLE_DEVICES
# has them too, but where Slurm hides the other GPUs CUDA counts from 0: its 0,1 are the first two of SLURM_STEP_GPUS.
count_within_slurm() { # sets gpus to the host's numbers
  local gpu host=() counted=()
  for gpu in "${gpus[@]}"; do
    if is_given "$gpu"; then host+=("$gpu"); fi
    if [ "${given[gpu]:-}" ]; then counted+=("${given[gpu]}"); fi
  done
  if [ ${#host[@]} -lt ${#gpus[@]} ]; then host=("${counted[@]}"); fi
  if [ ${#counted[@]} -lt ${#gpus[@]} ]; then counted=("${host[@]}"); fi
  if [ ${#host[@]} -lt ${#gpus[@]} ] || [ "${host[*]}" != "${counted[*]}" ]; then
    fail "CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES: which of $giver=${!giver} are these? Give UUIDs, or leave it out"
  fi
  gpus=("${host[@]}")
}

choose_gpus() { # sets gpus, and giver to the variable that names them
  local name gpu given slurm=SLURM_JOB_GPUS # names GPUs of the job's first host; a step has its own
  if [ -n "${SLURM_STEP_GPUS+set}" ]; then slurm=SLURM_STEP_GPUS; fi
  gpus=() giver=''
  for name in $slurm CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES; do # each narrows the one before it
    if [ -z "${!name+set}" ] || [ "$name=${!name}" = NVIDIA_VISIBLE_DEVICES=all ]; then continue; fi
    given=("${gpus[@]}")
    read_gpus "$name"
    case $giver-${gpus[0]-} in
      -*|SLURM_*_GPUS-[GM]*) ;; # nothing to compare with: a UUID is the same everywhere
      *)
        case $giver-$name in SLURM_*-CUDA_*) count_within_slurm ;; esac
        for gpu in "${gpus[@]}"; do
          is_given "$gpu" || fail "$name=${!name} and $giver=${!giver} name different GPUs; leave out one of them"
        done ;;
    esac
    giver=$name
  done
}

num_gpus=${NUM_GPUS:-0}
[[ $num_gpus =~ ^[0-9]{1,4}$ ]] || fail "NUM_GPUS=$num_gpus: give a number, 0 for the CPU, or leave it out for all"
# An evaluation leaves the GPUs to the training, and runs in the same image. The demo computes on the CPU.
gpus=() on_cpu='' giver=''
if [ ! "${NUM_GPUS:-}" ] && { [ "$program" = ./eval_model.sh ] || [ "$demo" ]; }; then on_cpu=yes; fi
if [ ! "$on_cpu" ] && [ "${NUM_GPUS:-}" != 0 ]; then
  choose_gpus
  if [ "$giver" ]; then
    [ ${#gpus[@]} -gt 0 ] || fail "$giver=${!giver} leaves this job no GPU: choose some, or give NUM_GPUS=0 for the CPU"
    num_gpus=${NUM_GPUS:-${#gpus[@]}}
    [ "$num_gpus" -le ${#gpus[@]} ] \
      || fail "NUM_GPUS=$num_gpus: $giver=${!giver} leaves this job ${#gpus[@]}; give that many or fewer"
    gpus=("${gpus[@]:0:10#$num_gpus}")
  fi
fi
if [ "$on_cpu" ]; then
  num_gpus=$(count_gpus 2>/dev/null || echo 0)
elif [ ! "${NUM_GPUS:-}" ] && [ ! "$giver" ]; then
  num_gpus=$(count_gpus)
fi
accelerator=cpu
if [ "$num_gpus" -gt 0 ]; then accelerator=gpu; fi
if [ "$on_cpu" ]; then num_gpus=0; fi
: "${ACCELERATOR:=$accelerator}"
[[ $ACCELERATOR =~ ^(cpu|gpu(-cuda13)?)$ ]] \
  || fail "ACCELERATOR=$ACCELERATOR: give gpu, gpu-cuda13 or cpu; an image for TPUs is started by hand"
[ "$ACCELERATOR" != cpu ] || [ "$num_gpus" -eq 0 ] \
  || fail "ACCELERATOR=cpu: this image has nothing for GPUs; give NUM_GPUS=0 too, or leave ACCELERATOR out"
image=${IMAGE:-mlperf-bert:$ACCELERATOR}

# A shell leaves ~ in quotes as it is.
expand_home() { # NAME... of variables
  local name home=~
  for name in "$@"; do
    # shellcheck disable=SC2088 # what is looked for is the character
    case ${!name} in
      '~'|'~/'*) printf -v "$name" %s "$home${!name#'~'}" ;;
      '~'*) fail "${!name}: give the whole path, or ./${!name}" ;;
    esac
  done
}

# --- what to mount --------------------------------------------------------------------------------------------
data=${DATA_DIR:-./data} wiki=${WIKI_DIR:-./wiki} output=${OUTPUT_DIR:-./output}
expand_home data wiki output
content="part-* and eval_10k" model="it and tf1_ckpt"
if [ "$program" = ./finetune_model.sh ]; then content="the task's files, such as CoLA/train.tsv" model="it and vocab.txt"; fi
offer="or try it without data: ./start_training.sh --demo"
is_local() { case $1 in gs://*) return 1 ;; esac; }
if [ "$demo" ]; then
  is_local "$output" || fail "OUTPUT_DIR=$output: the demo writes to a local folder; name one"
else
  if [ "$program" = ./finetune_model.sh ] && ! is_local "$output"; then
    fail "OUTPUT_DIR=$output: fine-tuning reads and writes local folders; copy the run into one (gcloud storage rsync -r)"
  fi
  if is_local "$data"; then
    [ -d "$data" ] || fail "DATA_DIR=$data: no such folder; name the one with $content, $offer"
    [ "$(ls -- "$data" 2>/dev/null)" ] || fail "DATA_DIR=$data is empty; name the one with $content, $offer"
  fi
  if is_local "$wiki"; then
    [ -f "$wiki/bert_config.json" ] || fail "WIKI_DIR=$wiki: no bert_config.json; name the folder with $model, $offer"
  fi
fi
# Absolute without `cd`, which drops a line break at the end.
for name in data wiki output; do
  case ${!name} in ''|/*|gs://*) ;; *) printf -v "$name" %s "$PWD/${!name#./}" ;; esac
  case ${!name} in
    *[,\"$'\r\n']*) fail "${!name}: a mount cannot have a comma, quote or line break in its path; use a link without" ;;
  esac
done
if is_local "$output" && [ ! "$dry_run" ]; then
  mkdir -p "$output" 2>/dev/null || fail "OUTPUT_DIR=$output cannot be made; name a folder that you may write"
  [ -w "$output" ] || fail "OUTPUT_DIR=$output is not writable for you; fix its permissions or name another"
fi
key=${GOOGLE_APPLICATION_CREDENTIALS:-}
expand_home key
if [ "$key" ]; then
  [ -r "$key" ] || fail "GOOGLE_APPLICATION_CREDENTIALS=$key cannot be read; name a key file"
  case $key in /*) ;; *) key=$PWD/${key#./} ;; esac
else
  key=${HOME:-}/.config/gcloud/application_default_credentials.json
fi

selinux=$(getenforce 2>/dev/null || true)
if [ "$selinux" != Enforcing ] || [ "$RELABEL" = no ]; then relabel=''; else relabel=z; fi
mount() { # source target [,readonly]
  if [ "$relabel" ]; then
    # docker's --mount has no labels, and --volume separates by colons.
    case $1 in *:*) fail "$1: a mount with SELinux cannot have a colon in its path; use a link without, or RELABEL=no" ;; esac
    run+=(--volume "$1:$2:${3:+ro,}z")
  else
    run+=(--mount "type=bind,source=$1,target=$2${3-}")
  fi
}
place() { # source target variable [,readonly]: mounts a local folder; names one in a bucket to the programs
  if is_local "$1"; then mount "$1" "$2" "${4-}"; else run+=(--env "$3=$1"); buckets=yes; fi
}

# --- the command ----------------------------------------------------------------------------------------------
run=("$engine" run --rm --name "${NAME:-mlperf-bert-$(date +%H%M%S)-$$}")
user=$(id -u):$(id -g)
if [ "$rootless" ]; then user=0:0; fi # root inside the container is this user outside
run+=(--user "$user" --read-only --tmpfs "/tmp:rw,exec,nosuid,nodev" --cap-drop ALL)
run+=(--security-opt no-new-privileges --shm-size "${SHM_SIZE:-1g}" --stop-timeout "${STOP_TIMEOUT:-300}")
if [ -n "${MEMORY:-}" ]; then run+=(--memory "$MEMORY" --memory-swap "$MEMORY"); fi
# Limits stay within the host's hard ones: an engine without CAP_SYS_RESOURCE cannot raise them.
most=$(ulimit -H -n)
if [ "$most" = unlimited ]; then most=-1; fi
run+=(--ulimit "nofile=$most:$most")
if [ "$selinux" = Enforcing ] && [ ! "$relabel" ]; then run+=(--security-opt label=disable); fi
case $is_podman in
  yes)
    # podman itself lowers the number of processes to the kernel's pid_max.
    most=$(ulimit -H -u) pid_max=$(cat /proc/sys/kernel/pid_max 2>/dev/null || echo 32768)
    if [ "$most" = unlimited ] || [ "$most" -gt "$pid_max" ]; then most=$pid_max; fi
    run+=(--ulimit "nproc=$most:$most")
    if [ "$(id -u)" != 0 ]; then run+=(--userns=keep-id); fi
    if [ "$num_gpus" -gt 0 ]; then
      for gpu in "${gpus[@]-all}"; do run+=(--device "nvidia.com/gpu=$gpu"); done
    fi ;;
  *)
    # NCCL pins memory. A rootless engine cannot raise the hard limit of this user, in KiB.
    memlock=-1
    if [ "$rootless" ]; then memlock=$(ulimit -H -l); fi
    case $memlock in unlimited|-1) memlock=-1 ;; *) memlock=$((memlock * 1024)) ;; esac
    if [ "$num_gpus" -gt 0 ]; then
      # docker splits the value at commas, but not within quotes.
      listed=$(IFS=,; echo "${gpus[*]}")
      run+=(--gpus "${listed:+\"device=}${listed:-all}${listed:+\"}")
      run+=(--ulimit "memlock=$memlock" --ulimit stack=67108864)
    fi ;;
esac
if [ "$demo" ]; then
  mount "$output" /output
  command=(python -m demo --output_dir=/output/demo ${SEED:+--seed="$SEED"})
else
  buckets=''
  place "$data" /data DATA_DIR ,readonly
  if [ "$wiki" ]; then place "$wiki" /wiki WIKI_DIR ,readonly; fi
  place "$output" /output OUTPUT_DIR
  case "${EVAL_FILE-} ${INIT_CHECKPOINT-} ${flags[*]}" in *gs://*) buckets=yes ;; esac
  # Without a key file TensorFlow asks the machine, which knows its account on Google Cloud.
  if [ "$buckets" ] && [ -r "$key" ]; then
    mount "$key" /credentials.json ,readonly
    run+=(--env GOOGLE_APPLICATION_CREDENTIALS=/credentials.json)
  fi
  run+=(--env "NUM_GPUS=$num_gpus")
  for name in SEED EVAL_FILE INIT_CHECKPOINT TF_XLA_FLAGS TF_NUM_INTRAOP_THREADS TF_NUM_INTEROP_THREADS; do
    if [ -n "${!name+set}" ]; then run+=(--env "$name=${!name}"); fi
  done
  # The processes of several hosts connect at the hosts' addresses.
  for name in TF_CONFIG SLURM_{JOB_ID,NTASKS,PROCID,LOCALID} SLURM_STEP_{NUM_TASKS,NUM_NODES,NODELIST} \
    OMPI_MCA_orte_hnp_uri OMPI_COMM_WORLD_{SIZE,RANK,LOCAL_SIZE,LOCAL_RANK} JAX_COORDINATOR_ADDRESS; do
    if [ -n "${!name+set}" ]; then run+=(--env "$name=${!name}"); hosts=--network=host; fi
  done
  if [ "$hosts" ] && [ "$rootless" ]; then
    fail "several hosts need the host's network, which a rootless docker does not give; use podman, or docker as root"
  fi
  if [ "$hosts" ]; then run+=("$hosts"); fi
  # For --drop_caches: only the host's root may empty the page cache. /proc/sys itself is read-only in a container.
  case " ${flags[*]} " in
    *-drop_caches[\ =]*) # not --nodrop_caches
      control=/proc/sys/vm/drop_caches
      if [ -w "$control" ] && [ "$(id -u)" = 0 ] && [ ! "$rootless" ]; then
        run+=(--mount "type=bind,source=$control,target=/drop_caches")
      fi ;;
  esac
  command=("$program")
fi
if [ "$detach" ]; then run+=(--detach); elif [ -t 0 ] && [ -t 1 ]; then run+=(--tty --interactive); fi
command+=("${flags[@]}")

if [ "$dry_run" ]; then printf '%q ' "${run[@]}" "$image" "${command[@]}"; echo; exit 0; fi

# --- build, run -----------------------------------------------------------------------------------------------
image_id() { "$engine" image inspect --format '{{.Id}}' "$image" 2>/dev/null; }
if ! id=$(image_id); then
  echo "building the image $image, once" >&2
  # BUILD_OPTIONS is a list of words.
  # shellcheck disable=SC2086
  "$engine" build --tag "$image" --build-arg "ACCELERATOR=$ACCELERATOR" \
    --build-arg "COMMIT=$(git -C "$here" rev-parse HEAD 2>/dev/null || echo unknown)" \
    ${BUILD_OPTIONS:-} "$here" >&2 || fail "the image could not be built; BUILD_OPTIONS=... adds arguments to the build"
  id=$(image_id) || id=unknown
fi
run+=(--env "MLPERF_BERT_IMAGE=$id") # for the record of what a run was made with
if [ "$detach" ]; then
  container=$("${run[@]}" "$image" "${command[@]}")
  pid=$("$engine" inspect --format '{{.State.Pid}}' "$container")
  echo "container $("$engine" inspect --format '{{.Name}}' "$container" | tr -d /)  host PID $pid"
  exit 0
fi
exec "${run[@]}" "$image" "${command[@]}"
