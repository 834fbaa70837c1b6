#!/usr/bin/env bash
# Makes ./results/part-00XXX-of-00500, eval.txt and eval.md5 from the files of WikiExtractor.
#
#   cleanup_scripts/process_wiki.sh 'wiki/text/??/wiki_??'
#   cleanup_scripts/process_wiki.sh 'corpus/*.parquet'
#
# Quote the glob. The stages leave .1 to .4 beside the raw files. Environment, with the benchmark's
# values: NUM_TEST_ARTICLES=10000 BLOCK_SIZE=26.92 (MB) RESULTS=./results NWORKER=(cores)
# PUNKT=(nltk's punkt_tab/english) PYTHON=(the checkout's .venv, else python3)
#
# A glob that ends with .parquet, .jsonl or .json, the last two also with .gz or .zst: first their text is written to
# TEXT_DIR=./text as WikiExtractor would. TEXT_COLUMN=text names the column or key that holds it.
set -euo pipefail
unset CDPATH

if [ $# -ne 1 ]; then
  echo "usage: process_wiki.sh 'GLOB'    one argument: quote the glob, as in 'text/??/wiki_??'" >&2
  exit 2
fi
for name in NUM_TEST_ARTICLES BLOCK_SIZE RESULTS NWORKER PUNKT TEXT_DIR TEXT_COLUMN; do
  [[ ${!name-set} =~ [^[:space:]] ]] ||
    { echo "process_wiki.sh: $name= is empty, perhaps a variable that is not set; give a value, or leave it out" >&2; exit 1; }
done
scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=$("$scripts/interpreter.sh")
results=${RESULTS:-./results}
workers=${NWORKER:-$(nproc)}

# Adds a script and its flags to those that run at the end, in one process.
scripts_and_flags=()
add() { scripts_and_flags+=(-- "$@"); }
stage() { add "$1" --data="$glob" "${@:2}"; }
gather() { stage do_gather.py --input_suffix=.4 --block_size="${BLOCK_SIZE:-26.92}" --out_dir="$results" "$@"; }
glob=$1

case $glob in
  *.parquet | *.json | *.jsonl | *.json.gz | *.jsonl.gz | *.json.zst | *.jsonl.zst)
    stage extract_documents.py --out_dir="${TEXT_DIR:-./text}" --nworker="$workers" \
      --text_column="${TEXT_COLUMN:-text}"
    glob="${TEXT_DIR:-./text}/*/wiki_??????"
    ;;
esac
gather --check # a folder with other parts is refused before anything in it changes
stage cleanup_file.py --output_suffix=.1 --nworker="$workers"
stage clean.py --input_suffix=.1 --output_suffix=.2 --nworker="$workers"
stage do_sentence_segmentation.py --input_suffix=.2 --output_suffix=.3 --nworker="$workers" \
  ${PUNKT:+--punkt="$PUNKT"}
stage seperate_test_set.py --input_suffix=.3 --output_suffix=.4 --nworker="$workers" \
  --num_test_articles="${NUM_TEST_ARTICLES:-10000}" --test_output="$results/eval"
gather
# Otherwise glibc gives the memory of every text back, and the kernel clears it for the next one: a tenth of the time. Each process
# may keep 100 MB for that; set the variables lower where memory is short.
export MALLOC_TRIM_THRESHOLD_=${MALLOC_TRIM_THRESHOLD_:-100000000} MALLOC_MMAP_THRESHOLD_=${MALLOC_MMAP_THRESHOLD_:-100000000}
exec "$python" "$scripts/clean_up.py" "${scripts_and_flags[@]}"
