"""External key maps: which output template each record goes to.

In go the location of a map and the keys and names of records, out come the ordinals of templates.
``fetch`` reads the text from a file or over HTTP, ``text`` parses it, ``match`` places records.
Only ``fetch`` opens anything.
"""
