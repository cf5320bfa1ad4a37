"""Prepares a job before it reads its first record: it finds and checks inputs, names of outputs,
memory, disks and code. ``dsort/job/resolve.py`` calls the modules here; read ``new_job`` (options
and spec to a job) and ``worker_setup`` (a job to its workers) first."""
