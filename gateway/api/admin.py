"""The admin API: what the gateway knows of its endpoints, verbs on them, and why each request went where it went."""

import hmac
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse

from gateway.api.edges import shape_errors
from gateway.endpoints import Command
from gateway.errors import InvalidApiKey, InvalidRequest
from gateway.state.together import Everyone


def build_admin(everyone: Everyone, current_token: Callable[[], str | None]) -> FastAPI:
    """Return the admin app, which covers every process of the gateway.

    While `current_token()` is not None, every route needs it as a Bearer token.
    """

    async def check_token(request: Request) -> None:
        token = current_token()
        if token is None:
            return
        given = request.headers.get("authorization", "").encode("latin-1")  # the bytes as they came
        if not hmac.compare_digest(given, f"Bearer {token}".encode()):
            raise InvalidApiKey("the admin API needs its token: Authorization: Bearer <admin.token>")

    app = FastAPI(title="twohop admin", openapi_url=None, redirect_slashes=False, dependencies=[Depends(check_token)])
    shape_errors(app)

    @app.get("/admin/endpoints")
    async def endpoints() -> dict[str, Any]:
        return await everyone.endpoints()

    @app.get("/admin/decisions")
    async def decisions(limit: int = Query(100, ge=1, le=1000)) -> dict[str, Any]:
        return await everyone.decisions(limit)

    @app.get("/admin/decisions/{request_id:path}")
    async def decision(request_id: str) -> dict[str, Any]:
        receipt = await everyone.decision(request_id)
        if receipt is None:
            raise HTTPException(404, "no receipt of this request id is kept (the last 1,000 are)")
        return receipt

    _add_verbs(app, everyone)
    return app


def _add_verbs(app: FastAPI, everyone: Everyone) -> None:
    async def answer(request: Request, command: Command) -> Response:
        # A page from elsewhere, open in a browser that reaches this address, must not move endpoints.
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
            raise HTTPException(403, "refused: sent by a page from elsewhere")
        done = await everyone.order(command)
        return JSONResponse(done["body"], done["status"])

    @app.post("/admin/endpoints")
    async def add(request: Request) -> Response:
        try:
            given = await request.json()
        except (ValueError, RecursionError):  # no JSON, or no UTF-8
            raise InvalidRequest("the body is not JSON") from None
        return await answer(request, {"verb": "add", "endpoint": given})

    # Names may hold slashes; the last word of the path is the verb.
    @app.post("/admin/endpoints/{name:path}/drain")
    async def drain(request: Request, name: str) -> Response:
        return await answer(request, {"verb": "drain", "name": name})

    @app.post("/admin/endpoints/{name:path}/undrain")
    async def undrain(request: Request, name: str) -> Response:
        return await answer(request, {"verb": "undrain", "name": name})

    @app.delete("/admin/endpoints/{name:path}")
    async def remove(request: Request, name: str) -> Response:
        return await answer(request, {"verb": "remove", "name": name})
