"""The pages that dsort shows in a browser.

In goes what is known of a job: its manifest, the report of an aborted job or of a plan, or what a
service knows. Out comes the page as one JSON document, or as one HTML file that loads nothing from
elsewhere. ``static`` has the scripts and styles, which the service sends too. Nothing here speaks
with a service or opens a bucket.
"""
