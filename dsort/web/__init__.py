"""The pages that dsort shows in a browser. Read ``job_page`` first.

It receives a manifest, the report of an aborted job or of a plan, or the answers of a service, and
makes the page as one JSON document, or as one HTML file that loads nothing from elsewhere.
``static`` has the scripts and styles, which the service sends too. Nothing here opens a bucket.
"""
