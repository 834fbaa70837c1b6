"""Rows of ../shared/cases and of its folder second: what people reported before the third round.

The tables of both READMEs name the sources. A row that is absent is of what has left: MLPerf
Power's logs, buckets for data, the forecast. WikiExtractor on odd dumps is in
tests/container/test_extractor.py, the energy of the GPUs of a run in tests/mlperf/test_energy.py.
"""

PREPARED = """
export C={shared}/cases G={shared}/golden L={shared}/real_logs V={shared}/data/vocab.txt
export APP=$PWD PY=$PWD/.venv/bin/python O=$(mktemp -d) PATH=$PWD/.venv/bin:$PATH PYTHONPATH=$PWD
export TF_CPP_MIN_LOG_LEVEL=3 NUM_TEST_ARTICLES=0
export PUNKT={shared}/data/nltk_data/tokenizers/punkt_tab/english
exec 2>&1
M="--bert_config_file=$G/bert_config.json --init_checkpoint=$G/init/model.ckpt-28252"
LENGTHS="--max_seq_length=128 --max_predictions_per_seq=20"
T="$LENGTHS --train_batch_size=4 --num_train_steps=2 --num_warmup_steps=1 --do_train"
IN="--input_file=$G/train.tfrecord"
RUN="$PY run_pretraining.py $M $T"
DATA="$PY create_pretraining_data.py --output_file=$O/x.tf"
IMPORT="$PY -m mlperf_bert.convert.from_hugging_face --output_dir=$O/imported --model=$C/vocabulary"
"""

DAMAGE = ["Traceback"]
SENTENCES = r"The river rises\.\nIt flows\.\n\nThe lake is deep\."


def cleaned(name: str) -> str:
    """The clean-up of a file, and its text."""
    return (
        f"cd $O; RESULTS=$O/r $APP/cleanup_scripts/process_wiki.sh {name} && cat $O/r/part-*-of-*"
    )


def logs_of(command: str) -> str:
    """Variants of published logs in $O/org, reported, and beside the published results."""
    return (
        f"$PY {command}; $PY -m mlperf_bert.submission.report $O/org --ruleset 1.0.0; "
        "$PY -m mlperf_results.compare $L/NVIDIA $O/org"
    )


