"""Where jobs run: the dispatcher starts a process for each attempt and watches it.

The dispatcher takes jobs from the queue. Their processes report to the database, and each that died
gets an exit reason. A job outlives the service: the next dispatcher finds it by its row.
"""
