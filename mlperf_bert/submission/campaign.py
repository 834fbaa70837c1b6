r"""N runs with seeds of their own, the submission folder, and the official tools' verdict.

    python -m mlperf_bert.submission.campaign --org=ORG --system=8xH200 --output_dir=campaign -- \
        --do_train --optimizer=lamb --bert_config_file=... --input_file=... (flags of one run)

Each run is a process of its own in OUTPUT_DIR/runs/N, with the system's file caches emptied before
(as root; if it cannot be done, the log says so). The same command resumes after an interruption:
finished runs stay; one that was cut off is run again, in runs/N.repeat-1, because a resumed run is
no result, and the verdict names it. A run that ends without the target is a failed run: it stays
and counts as the slowest, and a second one ends the campaign.

With --run_command=./start_training.sh each run is a container. Then the flags name paths inside it
and come after those of train_model.sh; DATA_DIR, WIKI_DIR and the launcher's other settings come
from the environment.

Exit codes: 0 everything passed, 1 something did not (said in one line), 75 interrupted,
130 Ctrl-C between runs.
"""

import argparse
import contextlib
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from mlperf_bert.files import json_text, locks, paths
from mlperf_bert.files.whole import matching_files
from mlperf_bert.messages import EXIT_TRY_AGAIN, ends_in_one_line
from mlperf_bert.mlperf import convergence, log_reader
from mlperf_bert.mlperf.log import STATUSES
from mlperf_bert.mlperf.log_reader import RunResult
from mlperf_bert.mlperf.rules import NUM_RUNS_PER_RESULT, RULESETS
from mlperf_bert.options import expanded_arguments
from mlperf_bert.signals import Interrupted, handled
from mlperf_bert.submission import system
from mlperf_bert.submission.folder import division_of, write_submission
from mlperf_bert.submission.plan import RUN_COMMAND, Campaign
from mlperf_bert.submission.runs import finished_run, has_ended
from mlperf_bert.submission.verdict import SystemVerdict, judge_submission

MAX_FAILED_RUNS = 1


@contextlib.contextmanager
def claimed(campaign: Campaign) -> Iterator[None]:
    """Holds the campaign's folder, which is new or of the same campaign."""
    names = ("org", "system", "status", "offline_eval_input_file")
    content: dict[str, object] = {name: getattr(campaign, name) for name in names}
    content["flags"] = list(campaign.flags)
    with locks.held(campaign.folder, by_another="another campaign works in it"):
        record = _record_of(campaign.folder, content)
        paths.make_folder(campaign.runs_dir)
        differing = [name for name in content if record.get(name) != content[name]]
        # Until the first run has begun, a mistake in the flags may be corrected.
        if differing and campaign.runs_dir.exists() and any(campaign.runs_dir.iterdir()):
            raise ValueError(
                f"{campaign.folder} holds another campaign (differing: {', '.join(differing)}); "
                "give the same flags, or another --output_dir"
            )
        if differing:
            json_text.write_record(campaign.folder / log_reader.CAMPAIGN_RECORD, content)
        yield


def _record_of(folder: Path, content: dict[str, object]) -> dict:
    """Returns what a campaign's record says; in an empty folder `content` becomes the record."""
    record = folder / log_reader.CAMPAIGN_RECORD
    if record.exists():
        return log_reader.read_own_record(record)
    if folder.exists() and any(path.name != locks.LOCK_NAME for path in folder.iterdir()):
        raise ValueError(f"{folder} is not empty; choose another --output_dir")
    paths.make_folder(folder)
    json_text.write_record(record, content)
    return content


def train_runs(campaign: Campaign) -> list[RunResult]:
    """Trains the missing runs of a campaign; returns what all logs say, in order.

    Raises:
      ValueError: a run was refused before its clock started, or more failed than the rules forgive.
      Interrupted: a run was stopped by a signal.
    """
    runs: list[RunResult] = []
    for number in range(campaign.num_runs):
        run = finished_run(campaign.output_dirs(number)[-1], campaign.log_name)
        runs.append(run or _train(campaign, number))  # finished runs stay
        failed = [str(run_number) for run_number, other in enumerate(runs) if not other.succeeded]
        if len(failed) > MAX_FAILED_RUNS:
            raise ValueError(
                f"runs {' and '.join(failed)} did not reach the target, the rules forgive "
                f"{MAX_FAILED_RUNS} of {NUM_RUNS_PER_RESULT}: no result can come of this "
                "campaign. Fix the hyper-parameters and start a new one"
            )
    return runs


