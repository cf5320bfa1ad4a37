"""The pages of a file that are in the page cache."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from pathlib import Path

import numpy as np
import pytest

FORGET_S_MAX = 5


def cached_pages(path: Path) -> list[bool]:
    """For each page of a file, whether it is in the page cache. No page is read for this, because
    a read would fetch it."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        view = np.frombuffer(mapped, np.uint8)
        pages = (ctypes.c_ubyte * -(-len(view) // mmap.PAGESIZE))()
        begin, length = ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(len(view))
        assert ctypes.CDLL(None).mincore(begin, length, pages) == 0
        del view
        return [bool(page & 1) for page in pages]


def forget(path: Path) -> None:
    """Remove a file from the page cache. For a file that was just written, this may take several
    tries."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        until_s = time.monotonic() + FORGET_S_MAX
        while time.monotonic() < until_s:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if not any(cached_pages(path)):
                return
    pytest.skip("this file system keeps pages without readers")
