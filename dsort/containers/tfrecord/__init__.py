"""TFRecord: frames of a length, its checksum, a record, and its checksum.

Reads the bytes of a shard into a member table whose rows are whole frames, or the features of the
``tf.train.Example`` in each; and makes frames from other containers' members. Only this folder
depends on TensorFlow's masked checksums and the encoding of an Example.
"""
