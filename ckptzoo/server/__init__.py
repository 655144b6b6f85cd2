"""The hub's protocol, served from a folder, for laboratories that host their own zoos and for tests.

::

    run        a port, a process, an ending
    ledger     what was asked and what was answered          | layers around
    faults     what a bad network and a tired server do      | the application
    app        raw path -> route -> access -> handler
    routes/    one topic of the protocol a file
    service    the open folder: store, signer, limits
    store/     blobs in files; trees, commits, refs and discussions in SQLite; no HTTP

The unmodified ``huggingface_hub`` and ``datasets`` work against it with ``HF_ENDPOINT`` and ``HF_HUB_DISABLE_XET=1``.
"""
