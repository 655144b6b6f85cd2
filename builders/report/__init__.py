"""The report: every table and figure of the three papers that is implemented, beside what the papers say.

``claims`` has what the papers say and how it is compared, ``parts`` the studies that the comparisons need, ``making``
carries them out and keeps their results, ``page`` writes the HTML page.
"""
