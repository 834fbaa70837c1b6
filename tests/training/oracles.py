"""The tasks of which the reference's training is recorded: on real text, and on a generated one."""

import dataclasses
import json
from pathlib import Path

from mlperf_bert.input.pipeline import ExampleShape
from mlperf_bert.model.config import BertConfig
from tests.training import generated_task


@dataclasses.dataclass(frozen=True)
class Oracle:
    """A task, and what the reference made of it."""

    folder: Path
    checkpoint: str
    shape: ExampleShape
    eval_batch_size: int
    recorded: Path
    num_updates_in_weights: dict = dataclasses.field(default_factory=dict)

    @property
    def config(self) -> BertConfig:
        return BertConfig.from_json_file(self.folder / "bert_config.json")

    @property
    def trajectories(self) -> dict:
        return json.loads(self.recorded.read_text())["trajectories"]

    @property
    def evaluations(self) -> dict:
        return json.loads(self.recorded.read_text())["evaluations"]

    def delta_l2(self, name: str) -> dict[str, float]:
        """L2 norm of every weight's change, by TF1 name."""
        case = self.trajectories[name]
        if "delta_l2" in case:
            return case["delta_l2"]
        return {weight: values["delta_l2"] for weight, values in case["final_weights"].items()}

    def plan(self) -> dict:
        """The files and their shape, for recorded_cases.py."""
        own = {"init_checkpoint": self.checkpoint, "shape": dataclasses.asdict(self.shape)}
        files = generated_task.files_of(self.folder)
        return files | own | {"eval_batch_size": self.eval_batch_size}


def oracle_of(request, tmp_path_factory) -> Oracle:
    """The one that a fixture's parameter names, "golden" or "generated"."""
    if request.param == "golden":
        folder = request.getfixturevalue("shared") / "golden"
        return Oracle(
            folder=folder,
            checkpoint=str(folder / "init" / "model.ckpt-28252"),
            shape=ExampleShape(max_seq_length=128, max_predictions_per_seq=20),
            eval_batch_size=14,
            recorded=folder / "trajectories.json",
            # The reference's AdamW reads its step counter while the same step increases it: a
            # race, seen by printing the rate of every step in its own stack. When the recorded
            # run's last step lost it, that step's rate was the one of step 20, which is 0; so its
            # final weights are those after 19 updates.
            num_updates_in_weights={"g4_adamw": 19},
        )
    folder = tmp_path_factory.mktemp("generated") / "task"
    generated_task.write_task(folder)
    return Oracle(
        folder=folder,
        checkpoint=str(folder / "init" / "model.ckpt-0"),
        shape=generated_task.SHAPE,
        eval_batch_size=9,
        recorded=Path(__file__).with_name("reference_trajectories.json"),
    )
