#!/usr/bin/env bash
# Fetches, checks and unpacks the published files: download_and_uncompress.sh --help
set -euo pipefail
unset CDPATH
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
md5s=$here/../mlperf_bert/data/published.md5
out_dir=wiki
base_url=https://training.mlcommons-storage.org/wikipedia_for_bert
checkpoint=model.ckpt-28252
dump=enwiki-20200101-pages-articles-multistream.xml

die() { echo "download_and_uncompress.sh: $1" >&2; exit "${2:-1}"; }

words=()
for word; do
  case $word in
    -h | --help)
      cat <<END
usage: download_and_uncompress.sh [WORD ...] [--out_dir=wiki] [--base_url=URL]

Fetches the published files into OUT_DIR by curl, checks them by their MD5s and unpacks them. Without words: config tf1 text.

  config      bert_config.json and vocab.txt
  tf1, tf2    the initial checkpoint, in TF1's or TF2's format
  text        the cleaned text, unpacked into OUT_DIR/results
  dump        the Wikipedia dump and its XML
  punkt       nltk's tables for splitting sentences, where they are missing

What is there already is checked and not fetched; a broken download is resumed. --base_url names a mirror of MLCommons'
folder, or one that their own downloader was started in, as file://\$PWD.
END
      exit
      ;;
    --out_dir=*) out_dir=${word#*=} ;;
    --base_url=*) base_url=${word#*=} ;;
    config | tf1 | tf2 | text | dump | punkt) words+=("$word") ;;
    *) die "$word: choose of config tf1 tf2 dump text punkt --out_dir= --base_url=" 2 ;;
  esac
done
[ ${#words[@]} -gt 0 ] || words=(config tf1 text)
[[ $out_dir =~ [^[:space:]] && $out_dir != *://* ]] || die "--out_dir=$out_dir: name a local folder" 2
[[ $base_url == ?*://?* ]] || die "--base_url=$base_url: name a URL, such as https://HOST/FOLDER or file:///FOLDER" 2
base_url=${base_url// /%20} # of a folder as it is named
out_dir=${out_dir/#\~\//$HOME/}
mkdir -p -- "$out_dir"
cd -- "$out_dir"

# is_whole FILE [SUFFIX]: whether FILE has its published MD5, or what becomes FILE and has the suffix until then.
is_whole() {
  [ -f "$1${2-}" ] || return 1
  echo "comparing $out_dir/$1${2-} with its published MD5; the dump takes minutes" >&2
  sed -n "s|  $1\$|&${2-}|p" "$md5s" | md5sum -c >/dev/null 2>&1
}

# is_there FILE: whether it is there, and the published one.
is_there() {
  [ -e "$1" ] || return 1
  is_whole "$1" || die "$out_dir/$1: not the published file; remove it and repeat the command"
  echo "$out_dir/$1: as published"
}

fetch() {
  local file url code
  for file; do
    code=0
    ! is_there "$file" || continue
    url=${base_url%/}/input_files/$file
    [ "$file" != results_text.tar.gz ] || url=${base_url%/}/processed_dataset/$file
    # MLCommons has another name for this file alone; TensorFlow needs that of its index.
    [ "$file" != "tf1_ckpt/$checkpoint.data-00000-of-00001" ] || url=${url/$checkpoint/$checkpoint-003}
    command -v curl >/dev/null || die "curl is not installed, and $out_dir/$file is not there: install curl, or put the file there"
    mkdir -p "$(dirname "$file")"
    echo "fetching $url" >&2
    # What is whole already makes curl fail; a page for a login does not.
    curl --fail --globoff --location --continue-at - --output "$file.partial" "$url" || code=$?
    is_whole "$file" .partial || die "$out_dir/$file: not whole yet, or not the published file (curl ended with \
$code at $url): repeat the command to resume, or remove $out_dir/$file.partial to begin again"
    mv "$file.partial" "$file"
    echo "$out_dir/$file: as published"
  done
}

uncompress_text() {
  if [ ! -e results ]; then
    fetch results_text.tar.gz
    rm -rf results.partial
    mkdir results.partial
    tar -xzf results_text.tar.gz --no-same-owner -C results.partial ||
      die "$out_dir/results_text.tar.gz: not unpacked; make room for 14 GB and repeat the command"
    mv "$(dirname "$(find results.partial -name eval.txt)")" results # which may lie in a folder
    rm -rf results.partial
  fi
  grep ' results/' "$md5s" | md5sum -c --quiet ||
    die "$out_dir/results: not the published text; move it away and repeat the command"
  echo "$out_dir/results: the eight files with published MD5s are as published"
}

uncompress_dump() {
  ! is_there "$dump" || return 0
  fetch "$dump.bz2"
  if ! bzip2 -dc "$dump.bz2" >"$dump.partial" || ! is_whole "$dump" .partial; then
    die "$out_dir/$dump.bz2: not unpacked; make room for 75 GB and repeat the command"
  fi
  mv "$dump.partial" "$dump"
}

for word in "${words[@]}"; do
  case $word in
    config) fetch bert_config.json vocab.txt ;;
    tf1) fetch "tf1_ckpt/$checkpoint".{index,meta,data-00000-of-00001} ;;
    tf2) fetch "tf2_ckpt/$checkpoint".{index,data-00000-of-00001} ;;
    text) uncompress_text ;;
    dump) uncompress_dump ;;
    punkt) (cd "$OLDPWD" && "$("$here/interpreter.sh")" "$here/clean_up.py" punkt) ;;
  esac
done
