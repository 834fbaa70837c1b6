"""The command lines: frozen flags, and one clear line for each kind of bad input. CPU, a minute.

Long because each kind of mistake has its table.
"""

import importlib
import math
import operator
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from mlperf_bert import flags_page, options
from mlperf_bert.flags_page import options_of
from mlperf_bert.training.config import RunConfig
from tests.fixtures import REPOSITORY
from tests.helpers import programs, starts
from tests.helpers.known_flags import REFERENCE_FLAGS, SCRIPTS
from tests.helpers.tiny_examples import run, spoil, training_flags, write_inputs
from tests.training.configurations import run_config

RUN, DATA = "run_pretraining.py", "create_pretraining_data.py"


@pytest.mark.parametrize("script", REFERENCE_FLAGS)
def test_the_flags_of_the_reference_are_there_with_their_defaults(script):
    defaults = {name: about.default for name, about in options_of(script).items()}
    assert defaults | REFERENCE_FLAGS[script] == defaults


def test_the_page_of_all_flags_is_that_of_the_scripts():
    text = flags_page.PAGE.read_text(encoding="utf-8")
    assert flags_page.page() == text, "python -m mlperf_bert.flags_page writes the page again"
    # Asked of git: `make setup` puts the files of others below the repository.
    listed = programs.run("git", "ls-files", "*.py", ":!tests", check=True).stdout.split()
    texts = {name: (REPOSITORY / name).read_text(encoding="utf-8") for name in listed}
    scripts = {name for name, text in texts.items() if "command_line.run(main" in text}
    assert flags_page.EXPLAINED_IN.keys() == scripts


@pytest.mark.parametrize("name", options.flags_of(RunConfig)["optimizer"].choices)
def test_every_optimizer_has_its_own_constants(name):
    assert run_config(optimizer=name).optimizer.name == name


def test_the_pages_that_explain_a_flag_name_it():
    for name, about in options_of(RUN).items():
        if about.page:
            text = (flags_page.PAGE.parent / about.page).read_text(encoding="utf-8")
            assert re.search(rf"--(no)?{name}\b", text), f"--{name} in {about.page}"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return write_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture
def work(inputs, tmp_path):
    """A copy of the inputs, free to be spoilt."""
    return shutil.copytree(inputs, tmp_path / "work")


def vocabulary_of_65(_: bytes) -> bytes:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{n}" for n in range(5, 65))]
    return "".join(f"{word}\n" for word in words).encode()


# The flags that make the input of a training bad, or a file and what it becomes; and the line that
# says so, as a pattern.
BAD_INPUTS = [
    ("input_file={work}/nothing*", r"--input_file: no file matches .*nothing\*"),
    (("bert_config.json", lambda text: text.replace(b"{", b'{"hiden_size": 8, ')),
     r"unknown keys \['hiden_size'\]"),
    (("bert_config.json", lambda text: text.replace(b'"hidden_size": 8, ', b"")),
     r"missing keys .*hidden_size"),
    (("vocab.txt", vocabulary_of_65), r"vocab.txt has 65 words, but .* vocab_size=64"),
    ("init_checkpoint={work}/model.ckpt-1", r"model.ckpt-1: no such checkpoint"),
    ("check_initial_accuracy=True",
     r"--check_initial_accuracy has an effect only with --check; add it"),
    ("do_train=False do_eval=True time_budget=nonsense",
     r"--time_budget=nonsense must be a time above 0 with its unit"),
    ("do_train=False", r"nothing to do: give --do_train or --do_eval"),
    ("use_tpu=True", r"--use_tpu: jax finds none \(.*\); check the driver"),
    ("num_gpus=64", r"--num_gpus=64: jax finds none \(.*the environment gpu has it\)"),
    ("num_gpus=abc", r"num_gpus=abc.*invalid literal"),
    ("optimizer=no_such", r"optimizer=no_such.*adamw\|lamb"),
    ("flagfile=/dev/null/none", r"Unable to open flagfile"),
    ("flagfile={work}/train", r": --flagfile names a file that is not text \(invalid"),
    ("learning_rat=1", r"Unknown command line flag 'learning_rat'"),
    ("output_dir=s3://bucket/run", r"s3://bucket/run: give a local path or gs://BUCKET"),
    ("runtime=jax compilation_cache_dir=/proc/none", r"No such file or directory"),
]  # fmt: skip
SLOW_ONES = [
    (("train", lambda data: data[:60]), r"train.*byte 0"),
    (("eval", lambda data: data[:40] + b"\xff\xff" + data[42:]), r"eval.*byte 0"),
    (f"train_batch_size={10**9} num_train_steps=1",
     r"out of memory .*; lower --train_batch_size .*, give --recompute=blocks, or lower --eval"),
]  # fmt: skip


