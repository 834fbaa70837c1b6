"""Lines of logs, whoever wrote them, and what those of our own runs say: success and energy.

A run reads no more of its logs than this; results.py makes a result of one.
"""

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mlperf_bert.files import json_text, paths, whole
from mlperf_bert.files.whole import read_regular_file
from mlperf_bert.mlperf import energy
from mlperf_bert.mlperf.energy import Energy

LOG_NAME = "bert.log"
RESULT_LOG = "bert.offline.log"
"""Written by evaluations that were made after the training."""
METRICS_NAME = "metrics.jsonl"
RECORD_NAME = "run.json"
CAMPAIGN_RECORD = "campaign.json"
"""In the folder of several runs of the same kind."""
RECORD_REMEDY = "copy it here again, or choose another --output_dir"
_KILLED = "what a killed run took after its last checkpoint is not known"
_A_PIECE_IS_SILENT = "the log of a part of the run does not say its energy"
_TOKEN = ":::MLLOG "
_COLOUR = re.compile(r"(?:\x1b|\^\[|#033)\[[0-?]*[ -/]*[@-~]|\x1b[()][0-9A-B]")
"""As a terminal, `cat -v` and syslog have it; inside of JSON the byte is written otherwise."""
_OUT_OF_JSON = "take docker logs CONTAINER > OTHER, or jq -rj .log FILE > OTHER"
_OUT_OF_COLOURS = r"convert it: sed 's/\x1b\[[0-9;]*m//g' FILE > OTHER"
_END_OF_TIME_MS = 2**63


@dataclass(frozen=True)
class Record:
    """One line of a log."""

    time_ms: float
    key: str
    value: object
    metadata: dict


def is_end(status: object) -> bool:
    """Return whether a status of run.json is that of a run which has ended."""
    return status != "running"


def read_records(
    path: Path, *, may_be_cut: bool = False, may_be_empty: bool = False
) -> list[Record]:
    """Return the lines of a log; what stands before ":::MLLOG" (a rank, say) is skipped.

    The log may be in wide characters, coloured, or have each line in a JSON object, as docker's.
    With `may_be_cut` an incomplete last line, which a killed run leaves, is skipped too. With
    `may_be_empty` no line need be there yet.

    Raises:
      ValueError: no line of the file is of a log, or a line is cut or damaged.
    """
    text, _ = _plain(read_regular_file(path))
    records = []
    if may_be_cut:
        text = text[: text.rfind("\n") + 1]
    # Not splitlines: read as Latin-1, letters of UTF-8 look like further ends of lines to it.
    for number, line in enumerate(text.split("\n"), start=1):
        _, token, text = line.partition(_TOKEN)
        if not token:
            continue
        try:
            records.append(_record(json_text.parse_object(text)))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} line {number}: cut or damaged; copy the log again") from error
    if not records and not may_be_empty:
        raise ValueError(f"{path}: no line starts with {_TOKEN.strip()}, so this is no MLPerf log")
    return records


def require_plain(path: paths.Location) -> None:
    """Refuse a log that `read_records` takes out of its wrapping, and the official tools do not.

    Raises:
      ValueError: it is in wide characters, in JSON or coloured; says how to convert it.
    """
    _, wrapping = _plain(read_regular_file(path))
    if wrapping:
        kind, remedy = wrapping
        raise ValueError(f"{path}: {kind}, which the official tools do not read; {remedy}")


def _plain(content: bytes) -> tuple[str, tuple[str, str] | None]:
    """Return a log's text with plain ends of lines, and what hid its events, with the remedy."""
    wrapping = None
    if encoding := whole.wide(content) or _wide_without_mark(content):
        content = content.decode(encoding, errors="replace").encode()
        convert = f"convert it: iconv -f {encoding} -t UTF-8 FILE > OTHER"
        wrapping = f"is text in {encoding}", convert
    # Latin-1, as the official tools read: no byte of a foreign log is refused.
    text = content.removeprefix(whole.BYTE_ORDER_MARK.encode()).decode("latin-1")
    for unwrap, kind, remedy in (
        (_without_json, "has JSON around each line", _OUT_OF_JSON),
        (_without_colours, "is coloured", _OUT_OF_COLOURS),
    ):
        plain = unwrap(text)
        if _events(plain) != _events(text):
            wrapping = wrapping or (kind, remedy)
        text = plain
    return text.replace("\r\n", "\n").replace("\r", "\n"), wrapping


