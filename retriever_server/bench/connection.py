"""A client's kept connection, as light as can be: it shares the cores with the server that it measures.

Written by hand for that reason: with httpx the clients took a third of the machine's time at 64 at once.
"""

from __future__ import annotations

import asyncio
import re
from urllib.parse import urlsplit

_TIMEOUT_SECONDS = 120.0
_BUFFER_BYTES = 2**20
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+) *\r\n", re.IGNORECASE)

_GOODBYE = re.compile(rb"\r\nconnection: *close *\r\n", re.IGNORECASE)


class Connection:
    """Posts one body after the other to `url`; opened by the first, and anew after a failure."""

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        self._host, self._port = where.hostname, where.port
        head = (f"POST {where.path} HTTP/1.1", f"Host: {where.netloc}", "Content-Type: application/json")
        self._head = "\r\n".join((*head, "Content-Length: ")).encode()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, body: bytes) -> int | None:
        """The status, once the whole answer was read; None when there is no answer within two minutes."""
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                return await self._post(body)
        except (OSError, EOFError, TimeoutError):
            self.close()
            return None

    def close(self) -> None:
        """Hang up."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _post(self, body: bytes) -> int:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port, limit=_BUFFER_BYTES)
        reader, writer = self._streams
        writer.write(b"%b%d\r\n\r\n%b" % (self._head, len(body), body))
        head = await reader.readuntil(b"\r\n\r\n")
        status, length = _STATUS.match(head), _LENGTH.search(head)
        if status is None or length is None:
            raise OSError(f"not an answer of a known length: {head!r}")
        await reader.readexactly(int(length[1]))
        if _GOODBYE.search(head):
            self.close()
        return int(status[1])
