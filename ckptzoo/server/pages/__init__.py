"""Pages for people: repositories, permissions, pull requests and their merge. HTML that works without JavaScript.

Handlers take an ``AuthorizedRequest`` as those of the protocol do; the caller is known by a cookie instead of a token,
and every form carries a token of the session. ``html`` makes the answers and their headers.
"""
