"""Schedules: definitions, due times, the jobs made for them, and the retention of results.

A schedule takes a user's definition and the clock, and makes one job for each due time, whatever
the number of replicas. It also moves the ``latest`` pointer and removes older results. ``due`` and
``rules`` read no clock.
"""
