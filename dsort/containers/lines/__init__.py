"""Files of lines (JSON lines and text): a record is a line, moved unchanged.

``container`` is the interface to the rest of dsort, ``scan`` finds lines and their keys.
"""
