"""Transforms that have names, as rows.

In: definitions from requests of admins. Out: versions, for specs and for objects on their way out.
"""
