"""One job, from its spec to its manifest: the coordinator, and the phases that it runs.

In go a spec and run options; out come output shards, a manifest, a report and events. ``resolve``,
``extract``, ``plan``, ``create`` and ``commit`` are the phases; they give tasks to a runtime and
move no payload themselves. ``lease`` and ``journal`` let another coordinator take a job over, and
``layout`` names every file that a job has under ``.dsort/``.
"""
