"""Files that a job writes beside its output shards: sidecars, indexes of directories, lineage and
reactions."""
