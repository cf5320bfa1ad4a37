"""Files of lines (JSON lines and text): a record is a line, moved as it is.

``container`` is what the rest of dsort sees, ``scan`` finds lines and their keys.
"""