@pytest.mark.parametrize(
    "bad, message",
    [*BAD_INPUTS, *(pytest.param(*case, marks=pytest.mark.all) for case in SLOW_ONES)],
)
def test_bad_input_is_one_line_and_leaves_nothing(work, bad, message):
    flags = bad.format(work=work) if isinstance(bad, str) else ""
    if not flags:
        spoil(work, *bad)
    done = run(training_flags(work, **dict(word.split("=", 1) for word in shlex.split(flags))))
    assert done.returncode == 1
    [line] = done.stderr.strip().splitlines()
    assert line.startswith("run_pretraining.py: ") and re.search(message, line), line
    assert not (work / "out").exists()


@pytest.mark.parametrize(
    "flags, message",
    [
        ({"emulate_step_seconds": 0.1, "eval_input_file": "x"},
         r"emulate_step_seconds=0.1 trains nothing .* leave out --eval_input_file"),
        ({"time_budget": "90"},
         "time_budget=90 must be a time above 0 with its unit, such as 90s, 45m, 24h or 1h30m"),
        ({"profile_steps": "3"},
         "profile_steps=3 must be two steps, the first and the last, as in 20-29"),
    ],
)  # fmt: skip
def test_flags_that_do_not_go_together_are_refused(flags, message):
    """The command line prints such a line as any other."""
    with pytest.raises(ValueError, match=f"^--{message}"):
        run_config(**flags)


def test_a_check_tells_files_that_are_missing_beside_a_flag_that_is_wrong(work):
    """Whether the flag is refused as it is parsed, or beside others; a run names flags alone."""
    (work / "bert_config.json").unlink()
    for wrong, told in (
        ({"train_batch_size": 0}, ["train_batch_size=0: must"]),
        ({"seed": "x", "train_batch_size": "many"}, ["=many: invalid", "seed=x: invalid"]),
        ({"no_such_flag": 1}, ["Unknown command line flag 'no_such_flag'"]),
        ({"steps_per_update": 3}, ["--num_train_steps=4 must be a multiple"]),
    ):
        flags = {"input_file": f"{work}/none*", "init_checkpoint": f"{work}/gone", **wrong}
        flags["eval_input_file"] = f"{work}/no*"
        files = ["no file matches '", "/no*'", "bert_config.json", "gone: no such checkpoint"]
        for check, expected in (("true", [*told, *files]), ("false", told)):
            done = run(training_flags(work, check=check, **flags))
            *problems, last = done.stderr.splitlines()
            assert done.returncode == 1 and len(problems) in (0, len(expected)), done.stderr
            for problem, words in zip([*problems[1:], last], expected, strict=True):
                assert words in problem


def test_flags_that_do_not_fit_each_other_are_told_at_once(work):
    done = run(training_flags(work, steps_per_update=3, profile_steps="3-5"))
    assert done.stderr.splitlines() == [
        "run_pretraining.py: 2 problems:",
        "  - --num_train_steps=4 must be a multiple of --steps_per_update=3: the last update would "
        "be lost",
        "  - --profile_steps ends at 5, after --num_train_steps=4",
    ]
    assert done.returncode == 1 and not (work / "out").exists()


def beyond(about: options.Option) -> list[float]:
    """Values beyond each bound of a number, and beyond what its type holds."""
    steps = {"at_least": -1, "above": 0, "at_most": 1, "below": 0}
    values = [bound + steps[name] for name, bound in about.bounds.items()]
    return values + ([2**70] if about.takes is int else [math.inf, -math.inf, math.nan])


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_flag_refuses_what_is_empty_or_out_of_its_range(script):
    for name, about in options_of(script).items():
        if about.takes is str and not about.choices:
            assert name == "eval_input_file" or about.problem(" ") == options.IS_EMPTY, name
        if about.path:
            assert "s3://b/c: give a local path" in about.problem("/a, s3://b/c"), name
        bounds = " and ".join(f"{n.replace('_', ' ')} {b}" for n, b in about.bounds.items())
        for value in beyond(about) if about.bounds else []:
            largest = value > 1e18
            told = "must be a number " + ("at most" if largest else bounds)
            assert about.problem(value).startswith(told), (name, value)
        assert about.problem(about.default) is None


