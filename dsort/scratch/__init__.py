"""Files that a job keeps on disk while it runs: index files, spill files and logs, on each node.

Extractors and orderers write records' columns and payload here; readers get the rows and bytes of
one partition, from all nodes. This folder handles files, access to them, and requests from one node
to another. It depends on no task and holds no policy.
"""
