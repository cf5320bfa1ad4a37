"""The index that DALI reads beside a TFRecord shard, as its ``tfrecord2idx`` writes it: a line for
each record, where its frame begins and how long it is."""

from __future__ import annotations

import numpy as np

from dsort.data.columns import Int64s

__all__ = ["dali_index"]


def dali_index(stored_bytes: Int64s) -> bytes:
    """The index of a shard whose records take ``stored_bytes``, in their order, shape ``(n,)``."""
    starts = np.cumsum(stored_bytes) - stored_bytes
    rows = zip(starts.tolist(), stored_bytes.tolist(), strict=True)
    return "".join(f"{start} {size}\n" for start, size in rows).encode()
