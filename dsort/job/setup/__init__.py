"""What a job finds, measures and checks before it reads its first record: inputs, names of outputs,
memory, disks and code. ``dsort/job/resolve.py`` calls it."""