def _events(text: str) -> list[str]:
    return [line.partition(_TOKEN)[2] for line in text.split("\n") if _TOKEN in line]


def _without_colours(text: str) -> str:
    return _COLOUR.sub("", text)


def _wide_without_mark(content: bytes) -> str | None:
    for name, width in (("UTF-16LE", 2), ("UTF-16BE", 2), ("UTF-32LE", 4), ("UTF-32BE", 4)):
        at = content.find(_TOKEN.encode(name))
        # Those of one order hold the bytes of the other one between two characters.
        if at >= 0 and at % width == 0:
            return name
    return None


def _without_json(text: str) -> str:
    """Return the lines of which each is in a JSON object, as docker and journald keep them."""
    found = []
    for line in io.StringIO(text):
        try:
            fields = json_text.parse_object(line) if line.startswith("{") else {}
        except ValueError:
            fields = {}
        values = [value for value in fields.values() if isinstance(value, str)]
        inner = next((f"{value}\n" for value in values if _TOKEN in value), line)
        # Docker's own newline stays: it cuts a long line into pieces, of which the last one has it.
        found.append(fields["log"] if isinstance(fields.get("log"), str) else inner)
    return "".join(found)


def _record(fields: Mapping) -> Record:
    metadata, time_ms, key = fields["metadata"] or {}, fields["time_ms"], fields["key"]
    if not isinstance(metadata, dict) or not isinstance(key, str):
        raise TypeError("metadata is an object, key a text")
    if not isinstance(time_ms, int | float) or not abs(time_ms) < _END_OF_TIME_MS:
        raise TypeError("time_ms is a number")
    return Record(time_ms, key, fields["value"], metadata)


def values_of(records: list[Record], key: str) -> list:
    """Every value that a log has for a key."""
    return [record.value for record in records if record.key == key]


def counts_of(records: list[Record], key: str) -> list[float]:
    """Numbers of samples, of which a log may also say that it does not know them."""
    return [require_count(value, key) for value in values_of(records, key) if value is not None]


def require_count(value: object, key: str) -> float:
    """Return a number of samples; raises ValueError if the value of the key is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**63:
        raise ValueError(f"{key} is {value!r:.80}, which is not a number of samples")
    return value


def energy_of_run(records: Sequence[Record]) -> Energy | None:
    """Return what a log says of the energy up to its end; None if it says nothing.

    The log of a killed run ends without: then up to its last checkpoint, marked as too little.
    """
    found = [record for record in records if record.key == energy.LOG_KEY]
    for record in found:
        if record.metadata.get("of") == "run":
            return Energy.from_event(record.value, record.metadata)
    last = Energy.from_event(found[-1].value, found[-1].metadata) if found else None
    return last and replace(last, at_least=_KILLED)


def samples_at_success(logs: Sequence[paths.Location]) -> float | None:
    """Return after how many samples the logs of one run say that it has reached its target.

    None if none says so; what cannot be read says nothing.
    """
    for path in logs:
        try:
            records = read_records(path, may_be_cut=True)
            samples = counts_of(records, "train_samples")
        except (ValueError, OSError):
            continue
        ends = [record.metadata.get("status") for record in records if record.key == "run_stop"]
        if samples and ends[-1:] == ["success"]:
            return samples[-1]
    return None


def energy_of_pieces(logs: Sequence[paths.Location]) -> Energy | None:
    """Return the energy of all pieces of a run that was resumed; None if no log says anything.

    A log that is damaged makes the energy unknown.
    """
    try:
        return joined_energy([energy_of_run(read_records(log)) for log in logs])
    except (ValueError, OSError) as error:
        return Energy(unknown=str(error))


def joined_energy(pieces: Sequence[Energy | None]) -> Energy | None:
    """Return the sum; that of a piece whose log says nothing is missing in it."""
    known = [piece for piece in pieces if piece]
    if not known:
        return None
    joined = energy.total(known)
    return joined if len(known) == len(pieces) else replace(joined, at_least=_A_PIECE_IS_SILENT)


def seconds_spent(logs: Sequence[paths.Location]) -> float:
    """Return the used seconds of a time budget: from run_start to the last line, in all its logs.

    A killed run with a budget wrote its last line about a hundredth of it before its end, or later.

    Raises:
      ValueError: a log is damaged.
    """
    seconds = 0.0
    for path in logs:
        records = read_records(path, may_be_cut=True)
        start = next((record for record in records if record.key == "run_start"), None)
        if start:
            seconds += max(0.0, records[-1].time_ms - start.time_ms) / 1000
    return seconds
