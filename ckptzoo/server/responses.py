"""Sending a stored file, whole or a range of it, in bounded memory.

The metadata at the head of a README.md.
"""

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

_CHUNK = 2**20
_RANGE = re.compile(r"bytes=\s*(\d{0,18})-(\d{0,18})\s*")


def span(header: str | None, size: int) -> tuple[int, int] | None:
    """The bytes ``start`` up to ``stop`` that a Range header asks for, None for all (RFC 9110, section 14).

    A header that is not one range of bytes is ignored, as the standard allows.

    Raises
    ------
    Refusal
        With status 416 where no byte of the file is in the range.
    """
    found = None if header is None else _RANGE.fullmatch(header)
    if found is None or found.groups() == ("", ""):
        return None
    first, last = found.groups()
    if first == "":
        start, stop = max(size - int(last), 0), size
    else:
        start, stop = int(first), min(int(last) + 1, size) if last else size
        if last and int(last) < int(first):
            return None
    if start >= stop:
        headers = {"Content-Range": f"bytes */{size}"}
        raise Refusal(416, f"Range: expected one within {size} bytes, got {header!r:.100}.", headers=headers)
    return start, stop


def file_response(request: Request, path: Path, etag: str, headers: Mapping[str, str], kind: str) -> Response:
    """A response with a file's bytes, or those of the range that is asked for.

    Parameters
    ----------
    etag : of the content, without quotes.
    kind : the content type.
    """
    size = path.stat().st_size
    fixed = {**headers, "ETag": f'"{etag}"', "Accept-Ranges": "bytes", "X-Content-Type-Options": "nosniff"}
    if f'"{etag}"' in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=fixed)
    asked = request.headers.get("range")
    if request.headers.get("if-range", f'"{etag}"') != f'"{etag}"':
        asked = None
    found = span(asked, size)
    start, stop = found or (0, size)
    fixed["Content-Length"] = str(stop - start)
    if found is not None:
        fixed["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    status = 200 if found is None else 206
    if request.method == "HEAD":
        return Response(status_code=status, headers=fixed, media_type=kind)
    return _Streamed(_pieces(path, start, stop), status, fixed, kind)


class _Streamed(StreamingResponse):
    """A stream that is closed when the answer ends, also where it is cut short."""

    def __init__(self, pieces: AsyncGenerator[bytes], status: int, headers: Mapping[str, str], kind: str) -> None:
        super().__init__(pieces, status, headers, kind)
        self._pieces = pieces

    async def stream_response(self, send: Send) -> None:
        """Send the pieces."""
        try:
            await super().stream_response(send)
        finally:
            with anyio.CancelScope(shield=True):
                await self._pieces.aclose()


async def _pieces(path: Path, start: int, stop: int) -> AsyncGenerator[bytes]:
    async with await anyio.open_file(path, "rb") as file:
        await file.seek(start)
        while start < stop:
            data = await file.read(min(_CHUNK, stop - start))
            if not data:
                raise OSError(f"{path}: expected {stop - start} more bytes, got none")
            start += len(data)
            yield data


_FRONT = re.compile(r"\A\s*---\r?\n(.*?)(?:\r?\n)?---(?:\r?\n|\Z)", re.DOTALL)
MAX_TEXT = 2**18
"""How much of a card is looked at, in bytes."""
_MAX_TAGS = 100


def front_matter(text: str) -> dict[str, Any]:
    """The YAML between the two ``---`` lines; empty where there is none.

    Raises
    ------
    ValueError
        It is not a plain YAML mapping. References (``*name``) are refused, because a short text may stand for a huge
        one with them.
    """
    found = _FRONT.match(text[:MAX_TEXT])
    if found is None:
        return {}
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(found[1], Loader=yaml.SafeLoader)):
            raise ValueError("expected plain YAML, got a reference")
        content = yaml.safe_load(found[1])
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error)) from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ValueError(f"expected a mapping, got {type(content).__name__}")
    return {str(name): _plain(value) for name, value in content.items()}


def tags(content: dict[str, Any]) -> list[str]:
    """What a card can be found by: its tags, and ``key:value`` for the entries that the hub shows so."""
    found = [str(tag) for tag in _listed(content.get("tags"))]
    for name in ("license", "language", "size_categories", "task_categories", "task_ids"):
        found += [f"{name}:{value}" for value in _listed(content.get(name))]
    return found[:_MAX_TAGS]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _plain(value: Any) -> Any:
    """The value as JSON has it."""
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(item) for item in value]
    if isinstance(value, date | bytes) or (isinstance(value, float) and not abs(value) < float("inf")):
        return str(value)
    return value
