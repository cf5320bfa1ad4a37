"""Counts of the records of one shard that came out of more, or fewer, than were read."""

from __future__ import annotations

import numpy as np

from dsort.data.columns import Int64s
from dsort.data.tally import FLOW_ADDED, FLOW_DROPPED, FLOW_READ, Tally
from dsort.workers.placing import Placed


def count_copies(shard: str, counts: Int64s, tally: Tally) -> None:
    """Of a mix. ``counts``: how often each record of the shard comes out."""
    left_out, more = int((counts == 0).sum()), int(np.maximum(counts - 1, 0).sum())
    tally.add("left_out_by_mix", left_out, [f"{left_out:,} in {shard}"])
    tally.add("copied_by_mix", more, [f"{more:,} in {shard}"])
    tally.add(f"{FLOW_DROPPED}mix", left_out)
    tally.add(f"{FLOW_ADDED}mix", more)


def count_flow(read: int, records: int, placed: Placed, tally: Tally) -> None:
    """``read`` records of a shard were read, and ``records`` came to their places."""
    kept = placed.kept()
    stays = records if kept is None else len(kept)
    tally.add(f"{FLOW_DROPPED}no place in an output", records - stays)
    if stays != read:
        tally.add(FLOW_READ, read)
