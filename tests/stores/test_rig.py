"""The rig is a good stand-in for the store, and TensorFlow's client works with it unmodified."""

import tensorflow as tf


def _write_and_read(folder):
    with tf.io.gfile.GFile(f"{folder}/x", "w") as file:
        file.write("hello")
    return tf.io.gfile.GFile(f"{folder}/x").read()


def test_write_read(store, bucket):
    assert store.call(_write_and_read, f"gs://{bucket}/run") == "hello"
    assert store.objects(bucket) == {"run/x": b"hello"}
