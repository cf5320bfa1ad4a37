"""Verification: whether an output bucket holds exactly what the job's spec makes of its inputs.

Read ``verify`` first: a manifest goes in, a report of the differences comes out. ``inputs`` and
``outputs`` read the shards of each side again, ``comparison`` and ``order`` compare them,
``findings`` collects problems. It uses none of the job's plans, so that wrong decisions are found.
"""
