"""TFRecord: frames of a length, its checksum, a record, and its checksum.

``container`` is the interface to the rest of dsort, ``frames`` reads and makes frames as rows of a
member table, ``example`` the features of the ``tf.train.Example`` in each. Only this folder depends
on TensorFlow's masked checksums and the encoding of an Example.
"""
