"""Transforms that have names, as rows.

This package takes definitions from requests of admins and stores them as versions, which specs use,
and requests that transform objects while they are read.
"""
