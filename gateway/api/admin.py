"""The admin API: what the gateway knows of its endpoints, and why each request went where it went."""

import hmac
from typing import Any

from fastapi import Depends, FastAPI, HTTPException, Query, Request

from gateway.api.edges import shape_errors
from gateway.errors import InvalidApiKey
from gateway.state.together import Everyone


def build_admin(everyone: Everyone, token: str | None) -> FastAPI:
    """Return the admin app, which covers every process. With a `token`, every route needs it as a Bearer token."""

    async def check_token(request: Request) -> None:
        if token is None:
            return
        given = request.headers.get("authorization", "").encode("latin-1")  # the bytes as they came
        if not hmac.compare_digest(given, f"Bearer {token}".encode()):
            raise InvalidApiKey("the admin API needs its token: Authorization: Bearer <admin.token>")

    app = FastAPI(title="twohop admin", openapi_url=None, dependencies=[Depends(check_token)])
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

    return app
