"""Buckets in S3 and what speaks it, by botocore.

``bucket`` is the bucket, ``client`` makes its requests, ``replies`` reads what comes back (checks,
errors, listings), ``upload`` sends an object in parts, ``copies`` keeps what is replaced.
"""
