"""The tar container: reads ustar, GNU, pax and V7 archives, copies members with their headers.

It reads a shard's bytes and returns members as byte ranges, which include their header blocks and
padding. ``header`` reads and writes one header, ``member`` one member, ``fields`` and ``vector``
many plain headers at once, and ``scan`` a whole shard.
"""
