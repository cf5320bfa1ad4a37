"""Where jobs of the service run: a process each, begun and watched by a dispatcher.

A job process outlives the service that began it. The database is all that the two have in common.
"""
