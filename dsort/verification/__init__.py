"""Verification: whether an output bucket holds exactly what the job's spec makes of its inputs.

In goes a manifest; out comes a report with the differences that were found. ``inputs`` and
``outputs`` read the shards of each side again, ``compare`` and ``order`` judge them, ``findings``
collects what is wrong. Nothing that the job planned or indexed is used: a wrong decision shows.
"""
