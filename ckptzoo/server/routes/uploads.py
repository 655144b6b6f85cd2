"""Uploads of large files before the commit that names them: the Git LFS batch protocol, whole and in parts."""

import base64
import codecs
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import PurePosixPath
from typing import Any

from starlette.responses import JSONResponse, RedirectResponse, Response

from ckptzoo.server.errors import Refusal
from ckptzoo.server.names import checked_path
from ckptzoo.server.quotas import over_quota
from ckptzoo.server.request import AuthorizedRequest, digest_of, integer_of, list_of, text_of
from ckptzoo.server.store import repositories
from ckptzoo.server.store.blobs import IncomingFile
from ckptzoo.server.store.commits import History
from ckptzoo.server.store.git_objects import Trees
from ckptzoo.server.store.repositories import LARGE

_CHUNK_BYTES = 2**20
"""Bytes of a body that are written to the disk at a time."""
NO_XET = "/api/no-xet-storage-here/set-HF_HUB_DISABLE_XET=1"
_LFS = "application/vnd.git-lfs+json"


def preupload(request: AuthorizedRequest) -> Response:
    """Return, for each file, whether it is sent within the commit or apart (LFS), and what is at its path already."""
    body = request.json()
    with request.service.database.reading() as connection:
        trees = Trees(connection, request.repository.id)
        commit = History(connection, request.repository.id).resolve(request.piece("revision"))
        answer: list[dict[str, Any]] = []
        for file in list_of(body, "files", request.service.limits.batch_files):
            path = checked_path(text_of(file, "path"))
            size, sample = integer_of(file, "size"), text_of(file, "sample", "")
            apart = _is_sent_apart(path, size, sample, request.service.limits.inline_bytes)
            entry: dict[str, Any] = {
                "path": path,
                "uploadMode": "lfs" if apart else "regular",
                "shouldIgnore": False,
            }
            node = trees.find(commit.tree, path)
            if node is not None and not node.folder:
                stored = trees.file(node.oid)
                entry["oid"] = stored.sha256 if stored.large else stored.oid
            answer.append(entry)
    return JSONResponse({"files": answer, "commitOid": commit.oid})


def _is_sent_apart(path: str, size: int, sample: str, inline_bytes: int) -> bool:
    """Return whether a file is large, has a large file's ending, or begins with bytes that are not text."""
    if size > inline_bytes or PurePosixPath(path).suffix.lower() in LARGE:
        return True
    try:
        return "\0" in _decode_sample(sample)
    except ValueError:
        return True


def _decode_sample(sample: str) -> str:
    """Decode the first bytes of a file, in base64, as text; the last character may be cut."""
    # huggingface_hub sends 512 bytes
    return codecs.getincrementaldecoder("utf-8")().decode(base64.b64decode(sample, validate=True))


def xet_token(request: AuthorizedRequest) -> Response:
    """Send a client that asks for Xet storage to an address, of nothing, that says what to set instead.

    huggingface_hub (2.4.0) sends large files by hf_xet alone where that is installed, whatever a hub answers, and of a
    refusal hf_xet shows the address.
    """
    return RedirectResponse(f"{request.origin}{NO_XET}", 307)


