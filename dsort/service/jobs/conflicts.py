"""Whether two jobs may write one name, found out once for each pair.

It takes a second where templates are made to be hard, or there are ten thousand. So it is found out
before a transaction that others wait for, and known in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from dsort.naming.overlap import first_conflict

__all__ = ["Claims", "conflict_of", "is_known"]

KNOWN_MAX: Final = 20_000

Claims = Sequence[Sequence[str]]

_known: OrderedDict[tuple[bytes, bytes], str | None] = OrderedDict()
_lock = threading.Lock()


def conflict_of(ours: Claims | None, theirs: Claims | None) -> str | None:
    """A template of ``ours`` that may make a name which one of ``theirs`` makes; None without. What
    is no template is for the engine to refuse."""
    if not ours or not theirs:
        return None
    pair = _pair(ours, theirs)
    with _lock:
        if pair in _known:
            _known.move_to_end(pair)
            return _known[pair]
    found: str | None = None
    with contextlib.suppress(ValueError):
        conflict = first_conflict(ours, theirs)
        found = None if conflict is None else conflict[0][1]
    with _lock:
        _known[pair] = found
        while len(_known) > KNOWN_MAX:
            _known.popitem(last=False)
    return found


def is_known(ours: Claims | None, theirs: Claims | None) -> bool:
    """Whether ``conflict_of`` answers at once."""
    if not ours or not theirs:
        return True
    pair = _pair(ours, theirs)
    with _lock:
        return pair in _known


def _pair(ours: Claims, theirs: Claims) -> tuple[bytes, bytes]:
    return _digest(ours), _digest(theirs)


def _digest(claims: Claims) -> bytes:
    return hashlib.sha256(json.dumps(claims).encode()).digest()
