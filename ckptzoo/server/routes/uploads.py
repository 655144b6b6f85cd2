"""Bytes on their way in, before the commit that names them: the Git LFS batch protocol, single and in parts."""

import base64
import codecs
import json
from pathlib import PurePosixPath
from typing import Any

from anyio import to_thread
from starlette.responses import JSONResponse, Response

from ckptzoo.server.errors import Refusal
from ckptzoo.server.names import checked_path
from ckptzoo.server.request import AuthorizedRequest, digest_of, list_of, text_of, whole_of
from ckptzoo.server.store import repositories
from ckptzoo.server.store.blobs import Arriving
from ckptzoo.server.store.commits import History
from ckptzoo.server.store.git_objects import Trees
from ckptzoo.server.store.repositories import LARGE

_CHUNK = 2**20
_LFS = "application/vnd.git-lfs+json"


def preupload(call: AuthorizedRequest) -> Response:
    """For each file: whether it goes into the commit or apart, and what is at its path already."""
    body = call.json()
    with call.service.database.reading() as connection:
        trees = Trees(connection)
        commit = History(connection, call.repository.id).resolve(call.piece("revision"))
        answer: list[dict[str, Any]] = []
        for file in list_of(body, "files", call.service.limits.batch_files):
            path = checked_path(text_of(file, "path"))
            apart = _apart(path, whole_of(file, "size"), text_of(file, "sample", ""), call.service.limits.inline_bytes)
            entry: dict[str, Any] = {
                "path": path,
                "uploadMode": "lfs" if apart else "regular",
                "shouldIgnore": False,
            }
            node = trees.find(commit.tree, path)
            if node is not None and not node.folder:
                held = trees.file(node.oid)
                entry["oid"] = held.sha256 if held.large else held.oid
            answer.append(entry)
    return JSONResponse({"files": answer, "commitOid": commit.oid})


def _apart(path: str, size: int, sample: str, inline: int) -> bool:
    if size > inline or PurePosixPath(path).suffix.lower() in LARGE:
        return True
    try:
        return "\0" in _start(sample)
    except ValueError:
        return True


def _start(sample: str) -> str:
    """The first bytes of a file as text; a letter may be cut at their end."""
    return codecs.getincrementaldecoder("utf-8")().decode(base64.b64decode(sample, validate=True))