def batch(request: AuthorizedRequest) -> Response:
    """Return, for each large file, the address to send it to, or none where the repository has it."""
    body, limits = request.json(), request.service.limits
    if body.get("operation") != "upload":
        raise Refusal(400, "operation: expected upload; files are read from their resolve addresses.")
    objects = list_of(body, "objects", limits.batch_files)
    request.service.blobs.sweep(limits.address_seconds)
    # a transfer that huggingface_hub offers beside the basic one of Git LFS
    transfers = body.get("transfers")
    in_parts = isinstance(transfers, list) and "multipart" in transfers
    files = [(digest_of(item, "oid"), integer_of(item, "size")) for item in objects]
    with request.service.database.reading() as connection:
        given = {sha256: repositories.given(connection, request.repository.id, sha256) for sha256, _ in files}
    # what need not be sent again stays until its commit comes
    for sha256, size in given.items():
        given[sha256] = size if size is None or request.service.blobs.touch(sha256) else None
    answer: list[dict[str, Any]] = []
    room = request.service.quotas.room(request.contributor)
    step = _part_bytes(request, [size for sha256, size in set(files) if given[sha256] is None])
    for sha256, size in dict.fromkeys(files):
        entry: dict[str, Any] = {"oid": sha256, "size": size}
        parts = -(-size // step)
        if size > limits.file_bytes or parts > limits.parts:
            entry["error"] = {"code": 413, "message": f"size: expected at most {limits.file_bytes}, got {size}."}
        elif given[sha256] is not None and given[sha256] != size:
            entry["error"] = {"code": 422, "message": f"size: expected {given[sha256]}, got {size}."}
        elif given[sha256] is None and room is not None and size > room:
            entry["error"] = {"code": 413, "message": over_quota(request.contributor, room, size).message}
        elif given[sha256] is None:
            room = None if room is None else room - size
            upload = _in_parts(request, sha256, size, step) if in_parts and parts > 1 else _whole(request, sha256, size)
            verify = f"{request.address}.git/info/lfs/verify"
            entry["actions"] = {"upload": upload, "verify": {"href": verify}}
            entry["authenticated"] = True
        answer.append(entry)
    # With "multipart" chosen for the whole answer, clients still send a file without chunk_size in one piece.
    transfer = "multipart" if any("chunk_size" in _header(entry) for entry in answer) else "basic"
    return JSONResponse({"transfer": transfer, "objects": answer}, media_type=_LFS)


def _part_bytes(request: AuthorizedRequest, sizes: list[int]) -> int:
    """Return the size of parts with which all files of one answer together have a bounded number of them."""
    limits = request.service.limits
    large = [size for size in sizes if size > limits.part_bytes]
    # every file has one part more than size / step at the most
    return max(limits.part_bytes, -(-sum(large) // max(limits.batch_parts - len(large), 1)))


def _header(entry: dict[str, Any]) -> dict[str, str]:
    return entry.get("actions", {}).get("upload", {}).get("header", {})


def _whole(request: AuthorizedRequest, sha256: str, size: int) -> dict[str, Any]:
    fields = {"repository": request.repository.id, "size": size, "contributor": request.contributor}
    query = request.service.signer.query(f"write {sha256}", fields)
    return {"href": f"{request.origin}/_uploads/{sha256}?{query}"}


def _in_parts(request: AuthorizedRequest, sha256: str, size: int, step: int) -> dict[str, Any]:
    """Return addresses for every part, in the headers that huggingface_hub reads; all but the last are equal."""
    # huggingface_hub reads chunk_size, and takes every header whose name is a number for the address of that part;
    # it refuses any other count of them than size / chunk_size, rounded up
    limit, parts = request.service.limits.contributor_uploads, -(-size // step)
    upload = request.service.blobs.begin_upload(request.contributor, limit)
    header = {"chunk_size": str(step)}
    for number in range(1, parts + 1):
        fields = {"upload": upload, "number": number, "size": min(step, size - (number - 1) * step)}
        fields["contributor"] = request.contributor
        query = request.service.signer.query(f"part {sha256}", fields)
        header[str(number)] = f"{request.origin}/_uploads/{sha256}/part?{query}"
    fields = {"upload": upload, "parts": parts, "repository": request.repository.id, "size": size}
    query = request.service.signer.query(f"join {sha256}", fields)
    return {"href": f"{request.origin}/_uploads/{sha256}/join?{query}", "header": header}


async def receive(request: AuthorizedRequest) -> Response:
    """Receive a whole file; answer 200 once it is on the disk and matches the announcement."""
    sha256, service = request.raw_pieces["sha256"], request.service
    fields = service.signer.check(f"write {sha256}", request.query)
    size, contributor = int(fields["size"]), fields.get("contributor", "")

    def keep(arriving: IncomingFile) -> None:
        """Put the bytes in place and give them to the repository."""
        # bytes before their row: what a process that dies leaves between is sent again
        with service.blobs.held():
            service.blobs.keep(arriving, sha256, size)
            with service.database.writing() as connection:
                repositories.give(connection, int(fields["repository"]), sha256, size)
                service.quotas.charge(connection, contributor, size)

    async with _within_quota(request, contributor, size):
        arriving = await request.in_thread(service.blobs.arrive, size)
        await _receive_body(request, arriving, size)
        await request.in_thread(keep, arriving)
    return Response(headers={"ETag": f'"{sha256}"'})


async def receive_part(request: AuthorizedRequest) -> Response:
    """Receive one part of a file."""
    service = request.service
    fields = service.signer.check(f"part {request.raw_pieces['sha256']}", request.query)
    size, contributor = int(fields["size"]), fields.get("contributor", "")

    def keep(arriving: IncomingFile) -> str:
        etag = service.blobs.keep_part(arriving, int(fields["number"]), size)
        if contributor:
            with service.database.writing() as connection:
                service.quotas.charge(connection, contributor, size)
        return etag

    async with _within_quota(request, contributor, size):
        arriving = await request.in_thread(service.blobs.arrive_part, fields["upload"], size)
        await _receive_body(request, arriving, size)
        etag = await request.in_thread(keep, arriving)
    return Response(headers={"ETag": f'"{etag}"'})


@asynccontextmanager
async def _within_quota(request: AuthorizedRequest, contributor: str, size: int) -> AsyncIterator[None]:
    """Count the bytes while they arrive."""
    quotas = request.service.quotas
    await request.in_thread(quotas.take, contributor, size)
    try:
        yield
    finally:
        quotas.end(contributor, size)


async def _receive_body(request: AuthorizedRequest, arriving: IncomingFile, size: int) -> None:
    """Write the body to the disk as it arrives."""
    try:
        announced = request.http_request.headers.get("content-length")
        if announced is not None and not (re.fullmatch(r"[0-9]{1,20}", announced) and int(announced) == size):
            raise Refusal(400, f"Content-Length: expected {size}, got {announced:.100}.")
        buffer = bytearray()
        async for data in request.http_request.stream():
            buffer += data
            if len(buffer) >= _CHUNK_BYTES:
                await request.in_thread(arriving.write, bytes(buffer))
                buffer.clear()
        await request.in_thread(arriving.write, bytes(buffer))
    # the client went away, the disk is full, or the server ends and cancels the task
    except BaseException:
        arriving.discard()
        raise


def join(request: AuthorizedRequest) -> Response:
    """Join the parts of a file, after checking that all are present."""
    sha256, service = request.raw_pieces["sha256"], request.service
    fields = service.signer.check(f"join {sha256}", request.query)
    body, size = request.json(), int(fields["size"])
    parts = list_of(body, "parts", service.limits.parts)
    etags = {integer_of(part, "partNumber"): text_of(part, "etag").strip('"') for part in parts}
    if digest_of(body, "oid") != sha256 or sorted(etags) != list(range(1, int(fields["parts"]) + 1)):
        raise Refusal(400, f"parts: expected 1 to {fields['parts']} of {sha256}.")
    ordered = [digest_of({"etag": etags[number]}, "etag") for number in sorted(etags)]
    repository = int(fields["repository"])
    with service.database.reading() as connection:
        is_given = repositories.given(connection, repository, sha256) == size
    # a client whose answer was lost asks again, when the parts have been joined and removed
    if not is_given:
        with service.blobs.held():
            service.blobs.join(fields["upload"], ordered, sha256, size)
            with service.database.writing() as connection:
                repositories.give(connection, repository, sha256, size)
    return JSONResponse({"success": True}, media_type=_LFS)


def verify(request: AuthorizedRequest) -> Response:
    """Return whether the repository has a large file; clients ask after an upload (Git LFS, basic-transfers.md)."""
    body = request.json()
    sha256, size = digest_of(body, "oid"), integer_of(body, "size")
    with request.service.database.reading() as connection:
        stored_size = repositories.given(connection, request.repository.id, sha256)
    if stored_size != size:
        raise Refusal(404, f"{sha256}: expected {size} bytes, got {json.dumps(stored_size)}.")
    return JSONResponse({"success": True}, media_type=_LFS)