def interrupted_runs(campaign: Campaign) -> list[str]:
    """Returns a line about each run that was cut off, so that none goes unreported."""
    return [
        f"{folder.name}: cut off, run again"
        for number in range(campaign.num_runs)
        for folder in campaign.output_dirs(number)[:-1]
    ]


def _train(campaign: Campaign, number: int) -> RunResult:
    output_dir = campaign.output_dirs(number)[-1]
    is_trained = (output_dir / log_reader.LOG_NAME).exists() and has_ended(output_dir)
    if not is_trained:
        output_dir = _vacant_dir(campaign, number)
    training, *evaluation = campaign.run_commands(output_dir)
    for command in evaluation if is_trained else [training, *evaluation]:
        print(
            f"\n[{time.strftime('%H:%M:%S')}] run {number + 1} of {campaign.num_runs}\n"
            f"$ {shlex.join(command)}",
            flush=True,
        )
        returncode = _call(command)
        if returncode == EXIT_TRY_AGAIN or _is_of_a_kill(returncode):
            if has_ended(output_dir):
                raise Interrupted(f"stopped after run {number}; the same command resumes")
            raise Interrupted(
                f"run {number} was stopped; the same command resumes, with run {number} again"
            )
        if not has_ended(output_dir):  # then there is nothing to evaluate
            break
    run = finished_run(output_dir, campaign.log_name)
    if run is None:
        raise ValueError(
            f"run {number} ended with exit code {returncode} and left no finished "
            f"{output_dir / campaign.log_name}; see its message above, fix it and give the same "
            "command again"
        )
    return run


def _is_of_a_kill(returncode: int) -> bool:
    """Whether a signal ended the command, or a process in its container (128 + signal)."""
    return returncode < 0 or returncode - 128 in signal.valid_signals()


def _vacant_dir(campaign: Campaign, number: int) -> Path:
    """Returns a folder where a run can start: one where no run was cut off."""
    *_, output_dir = dirs = campaign.output_dirs(number)
    if not output_dir.exists():
        return output_dir
    if locks.DirectoryLock(output_dir).is_held_elsewhere():
        raise ValueError(f"{output_dir}: run {number} is still training; stop it, or wait for it")
    if not any(output_dir.iterdir()):
        return output_dir  # it was made for a container that has refused to run
    return campaign.runs_dir / f"{number}.repeat-{len(dirs)}"


def _call(command: Sequence[str]) -> int:
    """Runs a command; returns its exit code, or EXIT_TRY_AGAIN for 0 if a signal came meanwhile.

    SIGINT and others (as SIGTERM) are handed on to the command, and it is waited for.
    """
    child, received = None, []

    def hand_on(signal_number: int, frame: object) -> None:
        # A command of another kind may know SIGTERM alone.
        received.append(signal.SIGINT if signal_number == signal.SIGINT else signal.SIGTERM)
        if child:
            child.send_signal(received[-1])

    # Handlers come before the command, so that no signal comes between.
    previous = {s: signal.signal(s, hand_on) for s in handled()}
    try:
        # Standard input is no terminal: an engine would take the keys, Ctrl-C too.
        null = subprocess.DEVNULL
        with subprocess.Popen(command, start_new_session=True, stdin=null) as child:
            for signal_number in tuple(received):
                child.send_signal(signal_number)
            returncode = child.wait()
            # The command may have ended by itself, just then.
            return EXIT_TRY_AGAIN if received and returncode == 0 else returncode
    finally:
        for signal_number, handler in previous.items():
            signal.signal(signal_number, handler)


