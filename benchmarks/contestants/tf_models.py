"""tf-models' default trainer, its experiment bert/pretraining; see training_throughput.py."""

from mlperf_bert.tensorflow_import import tensorflow

if __name__ == "__main__":
    tensorflow()  # before other modules import it

import json
import sys
from pathlib import Path

import tensorflow as tf
from official.core import exp_factory, task_factory, train_utils
from official.modeling import performance
from official.nlp.configs import pretraining_experiments  # noqa: F401 - registers the experiment


def main() -> None:
    """Trains, and prints STEP after every step."""
    task = json.loads(sys.argv[1])
    performance.set_mixed_precision_policy(tf.as_dtype(task["precision"]))
    bert = json.loads(Path(task["bert_config_file"]).read_text(encoding="utf-8"))
    config = exp_factory.get_exp_config("bert/pretraining")
    encoder = config.task.model.encoder.bert
    encoder.vocab_size = bert["vocab_size"]
    encoder.hidden_size = bert["hidden_size"]
    encoder.num_layers = bert["num_hidden_layers"]
    encoder.num_attention_heads = bert["num_attention_heads"]
    encoder.intermediate_size = bert["intermediate_size"]
    config.task.model.cls_heads[0].inner_dim = bert["hidden_size"]
    config.task.train_data.input_path = task["record_file"]
    config.task.train_data.global_batch_size = task["batch_size"]
    optimizer = config.trainer.optimizer_config
    optimizer.optimizer.type = "lamb"
    optimizer.learning_rate.polynomial.decay_steps = 10**6
    optimizer.warmup.polynomial.warmup_steps = 1
    task = task_factory.get_task(config.task)
    trainer = train_utils.create_trainer(config, task, train=True, evaluate=False)
    while True:
        trainer.train(tf.constant(1))
        print("STEP", flush=True)


if __name__ == "__main__":
    main()
