# shellcheck shell=bash
# Sourced by the launchers. The name of a launcher stands before what it says.

# require_values NAME...: ends the launcher if a variable is empty, as one that is not set leaves it: it would mean
# another folder, no limit, or a random seed.
require_values() {
  local name
  for name in "$@"; do
    [[ ${!name-set} =~ [^[:space:]] ]] ||
      { echo "${0##*/}: $name= is empty, perhaps a variable that is not set; give a value, or leave it out" >&2; exit 1; }
  done
}

# Process 1 of a container ignores what it does not handle; python does, from its first moment.
end_by_signals() {
  trap 'exit 129' HUP
  trap 'exit 130' INT
  trap 'exit 138' USR1
  trap 'exit 140' USR2
  trap 'exit 143' TERM
}

# count_gpus: prints how many GPUs nvidia-smi lists, 0 where there is none of it. Where it fails, it prints one line with
# its words instead: the job would compute on the CPU, and nobody would know why.
count_gpus() {
  local listed code=0
  command -v nvidia-smi >/dev/null || { echo 0; return; }
  listed=$(nvidia-smi --list-gpus 2>&1) || code=$?
  # A lost GPU has a line with other words, among the lines of the others.
  if [ "$code" != 0 ] || grep -qvE '^( *(GPU|MIG|WARNING).*)?$' <<<"$listed"; then
    listed=$(tr -s '[:cntrl:]' ' ' <<<"$listed")
    listed=${listed% }
    echo "${0##*/}: nvidia-smi fails with exit code $code (${listed:0:300}): repair the driver, or give NUM_GPUS, 0 for the CPU" >&2
    return 1
  fi
  grep -c '^GPU' <<<"$listed" || true
}

# count_visible_gpus: NUM_GPUS, else those that CUDA sees: of what nvidia-smi lists what CUDA_VISIBLE_DEVICES names, without
# a container or in Apptainer's.
count_visible_gpus() {
  if [ "${NUM_GPUS:-}" ]; then
    echo "$NUM_GPUS"
  elif [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then
    tr , '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -cE '^ *([0-9]|GPU|MIG-)' || true
  else
    count_gpus
  fi
}
