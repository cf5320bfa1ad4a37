"""The pages that dsort shows in a browser. Read ``job_page`` first.

The page of a job is made from a manifest, a report, or the answers of a service, as one JSON
document, or as one HTML file that loads nothing from elsewhere. ``static`` has the scripts and
styles, which the service sends too. This package opens no buckets.
"""