def batch(call: AuthorizedRequest) -> Response:
    """For each large file: where to send it, or nothing where the repository has it."""
    body, limits = call.json(), call.service.limits
    if body.get("operation") != "upload":
        raise Refusal(400, "operation: expected upload; files are read from their resolve addresses.")
    objects = list_of(body, "objects", limits.batch_files)
    call.service.blobs.sweep(limits.address_seconds)
    in_parts = "multipart" in (body.get("transfers") or ())
    asked = [(digest_of(item, "oid"), whole_of(item, "size")) for item in objects]
    with call.service.database.reading() as connection:
        held = {sha256: repositories.given(connection, call.repository.id, sha256) for sha256, _ in asked}
    answer: list[dict[str, Any]] = []
    for sha256, size in asked:
        entry: dict[str, Any] = {"oid": sha256, "size": size}
        parts = -(-size // limits.part_bytes)
        if size > limits.file_bytes or parts > limits.parts:
            entry["error"] = {"code": 413, "message": f"size: expected at most {limits.file_bytes}, got {size}."}
        elif held[sha256] is None:
            upload = _in_parts(call, sha256, size, parts) if in_parts and parts > 1 else _whole(call, sha256, size)
            verify = f"{call.address}.git/info/lfs/verify"
            entry["actions"] = {"upload": upload, "verify": {"href": verify}}
            entry["authenticated"] = True
        answer.append(entry)
    # With "multipart" chosen for the whole answer, clients still send a file without chunk_size in one piece.
    transfer = "multipart" if any("chunk_size" in _header(entry) for entry in answer) else "basic"
    return JSONResponse({"transfer": transfer, "objects": answer}, media_type=_LFS)


def _header(entry: dict[str, Any]) -> dict[str, str]:
    return entry.get("actions", {}).get("upload", {}).get("header", {})


def _whole(call: AuthorizedRequest, sha256: str, size: int) -> dict[str, Any]:
    query = call.service.signer.query(f"write {sha256}", {"repository": call.repository.id, "size": size})
    return {"href": f"{call.origin}/_uploads/{sha256}?{query}"}


def _in_parts(call: AuthorizedRequest, sha256: str, size: int, parts: int) -> dict[str, Any]:
    """Addresses for every part; all but the last have the same size."""
    step, upload = call.service.limits.part_bytes, call.service.blobs.begin_upload()
    header = {"chunk_size": str(step)}
    for number in range(1, parts + 1):
        fields = {"upload": upload, "number": number, "size": min(step, size - (number - 1) * step)}
        query = call.service.signer.query(f"part {sha256}", fields)
        header[str(number)] = f"{call.origin}/_uploads/{sha256}/part?{query}"
    fields = {"upload": upload, "parts": parts, "repository": call.repository.id, "size": size}
    query = call.service.signer.query(f"join {sha256}", fields)
    return {"href": f"{call.origin}/_uploads/{sha256}/join?{query}", "header": header}


async def receive(call: AuthorizedRequest) -> Response:
    """A whole file; 200 is answered once it is on the disk and is what was announced."""
    sha256, service = call.raw["sha256"], call.service
    fields = service.signer.check(f"write {sha256}", call.query)
    size = int(fields["size"])
    arrived = await to_thread.run_sync(service.blobs.arrive, size)
    await _fill(call, arrived, size)

    def keep() -> None:
        """Put the bytes in place and give them to the repository."""
        service.blobs.keep(arrived, sha256, size)
        with service.database.writing() as connection:
            repositories.give(connection, int(fields["repository"]), sha256, size)

    await to_thread.run_sync(keep)
    return Response(headers={"ETag": f'"{sha256}"'})


async def receive_part(call: AuthorizedRequest) -> Response:
    """One part of a file."""
    service = call.service
    fields = service.signer.check(f"part {call.raw['sha256']}", call.query)
    size = int(fields["size"])
    arrived = await to_thread.run_sync(service.blobs.arrive_part, fields["upload"], size)
    await _fill(call, arrived, size)
    etag = await to_thread.run_sync(service.blobs.keep_part, arrived, int(fields["number"]), size)
    return Response(headers={"ETag": f'"{etag}"'})


async def _fill(call: AuthorizedRequest, arrived: Arriving, size: int) -> None:
    """Write the body as it arrives."""
    try:
        announced = call.request.headers.get("content-length")
        if announced is not None and int(announced) != size:
            raise Refusal(400, f"Content-Length: expected {size}, got {announced}.")
        held = bytearray()
        async for data in call.request.stream():
            held += data
            if len(held) >= _CHUNK:
                await to_thread.run_sync(arrived.write, bytes(held))
                held.clear()
        await to_thread.run_sync(arrived.write, bytes(held))
    except BaseException:
        arrived.discard()
        raise


def join(call: AuthorizedRequest) -> Response:
    """All parts are there: make the file of them."""
    sha256, service = call.raw["sha256"], call.service
    fields = service.signer.check(f"join {sha256}", call.query)
    body, size = call.json(), int(fields["size"])
    parts = list_of(body, "parts", service.limits.parts)
    etags = {whole_of(part, "partNumber"): text_of(part, "etag").strip('"') for part in parts}
    if digest_of(body, "oid") != sha256 or sorted(etags) != list(range(1, int(fields["parts"]) + 1)):
        raise Refusal(400, f"parts: expected 1 to {fields['parts']} of {sha256}.")
    ordered = [digest_of({"etag": etags[number]}, "etag") for number in sorted(etags)]
    service.blobs.join(fields["upload"], ordered, sha256, size)
    with service.database.writing() as connection:
        repositories.give(connection, int(fields["repository"]), sha256, size)
    return JSONResponse({"success": True}, media_type=_LFS)


def verify(call: AuthorizedRequest) -> Response:
    """Whether the repository has a large file."""
    body = call.json()
    sha256, size = digest_of(body, "oid"), whole_of(body, "size")
    with call.service.database.reading() as connection:
        held = repositories.given(connection, call.repository.id, sha256)
    if held != size:
        raise Refusal(404, f"{sha256}: expected {size} bytes, got {json.dumps(held)}.")
    return JSONResponse({"success": True}, media_type=_LFS)
