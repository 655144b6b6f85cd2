"""The server's storage: bytes in files, everything else in one SQLite database, without HTTP.

::

    blobs         bytes in files named by their sha256
    database      the tables; reads side by side, writes one after the other
    migrations    databases of earlier versions
    git_objects   ids as git computes them; folders and files
    commits       commits, refs, three-way merges and diffs
    repositories  repositories, and which contents each was given
    discussions   discussions, pull requests and their events
    usage         what contributors have taken up
    backup        backups of the folder, and folders made of them
    accounts      users, organisations, members and grants
    tokens        whose tokens there are, and what each allows
    audit         what was done to accounts and repositories, by whom and when
"""