CHOICES = {
    "CUDA_VISIBLE_DEVICES=2,3 NUM_GPUS=2": r"device=2\\?,3",
    "NVIDIA_VISIBLE_DEVICES=2,3 NUM_GPUS=2": r"device=2\\?,3",
    "SLURM_STEP_GPUS=4,5 CUDA_VISIBLE_DEVICES=0,1 NUM_GPUS=2": r"device=4\\?,5",
}
ROWS = {
    # Words that nobody reads.
    "words_run": ("$RUN $IN --output_dir=$O/run --do_eval False", ["py: False: not read"], DAMAGE),
    "words_data": ("$DATA --do_lower_case False", ["False: not read by any flag"], DAMAGE),
    "words_glob": ("$DATA --input_file $C/text/*", ["quote a pattern"], DAMAGE),
    # JSON lines taken for text.
    "json_no_suffix": (
        cleaned("$C/json_lines/text/AA/wiki_00"), ["is JSON, not text; give documents the suf"], [],
    ),
    "json_with_suffix": (
        cleaned("$O/a.json").replace("cd $O", "cp $C/json_lines/text/AA/wiki_00 $O/a.json; cd $O"),
        [r"The river rises in the northern hills\.\nIt flows through three"], [r"[{}]", "revid"],
    ),
    "json_part": (cleaned("$C/json_lines/part.json"), [SENTENCES], [r"[{}]"]),
    "json_bom": (cleaned("$C/json_lines/bom.jsonl"), [SENTENCES], [r"[{}]"]),
    "json_gz": (
        cleaned("$O/a.json.gz").replace(
            "cd $O", "gzip -c $C/json_lines/part.json >$O/a.json.gz; cd $O"
        ), [SENTENCES], [r"[{}]"],
    ),
    "json_as_text": (
        "$DATA --vocab_file=$V --input_file=$C/json_lines/part.json", ["is JSON, not text"], [],
    ),
    # Vocabularies.
    "blank_lines": ("$IMPORT/repeated_lines", ["vocab.txt: line 6 is blank; a word's"], DAMAGE),
    "blank_lines_data": (
        "$DATA --input_file=$C/text/one_document.txt "
        "--vocab_file=$C/vocabulary/repeated_lines/vocab.txt",
        ["line 6 is blank"], DAMAGE,
    ),
    "cased": (
        "cp -r $C/vocabulary/padded $O/cased; chmod -R u+w $O/cased; "
        "sed -i s/true/false/ $O/cased/tokenizer_config.json; "
        "$PY -m mlperf_bert.convert.from_hugging_face --model=$O/cased --output_dir=$O/i; "
        "$DATA --input_file=$C/text/one_document.txt --vocab_file=$O/i/vocab.txt",
        ["cased", "--nodo_lower_case|--do_lower_case"], DAMAGE,
    ),
    "padded": ("$IMPORT/padded", ["weights imported", "12 rows of the model without"], DAMAGE),
    "tokenizer_json": (
        "$IMPORT/only_tokenizer_json; $DATA --input_file=$C/text/one_document.txt "
        "--vocab_file=$C/vocabulary/only_tokenizer_json/tokenizer.json",
        ["weights imported", r"\d+ examples, "], DAMAGE,
    ),
    # Logs.
    "epoch_num": (
        logs_of("$C/logs/epoch_num_counts_evaluations.py $O/org"),
        [r"Convergence \(RCP\): passed \(2,775,192 samples"],
        [r"Convergence \(RCP\).*\b18\b", *DAMAGE],
    ),
    "dataset_size": (
        logs_of("$C/second/1/logs.py dataset_size $O/org"),
        ["unknown"], ["109,301 samples", "57.3 times", *DAMAGE],
    ),
    "log_by_docker": (
        "n=$(echo $L/NVIDIA/results/dgx*/bert/result_0.txt); $PY $C/second/8/make.py $n $O/o; "
        "$PY -m mlperf_results.compare $O/o/docker-json.log $L/Graphcore; "
        "iconv -t UTF-16 $O/o/ansi.txt >$O/utf16.txt; "
        "$PY -m mlperf_results.compare $O/utf16.txt $L/Graphcore",
        [], ["cut or damaged", "no line starts with", *DAMAGE],
    ),
    # What a check finds.
    **{
        f"shape_{name}": (
            f"$PY run_pretraining.py --bert_config_file=$C/shapes/{name}.json $T $IN --check "
            "--init_checkpoint=$G/init/model.ckpt-28252 --output_dir=$O/run",
            ["of 46 weights do not fit: bert/embeddings/", "errors: 1;"], DAMAGE,
        )
        for name in ("vocab", "type16")
    },
    "warm_up": (
        'python() { "$PY" "$@"; }; export -f python; bash $C/second/5/run.sh $G',
        ["warning: .*warm-up"], DAMAGE,
    ),
    "open_files": (
        'python() { "$PY" "$@"; }; export -f python; rm -rf /tmp/c6run; bash $C/second/6/run.sh $G',
        ["Too many open files; raise ulimit -n, or read fewer files at once"],
        ["out of memory", *DAMAGE],
    ),
    "packed_records": (
        "for f in $C/records/*; do $RUN --input_file=$f --check --output_dir=$O/r; done",
        ["is compressed by gzip", "is a Git LFS pointer"], DAMAGE,
    ),
    "packed_text": (
        cleaned("$O/wiki_00.bz2").replace("cd $O", "bzip2 <README.md >$O/wiki_00.bz2; cd $O"),
        ["is compressed by bzip2"], ["iconv", *DAMAGE],
    ),
    "google_config": (
        "sed '0,/{/s//{\"pooler_fc_size\": 768, \"pooler_type\": \"first_token_transform\", /' "
        "$G/bert_config.json >$O/g.json; $PY run_pretraining.py --bert_config_file=$O/g.json $T "
        "$IN --check --output_dir=$O/run",
        ["errors: 0"], DAMAGE,
    ),
    # A run.
    "given_checkpoint": (
        "$PY run_pretraining.py $M $LENGTHS --do_eval --nodo_train --eval_batch_size=14 "
        "--input_file=$G/eval.tfrecord --output_dir=$O/run",
        [r"is evaluated", r"masked-LM accuracy 0\.11101, loss 8\.31193, on 1,498"], DAMAGE,
    ),
    "home": (
        "HOME=$O/home; mkdir $HOME; $RUN $IN '--output_dir=~/run'; ls $HOME/run; ls -d '~'",
        [r"run\.json", "cannot access '~'"], DAMAGE,
    ),
    "encoder_alone": (
        "$PY $C/heads/encoder_without_heads.py $O/h; $PY tf2_encoder_checkpoint_converter.py "
        "--bert_config_file=$O/h/bert_config.json --checkpoint_to_convert=$O/h/model.ckpt-0 "
        "--converted_checkpoint_path=$O/c --converted_model=encoder",
        [r"23 weights converted to TF2 \(encoder\)"], DAMAGE,
    ),
    "process_1": (
        "unshare --pid --fork $PY run_pretraining.py --help >/dev/null & p=$!; sleep 1; "
        "kill $(cat /proc/$p/task/$p/children); wait $p; echo rc=$?",
        ["rc=143"], DAMAGE,
    ),
    # Data.
    "all_of_a_folder": (
        cleaned("$C/json_lines/part.json") + "; cp $C/text/one_document.txt $O/r/eval.txt; "
        "cd $APP; $PY create_pretraining_data.py --input_file=\"$O/r/*\" --output_dir=$O/d "
        "--vocab_file=$V",
        ["eval"], DAMAGE,
    ),
    "twice": (
        "t=$C/text/one_document.txt; $DATA --input_file=$t,$t --vocab_file=$V", ["twice"], DAMAGE,
    ),
    "every_line_a_document": (
        "$DATA --input_file=$C/text/every_line_a_document.txt --vocab_file=$V",
        ["hint: .*every document is one line"], DAMAGE,
    ),
    "one_document": (
        "$DATA --input_file=$C/text/one_document.txt --vocab_file=$V",
        ["hint: .*the text is one document"], DAMAGE,
    ),
    "lost_lines": (
        cleaned("$C/second/4/corpus.jsonl"),
        [r"here\.\nStart it with <docker-name> on a host\.\n.*\n.*ends here\.\n\nAnother"], DAMAGE,
    ),
    "templates": ("grep -i templates docs/data.md", ["Templates"], []),
    "mrpc": (
        "mkdir $O/mrpc; $PY run_finetuning.py --task=mrpc --data_dir=$O/mrpc --vocab_file=$V "
        "$(echo $M | sed s/init_//) --output_dir=$O/ft",
        ["msr_paraphrase|MRPC|mrpc"], DAMAGE,
    ),
    # Containers, clusters.
    **{
        f"gpus_{number}": (
            f"mkdir $O/d $O/w; touch $O/d/part-0; echo '{{}}' >$O/w/bert_config.json; env {line} "
            "DATA_DIR=$O/d WIKI_DIR=$O/w OUTPUT_DIR=$O/o ./start_training.sh --dry-run",
            [f"--gpus .*{gpus}"], [],
        )
        for number, (line, gpus) in enumerate(CHOICES.items())
    },
    "selinux": (
        "mkdir $O/bin $O/d $O/w; touch $O/d/part-0; echo '{}' >$O/w/bert_config.json; "
        "printf '#!/bin/sh\\necho Enforcing\\n' >$O/bin/getenforce; chmod +x $O/bin/getenforce; "
        "PATH=$O/bin:$PATH NUM_GPUS=0 DATA_DIR=$O/d WIKI_DIR=$O/w OUTPUT_DIR=$O/o "
        "./start_training.sh --dry-run",
        [r":(ro,)?z\b"], [],
    ),
    "jobset": ("grep ^kind: cloud/jobset.yaml", ["JobSet"], []),
    # Traces.
    "shared_descriptor": (
        "$PY -m tracing --backend=strace --output=$O/t -- python3 $C/second/3/prog.py $O/d; "
        "$PY $C/third/watching/show.py $O/t 'bin$' x",
        [
            r"read +read +0\.0 +4096 .*shared.*\n(.*read +(NaN|[48]\d+\.0|1\d+\.0) +4096 .*\n)+",
            r"mmap .*8192 .*a, b\.bin",
        ],
        ["0 not understood\\n.*0 not understood", *DAMAGE],
    ),
    # The exported step.
    "no_devices": (
        "$PY -m mlperf_bert.portable.export $M $T $IN --num_recorded_steps=0 --output_dir=$O/step; "
        "$PY $O/step/run_step.py $O/step --num_devices=0",
        ["num_devices=0: must be above 0"], ["UnboundLocalError", *DAMAGE],
    ),
}  # fmt: skip
