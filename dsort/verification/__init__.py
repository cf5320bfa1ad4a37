"""Verification: whether an output bucket holds exactly what the job's spec makes of its inputs.

The input is a manifest, the result a report of the differences. ``inputs`` and ``outputs`` read the
shards of each side again, ``comparison`` and ``order`` compare them, ``findings`` collects the
problems. Nothing that the job planned or indexed is used, so that a wrong decision shows.
"""
