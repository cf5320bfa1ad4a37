"""Where jobs run: the dispatcher begins a process for each attempt and sees after it.

In: jobs of the queue. Out: processes, their reports in the database, and an exit reason for each
that died. A job outlives the service: the next dispatcher finds it by its row.
"""
