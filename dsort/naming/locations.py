"""The type of texts in a spec that name a file to open: :data:`FileLocation`."""

from __future__ import annotations

from typing import NewType

FileLocation = NewType("FileLocation", str)
"""The type of each field whose text is opened as a file: a path, a URL, or an object in a store.
Every function that opens such a text takes this type, so mypy refuses a field of another type. A
service collects the locations of a spec by this type (``spec.located``), and checks whether the
token allows each."""
