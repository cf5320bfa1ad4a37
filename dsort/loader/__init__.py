"""Loads the records of shards for training: in go a dataset, a rank and a seed; out come batches of
samples as webdataset has them, in an order that any number of ranks can go on with. The extra
``loader`` brings Pillow, for decoding; PyTorch is never imported here."""

from dsort.loader.check import LoaderCheck
from dsort.loader.loader import Loader, LoaderState

__all__ = ["Loader", "LoaderCheck", "LoaderState"]
