"""Campaigns, verdicts and reports in a bucket: the same files as on local disks."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from mlperf_bert.files import json_text, paths
from mlperf_bert.submission import campaign, official
from tests.helpers import starts, waiting
from tests.mlperf.example_log import write_log
from tests.stores.rig import files_in

IN_BUCKET = "gs://bucket/campaign"
INTERRUPTED = campaign.EXIT_TRY_AGAIN
# In place of run_pretraining.py: leaves the files of the first folder in runs/N, next to it, as the
# run's, and removes that folder, whose name is the exit code.
STAND_IN = """
import os, pathlib, shutil, ssl, sys, urllib.parse, urllib.request
output_dir = next(f.partition("=")[2] for f in sys.argv if f.startswith("--output_dir="))
number = output_dir.rpartition("/")[2].partition(".")[0]
source = sorted(pathlib.Path(__file__).parent.glob(f"runs/{number}/*"))[-1]
if output_dir.startswith("gs://"):
    bucket, _, folder = output_dir.removeprefix("gs://").partition("/")
    tls = ssl.create_default_context(cafile=os.environ["CURL_CA_BUNDLE"])
    for file in source.iterdir():
        query = urllib.parse.urlencode({"uploadType": "media", "name": f"{folder}/{file.name}"})
        url = f"https://storage.googleapis.com/upload/storage/v1/b/{bucket}/o?{query}"
        headers = {"Authorization": "Bearer " + os.environ["GOOGLE_AUTH_TOKEN_FOR_TESTING"]}
        request = urllib.request.Request(url, file.read_bytes(), headers)
        urllib.request.urlopen(request, context=tls).close()
else:
    shutil.copytree(source, output_dir)
