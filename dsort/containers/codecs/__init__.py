"""Codecs: they compress a whole shard, around any container. ``base`` has the contract.

A codec decodes the stream of an encoded file to the bytes of the container, and checks these bytes;
a codec also encodes such bytes. The last suffix of a shard's name shows its codec
(``containers.registry.codec_of``).
"""
