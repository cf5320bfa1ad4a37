"""Surveys find what has to be known of all records before these are extracted, by passes over the
inputs. They number records (``positions``), select the first of a class by lot (``selection``, for
``mix`` and ``exact_outputs``), group them by key (``joins``) and divide them evenly
(``partitions``). Read ``survey`` first; ``all_surveys`` has their order.
"""
