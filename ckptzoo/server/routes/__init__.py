"""The handlers of the protocol: functions from an ``AuthorizedRequest`` to a response.

::

    repositories  make, list, describe, change, remove; branches, tags, commits; account and card checks
    content       folders, what is known of paths, the bytes of files
    uploads       large files, before the commit that names them (the Git LFS batch protocol)
    commits       one commit: its lines, its changes, who may make it
    discussions   discussions and pull requests, merging
"""
