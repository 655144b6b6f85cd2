"""Who am I, may I, and is this card well-formed."""

from starlette.responses import JSONResponse, Response

from ckptzoo.server.call import Call, text_of
from ckptzoo.server.cards import front_matter


def whoami(call: Call) -> Response:
    """The user that the token belongs to."""
    assert call.identity is not None
    name, role = call.identity.user, call.identity.role
    token = {"displayName": name, "role": role, "createdAt": "1970-01-01T00:00:00.000Z"}
    return JSONResponse(
        {
            "type": "user",
            "id": name,
            "name": name,
            "fullname": name,
            "isPro": False,
            "orgs": [],
            "auth": {"type": "access_token", "accessToken": token},
        }
    )


def auth_check(call: Call) -> Response:
    """Access was checked before this was called."""
    return JSONResponse({"name": call.repository.name})


def validate_yaml(call: Call) -> Response:
    """What is wrong with the metadata of a README.md."""
    try:
        front_matter(text_of(call.json(), "content"))
    except ValueError as error:
        return JSONResponse({"errors": [{"message": str(error)}], "warnings": []}, 400)
    return JSONResponse({"errors": [], "warnings": []})
