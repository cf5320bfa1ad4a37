"""One job, from its spec to its manifest: the coordinator, and the phases that it runs.

A job takes a spec and run options, and makes output shards, a manifest, a report and events.
``resolve``, ``extract``, ``plan``, ``create`` and ``commit`` are the phases; they give tasks to a
runtime and move no payload themselves. ``lease`` and ``journal`` allow another coordinator to take
over a job, and ``layout`` names every file that a job has under ``.dsort/``.
"""
