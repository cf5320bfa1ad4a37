"""Verification: whether an output bucket holds exactly what the job's spec makes of its inputs.

Read ``verify`` first: a manifest goes in, a report of the differences comes out. ``inputs`` and
``outputs`` read the shards of each side again, ``comparison`` and ``order`` compare them,
``findings`` collects problems. No module reads the job's plan, so wrong decisions are found, too.
"""
