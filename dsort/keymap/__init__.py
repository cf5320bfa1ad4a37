"""External key maps: which output template each record belongs to.

``fetch`` reads the text of a map from a file or over HTTP; ``match`` parses it, and makes ordinals
of templates from the keys and names of records. Read ``KeyMap`` in ``match`` first. Only ``fetch``
opens files and connections.
"""
