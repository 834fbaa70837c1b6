"""transformers, on the exported model, computes the same features, losses and predictions.

Dropout is 0. AdamW, its schedule and the clipping are written here a second time, in numpy, from
the papers: Kingma & Ba, arXiv 1412.6980, at the end of section 2; Loshchilov & Hutter, 1711.05101.
CPU, a minute.
"""

import numpy as np
import pytest
import tensorflow as tf
import transformers

from mlperf_bert.data.tokenization import Tokenizer
from mlperf_bert.finetuning import glue, model, weights
from mlperf_bert.finetuning.squad import SquadTask
from mlperf_bert.finetuning.training import TaskTrainer, batch_of, order_of_epoch, predictions
from mlperf_bert.optimization.optimizers import WarmupPolynomialDecay
from tests.finetuning.generated_glue import MAX_SEQ_LENGTH, config_of
from tests.helpers.gradients import assert_bfloat16_is_near, require_sums_in_float32

NUM_STEPS, NUM_WARMUP_STEPS, BATCH_SIZE, LEARNING_RATE = 20, 4, 8, 2e-3


@pytest.fixture(scope="module")
def source(made):
    config = config_of(made)
    return weights.find(config, [config.create("cola")])


@pytest.mark.parametrize("name", glue.NAMES)
def test_features_are_those_of_transformers(made, hugging_face, name):
    theirs = transformers.BertTokenizer.from_pretrained(hugging_face)
    theirs.wordpiece_tokenizer.max_input_chars_per_word = 200  # as in the reference
    tokenizer = Tokenizer(str(hugging_face / "vocab.txt"))
    task = glue.create(name, str(made / "glue"), max_seq_length=MAX_SEQ_LENGTH)
    for split in {"train", *task.eval_splits, *task.predicted_splits}:
        examples = task.read(split)
        ours = task.encode(examples, tokenizer, is_training=False)
        second = [e.text_b for e in examples] if examples[0].text_b is not None else None
        is_test = split in task.predicted_splits
        assert {one.label is None for one in examples} == {is_test} == {"labels" not in ours}
        found = theirs(
            [e.text_a for e in examples],
            second,
            max_length=MAX_SEQ_LENGTH,
            padding="max_length",
            truncation="longest_first",
            return_tensors="np",
        )
        np.testing.assert_array_equal(ours["input_ids"], found["input_ids"])
        np.testing.assert_array_equal(ours["input_mask"], found["attention_mask"])
        np.testing.assert_array_equal(ours["segment_ids"], found["token_type_ids"])


def trainer_of(task, source) -> TaskTrainer:
    schedule = WarmupPolynomialDecay(
        learning_rate=LEARNING_RATE,
        num_train_steps=NUM_STEPS,
        num_warmup_steps=NUM_WARMUP_STEPS,
    )
    return TaskTrainer(build_model=lambda: model.build(task, source, seed=5), schedule=schedule)


class NumpyAdamW:
    """AdamW with bias correction over the variables of a model of transformers."""

    def __init__(self, variables):
        self.variables = variables
        self.m = [np.zeros(v.shape) for v in variables]
        self.v = [np.zeros(v.shape) for v in variables]
        self.num_updates = 0

    def apply(self, gradients) -> None:
        gradients = [tf.convert_to_tensor(g).numpy().astype(float) for g in gradients]
        norm = np.sqrt(sum((gradient**2).sum() for gradient in gradients))
        gradients = [gradient / max(1.0, norm) for gradient in gradients]
        done = self.num_updates
        rate = LEARNING_RATE * (
            done / NUM_WARMUP_STEPS if done < NUM_WARMUP_STEPS else 1 - done / NUM_STEPS
        )
        self.num_updates = t = done + 1
        for number, (variable, gradient) in enumerate(zip(self.variables, gradients)):
            self.m[number] = 0.9 * self.m[number] + 0.1 * gradient
            self.v[number] = 0.999 * self.v[number] + 0.001 * gradient**2
            corrected = np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
            value = variable.numpy().astype(float)
            if "LayerNorm" not in variable.name and not variable.name.endswith("bias:0"):
                value -= rate * 0.01 * value
            value -= rate * corrected * self.m[number] / (np.sqrt(self.v[number]) + 1e-8)
            variable.assign(value.astype(np.float32))


def their_inputs(features, rows):
    names = {
        "input_ids": "input_ids",
        "attention_mask": "input_mask",
        "token_type_ids": "segment_ids",
    }
    return {theirs: tf.constant(features[ours][rows]) for theirs, ours in names.items()}


def assert_same_training(trainer, theirs, features, their_logits, their_loss) -> None:
    """Twenty steps with equal losses; then equal predictions."""
    num_features = len(features["input_ids"])
    theirs_optimizer = NumpyAdamW(theirs.trainable_variables)
    order = np.concatenate([order_of_epoch(num_features, seed=2, epoch=n) for n in range(9)])
    found, expected = [], []
    for step in range(NUM_STEPS):
        rows = order[step * BATCH_SIZE : (step + 1) * BATCH_SIZE]
        if step == 7:
            rows = rows[:3]  # a short batch at the end of an epoch
        [[loss]] = trainer.train(iter([batch_of(features, rows, BATCH_SIZE)]), 1)
        found.append(loss)
        with tf.GradientTape() as tape:
            loss = their_loss(their_logits(rows), rows)
        theirs_optimizer.apply(tape.gradient(loss, theirs.trainable_variables))
        expected.append(float(loss))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert abs(found[0] - found[-1]) > 1e-3  # something was learned
    outputs = predictions(trainer, features, size=5)
    others = their_logits(np.arange(num_features)).numpy()
    if outputs.ndim == 3:
        # The bias of a begin's or an end's logit has no gradient but noise, which AdamW scales up:
        # softmax over the positions does not see it.
        outputs, others = (
            tf.nn.log_softmax(logits, axis=1).numpy() for logits in (outputs, others)
        )
    np.testing.assert_allclose(outputs, others, rtol=0, atol=1e-4)
    if outputs.shape[-1] > 1:
        np.testing.assert_array_equal(outputs.argmax(1), others.argmax(1))


