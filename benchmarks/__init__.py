"""Benchmarks of dsort beside ``cp``, webdataset, Ray Data and ``tarfile``; see README.md."""
