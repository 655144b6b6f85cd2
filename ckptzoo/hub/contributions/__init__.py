"""Contributions of checkpoints to a zoo on a hub: ``contribute`` proposes them, ``review`` checks and merges them.

``ingest`` reads the files, ``matching`` brings their names to those of the zoo, ``run_checks`` makes every check. The
same checks are made by the contributor and, from the bytes on the hub, by the reviewer.
"""
