"""The pages that dsort shows in a browser. Read ``job_page`` first.

``job_page`` makes the page of a job from a manifest, from the report of an aborted job or of a
plan, or from the answers of a service. The page is one JSON document, or one HTML file that loads
nothing from elsewhere. ``static`` has the scripts and styles, which the service sends too. Nothing
here opens a bucket.
"""
