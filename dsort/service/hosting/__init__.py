"""The processes of jobs: the dispatcher starts a process for each attempt and watches it.

Read ``dispatcher`` first: it takes jobs from the queue. Then read ``job_main``, the process of one
job, which reports to the database. Each process that died gets an exit reason. A job outlives the
service: the next dispatcher finds the job by its row.
"""
