"""What a campaign runs: names, flags, the command of each run, and the folders of its output."""

import contextlib
import reprlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mlperf_bert.mlperf.log_reader import LOG_NAME, RESULT_LOG
from mlperf_bert.options import expand_home

REPOSITORY = Path(__file__).resolve().parents[2]
RUN_COMMAND = (sys.executable, str(REPOSITORY / "run_pretraining.py"))
LAUNCHER = "start_training.sh"
MAX_NAME_BYTES = 100  # file names are made of it and more; file systems allow 255

# The campaign gives these flags to every run.
_OWN_FLAGS = ("output_dir", "seed", "submission_org", "submission_platform", "submission_status")


@dataclass(frozen=True)
class Campaign:
    """What to run."""

    org: str
    """The submitter; with `system`, a name in logs and folders."""
    system: str
    status: str
    """One of log.STATUSES."""
    folder: Path
    num_runs: int
    """10 make a result."""
    flags: tuple[str, ...]
    """The words of run_pretraining.py, for one run."""
    offline_eval_input_file: str | None = None
    """Evaluate the checkpoints after each training, on this file; None: during training."""
    command: tuple[str, ...] = RUN_COMMAND
    """Starts one run, before its flags."""

    def __post_init__(self) -> None:
        for name in ("org", "system"):
            require_name(name, getattr(self, name))
        if self.offline_eval_input_file and _names_of(self.flags) & {"eval_input_file"}:
            raise ValueError(
                "--offline_eval_input_file evaluates after training: leave --eval_input_file out"
            )
        if self.num_runs < 1:
            raise ValueError(f"--runs={self.num_runs}: at least 1; 10 make a result")
        if not self.flags:
            raise ValueError("give the flags of run_pretraining.py after --")
        if own := sorted(_names_of(self.flags) & set(_OWN_FLAGS)):
            raise ValueError(
                f"--{own[0]} is given by the campaign to every run; leave it out after --"
            )

    @property
    def runs_dir(self) -> Path:
        """The folder with the directories of the runs."""
        return self.folder / "runs"

    @property
    def org_dir(self) -> Path:
        """The folder of the submission."""
        return self.folder / "submission" / self.org

    @property
    def log_name(self) -> str:
        """The name of the log in a run's directory that is the result."""
        return RESULT_LOG if self.offline_eval_input_file else LOG_NAME

    def output_dirs(self, number: int) -> list[Path]:
        """Returns the directories of one run, the newest last; all others were cut off."""
        folders = [self.runs_dir / str(number)]
        while (later := self.runs_dir / f"{number}.repeat-{len(folders)}").exists():
            folders.append(later)
        return folders

    def flags_of_commands(self) -> list[list[str]]:
        """Returns the flags of the training, and of its evaluation if offline, but --output_dir."""
        training = [
            *self.flags,
            "--drop_caches",  # each run drops its caches itself, because each host has its own
            f"--submission_org={self.org}",
            f"--submission_platform={self.system}",
            f"--submission_status={self.status}",
        ]
        if not self.offline_eval_input_file:
            return [training]
        offline = ["--nodo_train", "--do_eval", f"--input_file={self.offline_eval_input_file}"]
        return [training, [*self.flags, *offline]]

    @property
    def in_containers(self) -> bool:
        """Whether the command starts each run in a container."""
        return any(Path(word).name == LAUNCHER for word in self.command)

    def run_commands(self, output_dir: Path) -> list[list[str]]:
        """Returns the command lines of one run: the training, and its evaluation if offline."""
        start = list(self.command)
        if self.in_containers:
            # The launcher mounts OUTPUT_DIR. A SEED of the environment would serve every run.
            settings = ["-u", "SEED", f"OUTPUT_DIR={output_dir}"]
            # An EVAL_FILE of the environment would evaluate during the training too.
            settings += ["EVAL_FILE="] if self.offline_eval_input_file else []
            start = ["env", *settings, *start]
        own = f"--output_dir={output_dir}"
        return [[*start, *flags, own] for flags in self.flags_of_commands()]


def description_path(org_dir: Path, system: str) -> Path:
    """Returns where a submitter's folder describes a system."""
    return org_dir / "systems" / f"{system}.json"


def result_files(folder: Path) -> list[Path]:
    """Returns result_0.txt, result_1.txt, ... of a folder, by number."""
    numbers = {path: path.stem.removeprefix("result_") for path in folder.glob("result_*.txt")}
    return sorted(numbers, key=lambda path: int(numbers[path]) if numbers[path].isdecimal() else -1)


def require_name(flag: str, value: str) -> None:
    """Refuses a name that cannot be part of a folder, a file and an option."""
    fits = value.isprintable() and not set(value) & set("/ ")
    if not fits or value[:1] in ("", ".", "-") or len(value.encode()) > MAX_NAME_BYTES:
        raise ValueError(
            f"--{flag}={reprlib.repr(value)} names folders: give 1 to {MAX_NAME_BYTES} bytes "
            "without space, slash or control character, no dot or dash in front"
        )


def _names_of(words: Sequence[str], *, read: frozenset[str] = frozenset()) -> set[str]:
    """The names of flags, also of those in flag files, except for files in `read`."""
    names = set()
    for word, following in zip(words, [*words[1:], ""]):
        if word.startswith("-"):
            name, equals, value = word.strip().lstrip("-").partition("=")
            names.add(name)
            value = expand_home(value if equals else following)
            if name == "flagfile" and value not in read:
                with contextlib.suppress(OSError, UnicodeDecodeError):  # the run will report it
                    lines = Path(value).read_text(encoding="utf-8").splitlines()
                    names |= _names_of(lines, read=read | {value})
    return names
