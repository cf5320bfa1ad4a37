"""What a job keeps on disk while it runs: index files, spill files and logs, on each node.

In go records' columns and payload from the extractors and orderers; out come the rows and bytes of
one partition, from all nodes. The room knows files, who may read them, and how one node asks
another for them. It knows no task and holds no policy.
"""
