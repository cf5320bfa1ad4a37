"""Surveys find facts about all records before these are extracted, by passes over the inputs. They
select the first of a class by lot (``mix``, ``exact_outputs``), group records by key (``joins``)
and divide them evenly (``partitions``). Read ``survey`` first; ``all_surveys`` has their order."""
