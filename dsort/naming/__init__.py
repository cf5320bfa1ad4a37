"""Names: parses the texts that stand for names, and checks which names may be used.

``templates`` (output names) and ``inputs`` (input names) are the first to read. Parsed values make
names one at a time, or match them in bounded time; invalid texts raise ``ValueError``. Nothing here
reads payload or requests names from a bucket.
"""
