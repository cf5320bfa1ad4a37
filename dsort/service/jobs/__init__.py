"""Jobs as rows: submitted, queued, claimed by a replica, reported on, ended, removed.

In: checked specs, and reports of job processes. Out: rows of jobs, and which job runs next. Each
change is one short transaction that names the attempt it speaks for."""