WRONG = {
    RUN: "train_batch_size=0 learning_rate=nan seed=-1 keep_checkpoint_max=-1 poly_power=inf "
    "input_file= bert_config_file= output_dir=a[b] init_checkpoint=a*",
    DATA: "max_seq_length=4 max_predictions_per_seq=0 dupe_factor=0 nworker=-1 masked_lm_prob=2 "
    f"short_seq_prob=nan random_seed={2**32} vocab_file= examples_per_part=-1 input_file=",
    "pick_eval_samples.py": "num_examples_to_pick=0 max_seq_length=0 max_predictions_per_seq=-1 "
    "input_tfrecord= output_tfrecord=",
    "mlperf_bert/convert/from_hugging_face.py": "seed=-1 model= output_dir=a[b]",
    "tf2_encoder_checkpoint_converter.py": "bert_config_file= checkpoint_to_convert= "
    "converted_checkpoint_path=",
}


@pytest.mark.parametrize(
    "script, mode", [*((script, []) for script in WRONG), (RUN, ["--do_train", "--check"])]
)
def test_all_wrong_flags_are_told_at_once(script, mode):
    wrong = [f"--{word}" for word in WRONG[script].split()]
    done = starts.run([sys.executable, script, *wrong, *mode])
    assert done.returncode == 1
    first, *rest = done.stderr.splitlines()
    assert first == f"{Path(script).name}: {len(wrong)} problems:" and len(rest) == len(wrong)
    named = [re.match(r"  - flag (--\w+)=", line)[1] for line in rest]
    assert sorted(named) == sorted(word.partition("=")[0] for word in wrong)


def test_a_run_without_evaluation_says_so(inputs):
    """An empty value turns the evaluation of a preset off."""
    done = run([*training_flags(inputs, eval_input_file=""), "--check"])
    assert done.stderr.splitlines()[0].endswith(
        "warning: --eval_input_file= is empty: it counts as not given"
    )


MEASURE = "benchmarks.training_throughput"
REFUSED = [
    *(
        (f"{MEASURE} --output={{folder}}/none {words}", message)
        for words, message in (
            ("--reference_python=python3.7", "--reference and --reference_python go together"),
            ("--only='('", "--only=(: is not a regular expression"),
            ("--input_file=/none", "--input_file=/none: no such file"),
            ("--warm_up_steps=0", "_steps: '0': give a whole number from 1 to 999,999,999"),
            (f"--warm_up_steps={10**9}", "'1000000000': give a whole number from 1 to 999,999"),
        )
    ),
    *(
        (f"demo.{name} --output_dir=gs://bucket/demo",
         "--output_dir: gs://bucket/demo: give a local path, and copy it")
        for name in ("__main__", "campaign")
    ),
    ("demo.picture --metrics_file={folder}/none --output_file={folder}/x.png",
     "demo.picture: {folder}/none: No such file or directory"),
    ("demo.model --seed=1 --input_file={folder}/none --output_dir={folder}/x",
     "demo.model: no text to learn a vocabulary from: --input_file matches nothing"),
    ("demo.encyclopedia --seed=1 --num_articles=3 --output_dir={folder}/x",
     "demo.encyclopedia: num_articles=3: at least 8, one for each file"),
]  # fmt: skip


@pytest.mark.parametrize("line, message", REFUSED)
def test_what_a_module_refuses_is_its_last_line(line, message, tmp_path, monkeypatch, capsys):
    module, *words = shlex.split(line.format(folder=tmp_path))
    monkeypatch.setattr(sys, "argv", [f"{module.rpartition('.')[2]}.py", *words])
    monkeypatch.chdir(tmp_path)
    try:
        code = importlib.import_module(module).main()
    except SystemExit as ended:
        code = ended.code
    told = capsys.readouterr().err if isinstance(code, int) else str(code)
    assert code == told or code in (1, 2)
    assert message.format(folder=tmp_path) in told.splitlines()[-1]
    assert not any(tmp_path.iterdir())