def run_campaign(
    campaign: Campaign,
    *,
    ruleset: str,
    custom_rcps: Path | None,
    overrides: dict[str, object],
) -> SystemVerdict:
    """Trains, writes the submission, asks the official tools.

    Raises:
      ValueError: bad input, or the runs cannot become a result; one line says why.
      Interrupted: a run was stopped by a signal.
    """
    convergence.reference_points(ruleset, custom_rcps)
    system.require_fields(overrides)
    require_startable(campaign)
    with claimed(campaign):
        runs = train_runs(campaign)
        write_submission(campaign, runs, ruleset=ruleset, overrides=overrides)
        return judge_submission(campaign.org_dir, campaign.system, ruleset, custom_rcps=custom_rcps)


def require_startable(campaign: Campaign) -> None:
    """Checks inputs that only the first run, or what follows it, will use."""
    if shutil.which(campaign.command[0]) is None:
        raise ValueError(f"--run_command: {campaign.command[0]}: no such command")
    if campaign.in_containers:  # its paths are those of the container
        return
    for pattern in (campaign.offline_eval_input_file or "").split(","):
        if pattern and not matching_files(pattern.strip()):
            raise ValueError(f"--offline_eval_input_file: no file matches {pattern}")


def _report_lines(campaign: Campaign, verdict: SystemVerdict) -> list[str]:
    lines = [f"\nsubmission: {campaign.org_dir}"]
    lines += [
        f"run {number}: {run.status}, {run.minutes:.4f} minutes, accuracy "
        f"{run.evaluations[-1].accuracy if run.evaluations else 0:.4f}, "
        f"{run.samples_to_converge or 0:,} samples, seed {run.seeds[0] if run.seeds else '-'}, "
        f"caches {'emptied' if run.cache_cleared else 'NOT emptied'}"
        for number, run in enumerate(verdict.runs)
    ]
    lines += interrupted_runs(campaign)
    if division_of(verdict.runs) == "open":
        lines.append(
            "division open: each run departs from the closed rules, as it said at its start"
        )
    return lines + verdict.lines()


@ends_in_one_line("campaign")
def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a campaign; returns 0 if everything passed, 1 if not, 75 if interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m mlperf_bert.submission.campaign",
        usage="%(prog)s --org=ORG --system=SYSTEM --output_dir=DIR [options] -- FLAGS_OF_ONE_RUN",
    )
    parser.add_argument("--org", required=True, help="the submitting organisation")
    parser.add_argument("--system", required=True, help="name of the system, such as 8xH200")
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--runs", type=int, default=NUM_RUNS_PER_RESULT)
    parser.add_argument("--status", choices=STATUSES, default=STATUSES[0])
    parser.add_argument(
        "--offline_eval_input_file", help="evaluate after each training, on these TFRecords"
    )
    parser.add_argument(
        "--run_command",
        type=shlex.split,
        help="starts one run, before its flags, such as 'srun python run_pretraining.py', or "
        "./start_training.sh for containers",
    )
    parser.add_argument("flags", nargs="*", metavar="FLAG", help="of run_pretraining.py, after --")
    parser.add_argument("--ruleset", default=RULESETS[-1])
    parser.add_argument(
        "--system_description", help="JSON file of fields that the machine does not show"
    )
    parser.add_argument("--custom_rcps", help="JSON file of other RCPs")
    options = parser.parse_args(expanded_arguments(arguments))
    campaign = Campaign(
        org=options.org,
        system=options.system,
        status=options.status,
        folder=paths.require_local(options.output_dir, flag="output_dir").resolve(),
        num_runs=options.runs,
        flags=tuple(options.flags),
        offline_eval_input_file=options.offline_eval_input_file,
        command=tuple(options.run_command or RUN_COMMAND),
    )
    overrides = options.system_description and json_text.read_object(options.system_description)
    points = options.custom_rcps and paths.require_local(options.custom_rcps, flag="custom_rcps")
    with paths.failures_named(campaign.folder):
        verdict = run_campaign(
            campaign,
            ruleset=options.ruleset,
            custom_rcps=points,
            overrides=overrides or {},
        )
    print("\n".join(_report_lines(campaign, verdict)))
    return 0 if verdict.passed else 1


if __name__ == "__main__":
    sys.exit(main())
