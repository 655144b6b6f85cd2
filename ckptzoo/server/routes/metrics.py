"""The route of the metrics for Prometheus."""

import hmac

from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.responses import Response

from ckptzoo.server.errors import Refusal
from ckptzoo.server.request import AuthorizedRequest


def answer(request: AuthorizedRequest) -> Response:
    """Return all metrics, to a client with the token that the server was started with; without one there are none."""
    token = request.service.metrics_token
    if token is None:
        raise Refusal(404, "There is nothing at this address.")
    given = request.http_request.headers.get("authorization", "").removeprefix("Bearer ")
    if not hmac.compare_digest(given.encode(), token.encode()):
        raise Refusal(401, "Expected the token of --metrics-token.", headers={"WWW-Authenticate": "Bearer"})
    return Response(generate_latest(request.service.metrics.registry), media_type=CONTENT_TYPE_LATEST)
