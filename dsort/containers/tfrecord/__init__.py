"""TFRecord: frames of a length, its checksum, a record, and its checksum.

``container`` is the interface to the rest of dsort, and reads frames. ``example`` reads the
features of ``tf.train.Example``, and makes frames of Examples. Only this folder depends on
TensorFlow's masked checksums and the encoding of an Example.
"""
