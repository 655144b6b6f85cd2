"""Zoos on hubs: publish, find, fetch, contribute and review.

::

    push/           publish a zoo, and make its page on a hub again
    pull/           fetch a zoo, or a part of one that is itself a zoo
    search          find zoos by the tags of their cards
    audits/         look for steps of runs that are not what they say they are
    contributions/  bring checkpoints to somebody's zoo by a pull request, and review one
    exports/        checkpoints for other programs: files, and folders of the hub
    card/           the README.md of a zoo
    untrusted/      read files of weights from others as data
    client/         the hub's protocol, with retries
"""

from typing import TYPE_CHECKING

from ckptzoo.lazy_names import lazy_names

__all__ = [
    "Audit",
    "Contribution",
    "Finding",
    "FoundZoo",
    "HubRetryPolicy",
    "ImportPlan",
    "ImportResult",
    "Materialized",
    "Planned",
    "Pulled",
    "Pushed",
    "Refreshed",
    "Review",
    "ReviewCheck",
    "SearchResult",
    "audit",
    "export",
    "import_order",
    "plan",
    "plan_import",
    "rewrite",
]

if TYPE_CHECKING:
    from ckptzoo.hub.audits.api import Audit as Audit
    from ckptzoo.hub.audits.api import audit as audit
    from ckptzoo.hub.audits.judgement import Finding as Finding
    from ckptzoo.hub.client.retry import HubRetryPolicy as HubRetryPolicy
    from ckptzoo.hub.contributions.report import ReviewCheck as ReviewCheck
    from ckptzoo.hub.contributions.result import Contribution as Contribution
    from ckptzoo.hub.contributions.review import Review as Review
    from ckptzoo.hub.exports.targets import export as export
    from ckptzoo.hub.imports.plan import ImportPlan as ImportPlan
    from ckptzoo.hub.imports.plan import plan_import as plan_import
    from ckptzoo.hub.imports.run import ImportResult as ImportResult
    from ckptzoo.hub.imports.split_lists import import_order as import_order
    from ckptzoo.hub.pull.api import Pulled as Pulled
    from ckptzoo.hub.pull.materializing import Materialized as Materialized
    from ckptzoo.hub.push.api import Planned as Planned
    from ckptzoo.hub.push.api import Pushed as Pushed
    from ckptzoo.hub.push.api import plan as plan
    from ckptzoo.hub.push.refresh import Refreshed as Refreshed
    from ckptzoo.hub.push.refresh import rewrite as rewrite
    from ckptzoo.hub.search import FoundZoo as FoundZoo
    from ckptzoo.hub.search import SearchResult as SearchResult

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Audit": "ckptzoo.hub.audits",
        "ReviewCheck": "ckptzoo.hub.contributions.report",
        "Contribution": "ckptzoo.hub.contributions.result",
        "Finding": "ckptzoo.hub.audits",
        "FoundZoo": "ckptzoo.hub.search",
        "HubRetryPolicy": "ckptzoo.hub.client",
        "ImportPlan": "ckptzoo.hub.imports",
        "ImportResult": "ckptzoo.hub.imports",
        "Materialized": "ckptzoo.hub.pull",
        "Planned": "ckptzoo.hub.push",
        "Pulled": "ckptzoo.hub.pull",
        "Pushed": "ckptzoo.hub.push",
        "Refreshed": "ckptzoo.hub.push",
        "Review": "ckptzoo.hub.contributions.review",
        "SearchResult": "ckptzoo.hub.search",
        "audit": "ckptzoo.hub.audits",
        "export": "ckptzoo.hub.exports",
        "import_order": "ckptzoo.hub.imports",
        "plan": "ckptzoo.hub.push",
        "plan_import": "ckptzoo.hub.imports",
        "rewrite": "ckptzoo.hub.push",
    },
)
