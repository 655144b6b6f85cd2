"""Looks for steps of published runs that are not what they say they are.

::

    api        audit: samples of all steps, and what was found
    sources    files and repositories: headers, and ranges of a few tensors
    places     where tensors are in a file, from its header alone
    zoos       rows of a zoo
    steps      one checkpoint of a run, and which numbers are read
    judgement  copies, swaps, strangers, gaps, claims, headers, NaN
    series     steps that are missing from regular series
"""

from ckptzoo.hub.audits.api import Audit, audit
from ckptzoo.hub.audits.judgement import Finding

__all__ = ["Audit", "Finding", "audit"]
