"""One job, from its spec to its manifest: the coordinator, and the phases that it runs.

``resolve``, ``extraction``, ``plan``, ``create`` and ``commit`` are the phases; they give tasks to
a runtime and move no payload themselves. ``lease`` and ``journal`` of the results allow another
coordinator to take over a job, and ``layout`` there names every file under ``.dsort/``.
"""
