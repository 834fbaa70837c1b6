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

words=() tools=(curl md5sum tar gzip)
for word; do
  case $word in
    -h | --help)
      cat <<END
usage: download_and_uncompress.sh [WORD ...] [--out_dir=wiki] [--base_url=URL]

Fetches the published files into OUT_DIR, checks them by their MD5s and unpacks them. Without words: config tf1 text.

  config      bert_config.json and vocab.txt
  tf1, tf2    the initial checkpoint, in TF1's or TF2's format
  text        the cleaned text, unpacked into OUT_DIR/results
  dump        the Wikipedia dump and its XML
  punkt       nltk's tables for splitting sentences, where they are missing

What is there already is checked and not fetched; a broken download goes on. --base_url names a mirror of MLCommons'
folder, or one that their own downloader was started in, as file://\$PWD.
END
      exit
      ;;
    --out_dir=*) out_dir=${word#*=} ;;
    --base_url=*) base_url=${word#*=} ;;
    dump) words+=(dump) tools+=(bzip2) ;;
    config | tf1 | tf2 | text | punkt) words+=("$word") ;;
    *) die "$word: choose of config tf1 tf2 dump text punkt --out_dir= --base_url=" 2 ;;
  esac
done
[ ${#words[@]} -gt 0 ] || words=(config tf1 text)
[[ $out_dir =~ [^[:space:]] && $out_dir != *://* ]] || die "--out_dir=$out_dir: name a local folder" 2
[[ $base_url == ?*://?* ]] || die "--base_url=$base_url: name a URL, such as https://HOST/FOLDER or file:///FOLDER" 2
if [[ $base_url == file://* ]]; then # of a folder as it is named
  base_url=${base_url//%/%25} base_url=${base_url// /%20} base_url=${base_url//\#/%23} base_url=${base_url//\?/%3F}
fi
for tool in "${tools[@]}"; do
  command -v "$tool" >/dev/null || die "$tool is missing: install it"
done
progress=(--silent --show-error)
[ ! -t 2 ] || progress=(--progress-bar)
out_dir=${out_dir/#\~\//$HOME/}
mkdir -p -- "$out_dir"
cd -- "$out_dir"
exec 9<.
# 1 is another's lock; some network disks lock no folders.
! command -v flock >/dev/null || flock --nonblock 9 2>/dev/null || [ $? != 1 ] ||
  die "$out_dir: another call still works there; wait for its end"

# is_whole FILE [SUFFIX]: whether FILE has its published MD5, or what becomes FILE and has the suffix until then.
is_whole() {
  [ -f "$1${2-}" ] || return 1
  echo "comparing $out_dir/$1${2-} with its published MD5; the dump takes minutes" >&2
  sed -n "s|  $1\$|&${2-}|p" "$md5s" | md5sum -c >/dev/null 2>&1
}

is_there() {
  [ -e "$1" ] || return 1
  is_whole "$1" || die "$out_dir/$1: not the published file; remove it and repeat the command"
  echo "$out_dir/$1: as published"
}

fetch() {
  local file folder url code again
  for file; do
    ! is_there "$file" || continue
    folder=input_files
    [ "$file" != results_text.tar.gz ] || folder=processed_dataset
    url=${base_url%/}/$folder/$file
    # MLCommons has another name for this file alone; TensorFlow needs that of its index.
    [ "$file" != "tf1_ckpt/$checkpoint.data-00000-of-00001" ] || url=${url/$checkpoint/$checkpoint-003}
    mkdir -p "$(dirname "$file")"
    echo "fetching $url" >&2
    code=0
    curl --fail --globoff --location "${progress[@]}" --speed-time 60 --continue-at - --output "$file.partial" "$url" ||
      code=$?
    # First: curl fails too where nothing is missing of an earlier call's file.
    if ! is_whole "$file" .partial; then
      again="repeat the command to go on, or "
      [[ $code != 3[36] ]] || again= # the server does not go on there
      [ "$code" = 0 ] || die "$out_dir/$file: curl ended with $code at $url; \
${again}remove $out_dir/$file.partial to begin again"
      rm -f "$file.partial"
      die "$out_dir/$file: what came from $url is not the published file, perhaps a page for a login; \
repeat the command, or take MLCommons' downloader (docs/data.md)"
    fi
    mv "$file.partial" "$file"
    echo "$out_dir/$file: as published"
  done
}

# Prints what is wrong with the 502 texts of a folder. MD5s are published of eight.
differences() {
  local parts
  parts=$(find -L "$1" -maxdepth 1 -type f -size +0 -name 'part-?????-of-00500' | wc -l)
  sed -n "s|  results/|  $1/|p" "$md5s" | md5sum -c --quiet 2>/dev/null || true
  [ "$parts" -eq 500 ] || echo "$1: $parts of 500 parts, without empty ones"
}

uncompress_text() {
  local folder different
  if [ ! -e results ]; then
    fetch results_text.tar.gz
    echo "unpacking $out_dir/results_text.tar.gz" >&2
    rm -rf results.partial
    mkdir results.partial
    # They may lie in a folder of the archive.
    if tar -xzf results_text.tar.gz --no-same-owner -C results.partial &&
      folder=$(dirname "$(find results.partial -name eval.txt)") && [ -z "$(differences "$folder")" ]; then
      mv "$folder" results
    fi
    rm -rf results.partial
    [ -e results ] || die "$out_dir/results_text.tar.gz: not unpacked; make room for 14 GB and repeat the command"
  fi
  different=$(differences results)
  [ -z "$different" ] || die "$out_dir/${different%%$'\n'*}; this is not the published text: \
move $out_dir/results away and repeat the command"
  echo "$out_dir/results: 500 parts; the eight files with published MD5s are as published"
}

uncompress_dump() {
  ! is_there "$dump" || return 0
  fetch "$dump.bz2"
  echo "unpacking $out_dir/$dump.bz2" >&2
  if ! { bzip2 -dc "$dump.bz2" >"$dump.partial" && is_whole "$dump" .partial; }; then
    rm -f "$dump.partial"
    die "$out_dir/$dump.bz2: not unpacked; make room for 75 GB and repeat the command"
  fi
  mv "$dump.partial" "$dump"
  echo "$out_dir/$dump: as published"
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
