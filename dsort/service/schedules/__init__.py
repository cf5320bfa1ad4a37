"""Schedules: definitions, due times, the jobs made for them, and the retention of results.

Read ``definition`` first, then ``fire``, which makes one job for each due time, with any number of
replicas. This package also moves the ``latest`` pointer, and ``retention`` removes older results.
``due`` reads no clock.
"""
