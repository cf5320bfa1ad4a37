"""Loads the records of shards for training.

From a dataset, a rank and a seed, ``loader`` (read it first) makes batches of samples in the form
of webdataset. ``order`` computes the order, which any number of ranks can resume. The extra
``loader`` installs Pillow, for decoding; PyTorch is never imported here.
"""

from dsort.loader.loader import Loader, LoaderState
from dsort.loader.order import LoaderCheck
from dsort.loader.step_records import StepRecord

__all__ = ["Loader", "LoaderCheck", "LoaderState", "StepRecord"]
