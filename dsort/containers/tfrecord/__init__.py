"""TFRecord: frames of a length, its checksum, a record, and its checksum.

In: the bytes of a shard. Out: a member table whose rows are whole frames, or the features of the
``tf.train.Example`` in each; and frames of other containers' members. Only this folder knows how
TensorFlow masks checksums and how an Example is encoded.
"""
