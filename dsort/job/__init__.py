"""One job, from its spec to its manifest: the coordinator, and the phases that it runs.

Begin with ``run_job`` in ``coordinator``. ``resolve``, ``extraction``, ``plan``, ``create`` and
``commit`` are the phases; they give tasks to a runtime and move no payload themselves. ``setup``
prepares a job, ``surveys`` reads inputs in advance, ``resume`` and ``gc`` handle jobs that died.
"""
