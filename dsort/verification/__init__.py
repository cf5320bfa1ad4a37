"""Verification: whether an output bucket holds exactly what the job's spec makes of its inputs.

Read ``verify`` first: a manifest goes in, a report of the differences comes out. ``inputs`` and
``outputs`` read the shards of each side again, ``comparison`` and ``order`` compare them,
``findings`` collects problems. Nothing that the job planned is used, so that wrong decisions show.
"""
