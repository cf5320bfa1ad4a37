"""Schedules: definitions, due times, the jobs made for them, and the retention of results.

In: definitions of users, and the clock. Out: one job for each due time, however many replicas there
are; the ``latest`` pointer; and older results removed. ``due`` and ``rules`` read no clock.
"""
