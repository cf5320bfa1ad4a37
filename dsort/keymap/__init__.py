"""External key maps: which output template each record belongs to.

From the location of a map and the keys and names of records they make ordinals of templates:
``fetch`` reads the text from a file or over HTTP, ``text`` parses it, ``match`` places records.
Only ``fetch`` opens files and connections.
"""
