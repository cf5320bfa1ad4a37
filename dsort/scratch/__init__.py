"""Files that a job keeps on disk while it runs: index files, spill files and logs, on each node.

Extractors and orderers write records' columns (``index``, ``columns``) and payload (``spill``);
readers get the rows and bytes of one partition from all nodes (``nodes``, ``requests``). Read
``index`` first, then ``nodes``. This folder depends on no task and holds no policy.
"""
