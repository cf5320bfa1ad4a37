"""Where workers live: processes of this machine, or actors on Ray.

In go a job's set-up and its tasks; out come answers, each once, whatever workers died on the way.
A runtime moves tasks and answers, replaces workers and reaches the scratch of each node. What to
do, and in which order, is the job's to decide.
"""