shutil.rmtree(source)
sys.exit(int(source.name))
"""


class Host:
    """A machine with a temporary folder of its own that reaches the store."""

    def __init__(self, folder: Path, store):
        """Makes the folder."""
        folder.mkdir()
        self.folder = folder
        self._environment = {**os.environ, **store.environment, "TMPDIR": str(folder)}

    def start(self, command: str, *words: object) -> starts.Start:
        program = [sys.executable, f"mlperf_bert/submission/{command}.py", *words]
        return starts.Start(program, env=self._environment)

    def run(self, command: str, *words: object) -> tuple[int, str, str]:
        """Exit code, standard output and standard error."""
        started = self.start(command, *words)
        output, errors = started.communicate(timeout=300)
        assert "Traceback" not in errors
        return started.returncode, output, errors


@pytest.fixture
def host(store, bucket, tmp_path) -> Host:
    return Host(tmp_path / "host", store)


@pytest.fixture(scope="module")
def logs(tmp_path_factory) -> Path:
    """Two runs, N/EXIT_CODE; the second is cut off at first."""
    folder = tmp_path_factory.mktemp("logs")
    for number, code, accuracies, status in (
        (0, 0, [0.5, 0.73], "success"),
        (1, INTERRUPTED, [0.5], "running"),
        (1, 0, [0.5, 0.73], "success"),
    ):
        run = folder / str(number) / str(code)
        run.mkdir(parents=True)
        write_log(run / "bert.log", accuracies, seed=100 + number)
        (run / "run.json").write_text(json.dumps({"status": status}))
    return folder


@pytest.fixture
def flags_into(logs, tmp_path):
    """The flags of a campaign into a folder, over the logs."""

    def flags_into(output_dir: object) -> list[str]:
        folder = tmp_path / str(output_dir).replace("/", "_")
        shutil.copytree(logs, folder / "runs")
        (folder / "stand_in.py").write_text(STAND_IN)
        command = f"--run_command={sys.executable} {folder / 'stand_in.py'}"
        own = ["--org=example", "--system=1xExample", "--runs=2", f"--output_dir={output_dir}"]
        return [*own, command, "--", "--x=1"]

    return flags_into


def files_of_bucket(store) -> dict[str, bytes]:
    found = store.objects("bucket").items()
    return {name.removeprefix("campaign/"): content for name, content in found if name[-1] != "/"}


@pytest.mark.all
def test_a_campaign_goes_on_from_the_bucket_alone(host, store, flags_into, tmp_path):
    local = tmp_path / "local"
    flags, twin_flags = flags_into(IN_BUCKET), flags_into(local)
    code, _, errors = host.run("campaign", *flags)
    assert code == INTERRUPTED
    assert errors == "campaign: run 1 was stopped; the same command goes on, with run 1 again\n"
    assert files_of_bucket(store).keys() == {
        "campaign.json",
        *(f"runs/{number}/{name}" for number in (0, 1) for name in ("bert.log", "run.json")),
    }
    store.put("bucket", "campaign/submission/example/old", b"of an earlier verdict")
    other = Host(tmp_path / "other", store)
    shutil.rmtree(host.folder)
    code, output, errors = other.run("campaign", *flags)
    assert (code, errors) == (1, "")  # two runs are no result
    assert "run 1 of 2" not in output and f"--output_dir={IN_BUCKET}/runs/1.repeat-1" in output

    assert other.run("campaign", *twin_flags)[0] == INTERRUPTED
    code, twin_output, _ = other.run("campaign", *twin_flags)
    assert code == 1
    verdict, twin_verdict = (text.partition("\nrun 0: ")[2] for text in (output, twin_output))
    assert verdict.replace(IN_BUCKET, str(local)) == twin_verdict
    assert "1: cut off, run again" in verdict
    assert files_of_bucket(store) == files_in(local)
    assert [path.name for path in other.folder.iterdir() if "mlperf" in path.name] == []

    reported = {}
    for org_dir, page in (
        (f"{IN_BUCKET}/submission/example", f"{IN_BUCKET}/pages/report.html"),
        (local / "submission" / "example", local / "pages" / "report.html"),
    ):
        code, output, errors = other.run("report", org_dir, f"--output={page}")
        assert (code, errors) == (0, "")
        reported[str(org_dir)] = output
    (name, output), (twin_name, twin_output) = reported.items()
    assert output == twin_output
    found, twin = files_of_bucket(store), files_in(local)
    assert found["pages/report.html"] == twin["pages/report.html"]
    numbers = found["pages/report.json"].decode()
    assert f'"path": "{name}/results/1xExample/bert/result_0.txt"' in numbers
    assert numbers.replace(name, twin_name) == twin["pages/report.json"].decode()


def test_a_log_in_a_bucket_is_judged_as_on_disks(host, store, logs):
    log = (logs / "0" / "0" / "bert.log").read_bytes()
    store.put("bucket", "result_0.txt", log.replace(b"0.73", b"0.70"))
    code, output, errors = host.run("compliance", "gs://bucket/result_0.txt", "--ruleset=5.0.0")
    assert (code, errors) == (1, "")
    assert output.startswith("5.0.0 FAILED gs://bucket/result_0.txt\n    ")
    assert "v['value'] >= 0.720" in output
    store.put("bucket", "result_1.txt", log)
    reason = store.call(_seeds).reasons[0]
    assert reason.startswith("Result file gs://bucket/result_1.txt logs seed 100 on ")
    assert "result file gs://bucket/result_0.txt already logs the same seed" in reason


def _seeds() -> official.ToolVerdict:
    logs = [paths.location(f"gs://bucket/result_{number}.txt") for number in range(2)]
    return official.check_seeds(logs, "5.0.0")


def test_a_campaign_whose_folder_was_taken_over_replaces_nothing(store, bucket):
    store.put("bucket", "campaign/submission/o/old", b"of the other's verdict")
    store.call(_lose)
    assert files_of_bucket(store).keys() == {"campaign.json", ".lock", "submission/o/old"}


def _lose() -> None:
    """A campaign that another host takes over during its last run."""
    made = campaign.Campaign(
        org="o", system="s", status="onprem", folder=paths.location(IN_BUCKET), num_runs=1,
        flags=("--x=1",),
    )  # fmt: skip
    with paths.failures_named(IN_BUCKET):
        json_text.write_record(made.folder / "campaign.json", {})

    def train_runs(campaign):
        (made.folder / ".lock").write_bytes(b"process 7 on elsewhere")
        return []

    campaign.train_runs = train_runs
    campaign.write_submission = lambda local, runs, **_: local.org_dir.mkdir(parents=True)
    campaign.judge_submission = lambda org_dir, *_, **__: (org_dir / "new").touch()
    with pytest.raises(OSError, match=r"\.lock: process 7 on elsewhere has taken over; this"):
        campaign.run_campaign(made, ruleset="5.0.0", custom_rcps=None, overrides={})


@pytest.mark.gate
def test_two_campaigns_do_not_share_a_folder(host, store, flags_into):
    flags = flags_into(IN_BUCKET)
    sleeps = f"--run_command={sys.executable} -c 'import time; time.sleep(60)'"
    first = host.start("campaign", *(sleeps if "run_command" in word else word for word in flags))
    try:
        waiting.until(lambda: "campaign/campaign.json" in store.objects("bucket"), first)
        code, _, errors = host.run("campaign", *flags)
        assert code == 1 and errors.endswith(
            f"\ncampaign: {IN_BUCKET}: another campaign works in it; wait for it, or stop it\n"
        )
    finally:
        first.terminate()
        first.wait(timeout=300)
    assert files_of_bucket(store).keys() <= {"campaign.json", ".lock"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("campaign --output_dir=gs://nowhere/campaign", ": no such bucket or object; check the"),
        ("campaign --output_dir=http://x/campaign", ": give a local path or gs://BUCKET/FOLDER"),
        ("campaign --output_dir=gs://bucket/object", ": is a file, not a folder; choose another"),
        ("campaign --output_dir=gs://bucket/full", " is not empty; choose another --output_dir"),
        ("campaign --system_description=gs://bucket/absent.json", ": no such bucket or object"),
        ("campaign --custom_rcps=gs://bucket/object", ": no file of reference points"),
        ("report gs://nowhere/o", ": no such bucket or object"),
        ("report gs://", ": give a local path or gs://BUCKET/FOLDER"),
        ("compliance gs://nowhere/o", ": no such log; give the path"),
        ("compliance ftp://a/b", ": give a local path or gs://BUCKET/FOLDER"),
    ],
)
def test_bad_input_is_one_line(host, store, words, message):
    store.put("bucket", "object", b"")
    store.put("bucket", "full/x", b"")
    command, given = words.split()
    others = ["--org=o", "--system=s", "--output_dir=gs://bucket/c", given, "--", "--x=1"]
    code, output, errors = host.run(command, *(others if command == "campaign" else [given]))
    assert (code, output) == (1, "")
    [line] = errors.splitlines()
    assert line.startswith(f"{command}: {given.rpartition('=')[2]}{message}")
    assert store.objects("bucket").keys() == {"object", "full/x"}
    assert not list(Path().glob("gs:*"))


def test_no_permission_is_one_line(host, store, flags_into):
    flags = flags_into(IN_BUCKET)
    store.deny_writes()
    code, _, errors = host.run("campaign", *flags)
    assert code == 1
    [line] = errors.splitlines()
    assert line.startswith(f"campaign: {IN_BUCKET}/.lock: the store refuses these credentials")
    store.token = "another"
    for command, words in (
        ("campaign", flags),
        ("report", [IN_BUCKET]),
        ("compliance", [IN_BUCKET]),
    ):
        code, _, errors = host.run(command, *words)
        assert code == 1
        [line] = errors.splitlines()
        assert "the store refuses these credentials" in line
