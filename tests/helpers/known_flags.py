"""The flags of the reference with their defaults, and all flags that the page of flags has."""

import re

from mlperf_bert import flags_page

# Script -> flag -> default, the reference's but for those that say so.
REFERENCE_FLAGS: dict[str, dict[str, object]] = {
    "run_pretraining.py": {
        "bert_config_file": None,
        "input_file": None,
        "output_dir": None,
        "init_checkpoint": None,
        "max_seq_length": 128,
        "max_predictions_per_seq": 20,
        "do_train": False,
        "do_eval": False,
        "train_batch_size": 32,
        "eval_batch_size": 8,
        "optimizer": "adamw",
        "learning_rate": 5e-5,
        "poly_power": 1.0,
        "num_train_steps": 100000,
        "num_warmup_steps": 10000,
        "start_warmup_step": 0,
        "save_checkpoints_steps": 1000,
        "iterations_per_loop": 1000,
        "max_eval_steps": None,  # the reference: 100, which leaves examples out
        "use_tpu": False,
        "tpu_name": None,
        "tpu_zone": None,
        "gcp_project": None,
        "master": None,
        "num_tpu_cores": 8,
        "num_gpus": 0,
        "steps_per_update": 1,
        "keep_checkpoint_max": 5,
        "lamb_weight_decay_rate": 0.01,
        "lamb_beta_1": 0.9,
        "lamb_beta_2": 0.999,
        "log_epsilon": -6,
        "clip_by_global_norm_after_gradient_allreduce": False,
    },
    "create_pretraining_data.py": {
        "input_file": None,
        "output_file": None,
        "vocab_file": None,
        "do_lower_case": True,
        "preserve_unused_tokens": False,
        "max_seq_length": 128,
        "max_predictions_per_seq": 20,
        "random_seed": 12345,
        "dupe_factor": 10,
        "masked_lm_prob": 0.15,
        "short_seq_prob": 0.1,
    },
    "pick_eval_samples.py": {
        "input_tfrecord": None,
        "output_tfrecord": None,
        "num_examples_to_pick": 10000,
        "max_seq_length": 512,
        "max_predictions_per_seq": 76,
    },
    "tf2_encoder_checkpoint_converter.py": {
        "bert_config_file": None,
        "checkpoint_to_convert": None,
        "converted_checkpoint_path": None,
    },
    "checkpoint_add_gradacc.py": {"old": None, "new": None},
}
SCRIPTS = sorted(flags_page.EXPLAINED_IN)


def flags_of(script: str) -> set[str]:
    """The names of a script's flags, by the page of flags."""
    page = flags_page.PAGE.read_text(encoding="utf-8")
    section = page.partition(f"\n## {script}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^- `--(\w+)`", section, re.MULTILINE))
