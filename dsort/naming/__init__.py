"""Names: what a text stands for, and which names may be used.

In go the texts of a spec and of settings: templates of inputs and outputs, globs, wildcards of
policies, names of objects and of members. Out come parsed values that make names one at a time,
patterns that match them in bounded time, and ``ValueError`` for what is no such text. Nothing here
looks at payload, or asks a bucket whether a name is there.
"""
