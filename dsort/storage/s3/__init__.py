"""Buckets in S3 and in stores with its interface, by boto3.

``bucket`` has the bucket, ``client`` makes its requests, ``replies`` reads the replies (checks,
errors, listings), ``upload`` sends an object in parts, ``copies`` keeps objects that are replaced.
"""
