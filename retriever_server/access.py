"""Who may ask: whoever has the token, when there is one; what changes the service is for this machine alone."""

from __future__ import annotations

import hmac
import ipaddress
from pathlib import Path

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from retriever_server.errors import ServingError
from retriever_server.responses import json_response

# A supervisor has no token, and learns nothing there.
_OPEN_PATHS = frozenset({"/live", "/ready"})
# A proxy or a browser on this machine may ask for somebody who is elsewhere.
_RELAY_HEADERS = ("forwarded", "x-forwarded-for", "x-real-ip", "via", "origin")


def is_local(request: Request) -> bool:
    """True when the request comes from a program on this machine, and for nobody else."""
    if request.client is None or any(name in request.headers for name in _RELAY_HEADERS):
        return False
    try:
        address = ipaddress.ip_address(request.client.host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def read_token(path: Path) -> str:
    """The token in a file, without the white space around it. Raises ServingError when there is none."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ServingError(f"token file {path}: cannot be read as ASCII text ({error})") from error
    if not token or not token.isprintable() or " " in token:
        raise ServingError(f"token file {path}: must hold one line without spaces, the token")
    return token


class BearerToken:
    """Answers 401 to a request without `Authorization: Bearer <token>`, but for `/live` and `/ready`."""

    def __init__(self, app: ASGIApp, *, token: str) -> None:
        self._app, self._token = app, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "http" and scope["path"] not in _OPEN_PATHS and not self._is_known(Headers(scope=scope)):
            headers = {"WWW-Authenticate": "Bearer"}
            response = json_response(
                {"detail": "send the token of this service: Authorization: Bearer <token>"},
                status_code=401,
                headers=headers,
            )
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_known(self, headers: Headers) -> bool:
        """Takes as long for a token that is nearly right as for one that is all wrong."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        is_bearer = scheme.lower() == "bearer"
        return hmac.compare_digest(token.strip().encode(), self._token) and is_bearer
