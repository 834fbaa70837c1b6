# shellcheck shell=bash
# Sourced by the launchers.

# count_gpus SCRIPT: prints how many GPUs nvidia-smi lists, 0 where there is none of it. Where it fails, it prints one
# line with its words instead: the job would compute on the CPU, and nobody would know why.
count_gpus() {
  local listed code=0
  command -v nvidia-smi >/dev/null || { echo 0; return; }
  listed=$(nvidia-smi --list-gpus 2>&1) || code=$?
  # A GPU that is lost has a line of other words among those of the others.
  if [ "$code" != 0 ] || grep -qvE '^( *(GPU|MIG|WARNING).*)?$' <<<"$listed"; then
    listed=$(tr -s '[:cntrl:]' ' ' <<<"$listed")
    listed=${listed% }
    echo "$1: nvidia-smi fails with exit code $code (${listed:0:300}): repair the driver, or give NUM_GPUS, 0 for the CPU" >&2
    return 1
  fi
  grep -c '^GPU' <<<"$listed" || true
}
