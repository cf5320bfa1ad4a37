"""The tar container: reads ustar, GNU, pax and V7 archives, copies members with their headers.

The container reads a shard's bytes and returns members as byte ranges, which include their header
blocks and padding. Read ``scan`` first, which reads a whole shard: ``header`` is about one header,
``member`` about one member, ``fields`` and ``vector`` about many plain headers at once.
"""
