"""A stored file or a range of it as a response, and the front matter of a README.md as the hub shows it."""

import json
import re
from collections.abc import AsyncGenerator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import anyio
import yaml
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Send

from ckptzoo.server.errors import Refusal

_CHUNK_BYTES = 2**20
"""Bytes of a file that are sent at a time."""
# 18 digits stay below 2**63
_RANGE = re.compile(r"bytes=\s*(\d{0,18})-(\d{0,18})\s*", re.ASCII)
MAX_FRONT_MATTER = 2**16
"""Bytes of a README.md that are searched for its front matter; those of ckptzoo's pages are below 3,000."""
_MAX_YAML_EVENTS, _MAX_YAML_DEPTH = 10_000, 32
"""Values and brackets of a front matter: parsing takes about 10 us each, and nesting takes stack."""
_YAML: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The loader of libyaml, which is ten times as fast; PyYAML may be built without it."""
_MAX_TAGS = 100
# Clients read a card by nearly the same pattern (huggingface_hub.repocard, REGEX_YAML_BLOCK).
_FRONT_MATTER = re.compile(r"\A\s*---\r?\n(.*?)(?:\r?\n)?---(?:\r?\n|\Z)", re.DOTALL)


def requested_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Return the bytes ``start`` up to ``stop`` that a Range header requests, None for all (RFC 9110, section 14). A
    header that is not one range of bytes is ignored, as the standard allows.

    Raises Refusal with status 416 where no byte of the file is in the range.
    """
    match = None if header is None else _RANGE.fullmatch(header)
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if first == "":  # the last bytes of the file
        start, stop = max(size - int(last), 0), size
    else:
        start, stop = int(first), min(int(last) + 1, size) if last else size
        # such a range is invalid, and may be ignored (RFC 9110, section 14.2)
        if last and int(last) < int(first):
            return None
    if start >= stop:
        # what a 416 says of the size (RFC 9110, section 14.4)
        headers = {"Content-Range": f"bytes */{size}"}
        raise Refusal(416, f"Range: expected one within {size} bytes, got {header!r:.100}.", headers=headers)
    return start, stop


def file_response(request: Request, path: Path, etag: str, headers: Mapping[str, str], kind: str) -> Response:
    """Return a response with a file's bytes, or those of the range that the request names; ``etag`` is without quotes,
    and ``kind`` is the content type.
    """
    size = path.stat().st_size
    # Browsers must not take a file of somebody else's for a page or a script.
    sent_headers = {**headers, "ETag": f'"{etag}"', "Accept-Ranges": "bytes", "X-Content-Type-Options": "nosniff"}
    # the header may list several tags, and mark them weak with W/ (RFC 9110, section 13.1.2)
    if f'"{etag}"' in request.headers.get("if-none-match", ""):
        # with the headers that a 200 would have (RFC 9110, section 15.4.5)
        return Response(status_code=304, headers=sent_headers)
    range_header = request.headers.get("range")
    if request.headers.get("if-range", f'"{etag}"') != f'"{etag}"':  # the client has a part of other content
        # the whole file, as if there were no Range (RFC 9110, section 13.1.5)
        range_header = None
    byte_range = requested_range(range_header, size)
    start, stop = byte_range or (0, size)
    sent_headers["Content-Length"] = str(stop - start)
    if byte_range is not None:
        sent_headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    status = 200 if byte_range is None else 206
    # the same headers as for GET, without a body (RFC 9110, section 9.3.2)
    if request.method == "HEAD":
        return Response(status_code=status, headers=sent_headers, media_type=kind)
    return _Streamed(_pieces(path, start, stop), status, sent_headers, kind)


class _Streamed(StreamingResponse):
    """A stream whose file is closed when the answer ends, also where it is cut short."""

    def __init__(self, pieces: AsyncGenerator[bytes], status: int, headers: Mapping[str, str], kind: str) -> None:
        super().__init__(pieces, status, headers, kind)
        self._pieces = pieces

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        finally:
            with anyio.CancelScope(shield=True):  # closing awaits, which a cancelled task may not
                await self._pieces.aclose()


async def _pieces(path: Path, start: int, stop: int) -> AsyncGenerator[bytes]:
    async with await anyio.open_file(path, "rb") as file:
        await file.seek(start)
        while start < stop:
            data = await file.read(min(_CHUNK_BYTES, stop - start))
            if not data:
                raise OSError(f"{path}: expected {stop - start} more bytes, got none")
            start += len(data)
            yield data


def front_matter(text: str) -> dict[str, Any]:
    """Return the YAML between the two ``---`` lines; empty where there is none.

    Raises ValueError: it is not a plain YAML mapping of bounded size that JSON can express.
    """
    match = _FRONT_MATTER.match(text[:MAX_FRONT_MATTER])
    if match is None:
        if len(text) > MAX_FRONT_MATTER and text.lstrip().startswith("---"):
            raise ValueError(f"expected front matter within {MAX_FRONT_MATTER} bytes, got more")
        return {}
    try:
        _check_plain(match[1])
        content = yaml.load(match[1], Loader=_YAML)
    # PyYAML raises OverflowError for a number such as 1:1:1.0 with many places to base 60
    except (yaml.YAMLError, RecursionError, OverflowError) as error:
        raise ValueError(str(error)) from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ValueError(f"expected a mapping, got {type(content).__name__}")
    named = {str(name): _as_json(value) for name, value in content.items()}
    # raises ValueError for what no answer can be written with: lone surrogates, integers of more than 4,300 digits
    json.dumps(named, ensure_ascii=False, allow_nan=False).encode()
    return named


def _check_plain(text: str) -> None:
    """Refuse references (``*name``), with which a short text stands for a huge one, tags (``!!name``), and too much."""
    depth = 0
    for number, event in enumerate(yaml.parse(text, Loader=_YAML)):
        # nine lists of nine references each to the one before are 9**9 values
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("expected plain YAML, got a reference")
        if getattr(event, "tag", None) is not None:
            raise ValueError(f"expected plain YAML, got a tag, {event.tag:.100}")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if number > _MAX_YAML_EVENTS or depth > _MAX_YAML_DEPTH:
            limits = f"{_MAX_YAML_EVENTS} values in {_MAX_YAML_DEPTH} levels"
            raise ValueError(f"expected at most {limits}, got more")


def tags(content: dict[str, Any]) -> list[str]:
    """Return the tags by which a repository is found: the card's, and ``key:value`` for some of its entries, as on the
    hub.
    """
    tags = [str(tag) for tag in _listed(content.get("tags"))]
    for name in ("license", "language", "size_categories", "task_categories", "task_ids"):
        tags += [f"{name}:{value}" for value in _listed(content.get(name))]
    return tags[:_MAX_TAGS]


def _listed(value: Any) -> list[Any]:
    """Return the texts and numbers of a list, or of a single value."""
    listed = value if isinstance(value, list) else [value]
    return [item for item in listed if isinstance(item, str | int | float)]


def _as_json(value: Any) -> Any:
    """Return the value as JSON has it; dates, bytes, infinities and NaN as text."""
    if isinstance(value, dict):
        return {str(name): _as_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [_as_json(item) for item in value]
    # YAML has dates, bytes and sets; JSON has none of them, nor .inf and .nan
    if isinstance(value, date | bytes) or (isinstance(value, float) and not abs(value) < float("inf")):
        return str(value)
    return value
