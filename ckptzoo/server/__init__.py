"""The hub's protocol, served from a folder, for laboratories that host their own zoos and for tests.

::

    run          a server on a port: in the foreground, or in a thread
    connections  how long a client may take to send, and how many connections it may hold
    testing      layers around the application: a log of the requests, injected faults
    app          raw path -> route -> access -> handler; errors -> answers
    routes/      the handlers, one topic of the protocol per file
    request      the authorized request that handlers get
    responses    files and ranges of them, the front matter of a README.md
    access       who may do what: one decision
    errors       refusals, and how much a client may ask for
    names        which names of repositories, branches and files are accepted
    service      the open folder: store, signer, limits
    quotas       how much contributors may take up
    store/       blobs in files; folders, commits, refs and discussions in SQLite; no HTTP

The unmodified ``huggingface_hub`` and ``datasets`` work against it with ``HF_ENDPOINT``; to upload large files they
need ``HF_HUB_DISABLE_XET=1`` too.
"""
