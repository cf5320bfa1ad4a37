"""What a spec names to be opened: :data:`FileLocation`."""

from __future__ import annotations

from typing import NewType

FileLocation = NewType("FileLocation", str)
"""The type of each field whose text is opened as a file: a path, a URL, or an object in a store.
All that opens such a text takes this type, so mypy refuses a field that has another; a service
collects the locations of a spec by it (``spec.located``), and holds each against the token."""