def task_and_features(name, made, source):
    task = glue.create(name, str(made / "glue"), max_seq_length=MAX_SEQ_LENGTH)
    features = task.encode(task.read("train"), source.tokenizer, is_training=True)
    return task, features


@pytest.mark.parametrize(
    "name", ["cola", *(pytest.param(name, marks=pytest.mark.gate) for name in ("mnli", "stsb"))]
)
def test_losses_and_predictions_of_classifiers(made, source, hugging_face, name):
    task, features = task_and_features(name, made, source)
    trainer = trainer_of(task, source)
    theirs = transformers.TFBertForSequenceClassification.from_pretrained(
        hugging_face, num_labels=task.num_labels
    )
    assert theirs.config.hidden_dropout_prob == 0
    head = trainer.model.classifier.out_proj
    for ours, other in zip((head.kernel, head.bias), theirs.classifier.weights):
        other.assign(ours)

    def logits(rows):
        return theirs(**their_inputs(features, rows)).logits

    def loss(found, rows):
        labels = features["labels"][rows]
        if name == "stsb":
            return tf.reduce_mean((found[:, 0] - labels) ** 2)
        chosen = tf.gather(tf.nn.log_softmax(found), labels, batch_dims=1)
        return -tf.reduce_mean(chosen)

    assert_same_training(trainer, theirs, features, logits, loss)


@pytest.mark.gate
def test_losses_and_predictions_of_spans(made, source, hugging_face):
    _, features = task_and_features("rte", made, source)
    del features["labels"]
    lengths = features["input_mask"].sum(axis=1)
    features["start_positions"] = (lengths // 3).astype(np.int32)
    features["end_positions"] = (lengths // 2).astype(np.int32)
    trainer = trainer_of(SquadTask(data_dir=""), source)
    theirs = transformers.TFBertForQuestionAnswering.from_pretrained(hugging_face)
    names = [v.name for v in trainer.model.trainable_variables]
    assert any("pooler" in name for name in names)
    pooler = [v for v in trainer.model.trainable_variables if "pooler" in v.name]
    before = [variable.numpy() for variable in pooler]
    [kernel, bias] = trainer.model.span_labeling.weights
    for ours, other in zip((kernel, bias), theirs.qa_outputs.weights):
        other.assign(ours)

    def logits(rows):
        found = theirs(**their_inputs(features, rows))
        return tf.stack([found.start_logits, found.end_logits], axis=-1)

    def loss(found, rows):
        log = tf.nn.log_softmax(found, axis=1)
        begin = tf.gather(log[..., 0], features["start_positions"][rows], batch_dims=1)
        end = tf.gather(log[..., 1], features["end_positions"][rows], batch_dims=1)
        return -tf.reduce_mean(begin + end) / 2

    assert_same_training(trainer, theirs, features, logits, loss)
    for variable, value in zip(pooler, before):  # it has no part in spans
        np.testing.assert_array_equal(variable.numpy(), value)


@pytest.mark.gate
@pytest.mark.parametrize(
    "eighths", [4, 1, None], ids=["two classes", "one class above all", "spans"]
)
def test_every_gradient_in_bfloat16_is_near_float32s(made, source, eighths):
    """Biases too, which a layer of Keras adds up in bfloat16 on a CPU.

    The head's error is largest where both classes nearly cancel, the pooler's where one sign
    prevails and the sum stands still: 4.6 and 24% in bfloat16. `eighths` are of the second class.
    """
    require_sums_in_float32()
    spans, num = eighths is None, 512 if eighths else 64
    random, shape = np.random.RandomState(1), (num, MAX_SEQ_LENGTH)
    features = {
        "input_ids": random.randint(source.config.vocab_size, size=shape),
        "input_mask": np.ones(shape),
        "segment_ids": random.randint(2, size=shape),
    }
    if spans:  # all at the first token: random positions would cancel, but for rounding
        task = SquadTask(data_dir="")
        features |= {"start_positions": np.zeros(num), "end_positions": np.zeros(num)}
    else:
        task = glue.create("rte", str(made / "glue"))
        features["labels"] = random.randint(8, size=num) < eighths
    features = {name: tf.constant(values, tf.int32) for name, values in features.items()}

    @tf.function(autograph=False)
    def gradients(built):
        with tf.GradientTape() as tape:
            logits = model.forward(built, features, training=False)
            loss = tf.reduce_mean(model.losses(logits, features))
        return tape.gradient(loss, model.trained_variables(built))

    found = {}
    for precision in ("float32", "bfloat16"):
        built = model.build(task, source, seed=5, precision=precision)
        found[precision] = [tf.convert_to_tensor(g).numpy() for g in gradients(built)]
    names = [variable.name for variable in model.trained_variables(built)]
    assert spans or any("pooler_transform/bias" in name for name in names), names
    assert_bfloat16_is_near(names, found["bfloat16"], found["float32"])
