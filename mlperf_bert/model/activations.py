"""Activation functions by their names in `bert_config.json`.

They have a file of their own because every model needs one, and only the speed options the passes
of fusion.py.
"""

import tensorflow as tf
import tf_keras


def tanh_gelu(x: tf.Tensor) -> tf.Tensor:
    """The reference's gelu: the tanh approximation of Hendrycks & Gimpel, arXiv 1606.08415."""
    return tf_keras.activations.gelu(x, approximate=True)


ACTIVATIONS = {
    "gelu": tanh_gelu,
    "gelu_exact": tf_keras.activations.gelu,  # of most models on Hugging Face
    "relu": tf_keras.activations.relu,
    "tanh": tf_keras.activations.tanh,
    "linear": tf_keras.activations.linear,
}