UNREAD_WORDS = [
    (DATA, ["--do_lower_case", "False"], "False: not read by any flag; write --name=value, witho"),
    (DATA, ["--input_file", "a", "b", "c", "--vocab_file", "v"], "b c: not read by any flag"),
    (DATA, ["data"], "quote a pattern, as in --input_file='part-*', so that the shell leaves it"),
    (DATA, ["--verify", "--", "--nworker=2"], "--nworker=2: not read by any flag"),
    (DATA, ["--input_file=a", "--input_file=b"], "only the last one counts; give one value in"),
    (DATA, ["-flagfile="], "-flagfile= names no file; give one"),
    (DATA, ["--flagfile", ""], "--flagfile '' names no file; give one"),
    (DATA, ["--nodo_lower_case=no"], "--nodo_lower_case=no does not take an argument"),
    (RUN, ["out"], "out: not read by any flag"),
    (RUN, ["--eval_input_file=a", "--eval_input_file=b"], "only the last one counts; give one"),
]


@pytest.mark.parametrize("script, words, message", UNREAD_WORDS)
def test_a_word_that_no_flag_reads_is_refused(script, words, message):
    given = [
        f"--{name}={(*about.choices, '/none')[0]}"
        for name, about in options_of(script).items()
        if about.required
    ]
    done = starts.run([sys.executable, script, *given, *words])
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith(f"{Path(script).name}: ") and message in line


def test_a_flag_file_may_be_overridden(tmp_path):
    lines = "# of a launcher\n--verify\n--output_dir=/none\n"
    (tmp_path / "flags").write_text(lines)
    flags = [f"--flagfile={tmp_path / 'flags'}", "--output_dir=/other"]
    done = starts.run([sys.executable, DATA, *flags])
    assert "/other: no parts.json" in done.stderr
    (tmp_path / "flags").write_text(f"{lines}nworker=2\n")
    done = starts.run([sys.executable, DATA, *flags])
    assert done.stderr.startswith(f"{DATA}: nworker=2: not read by any flag")


def test_the_home_folder_stands_for_a_tilde_in_every_path(inputs, tmp_path):
    home = shutil.copytree(inputs, tmp_path / "home")
    where = {"bert_config_file": "~/bert_config.json", "input_file": "~/train,~/t*"}
    flags = training_flags(inputs, **where, output_dir="~/run", eval_input_file="~/eval")
    command = [sys.executable, "run_pretraining.py", *flags, "--check"]
    starts.run(command, env={**os.environ, "HOME": str(home)}, check=True)


@pytest.mark.gate
def test_bad_input_to_the_script_itself_is_one_line_too(work):
    """Started as a user does; the other tests start forks of a process."""
    flags = training_flags(work, input_file=work / "nothing*")
    done = programs.run(sys.executable, "run_pretraining.py", *flags)
    assert done.returncode == 1
    [line] = done.stderr.strip().splitlines()
    assert line.startswith("run_pretraining.py: --input_file: no file matches ")


LASTING = """
    checkpoints.reading:load_weights checkpoints.state:Saves._write convert.exporting:export
    convert.importing:import_model convert.tf1_tf2:convert convert.tf1_tf2:add_accumulators
    data.evaluation_shard:pick finetuning.run:read_split model.pretrainer:build_pretrainer
    portable.program_folder:_train portable.program_folder:_evaluate submission.verdict:judge
    submission.verdict:judge_submission training.inspection:inspect_closely training.run:_compile
""".split()


@pytest.mark.parametrize("place", LASTING)
def test_what_takes_more_than_ten_seconds_for_bert_large_says_so(place):
    """`messages.lasting` decorates it."""
    module, _, names = place.partition(":")
    function = operator.attrgetter(names)(importlib.import_module(f"mlperf_bert.{module}"))
    assert function.__wrapped__.__name__ == function.__name__


def test_batch_that_replicas_cannot_share():
    from mlperf_bert.training.devices import replica_batch_size

    with pytest.raises(ValueError, match=r"--train_batch_size=10 .* 4 replicas; try 8 or 12"):
        replica_batch_size(10, 4, flag="train_batch_size")
    with pytest.raises(ValueError, match=r"try 4$"):
        replica_batch_size(3, 4, flag="train_batch_size")
