"""The routes on `listen` that are not hot: models, health, metrics; errors in OpenAI's shape."""

from collections.abc import Callable
from typing import Any, cast

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from gateway.api.inference import PATHS
from gateway.errors import GatewayError, InvalidRequest, ModelNotFound
from gateway.observability.metrics import CONTENT_TYPE, Metrics
from gateway.pool.store import Pool


def error_response(error: GatewayError) -> Response:
    """Return the answer for an error of ours."""
    headers = {} if error.retry_after is None else {"retry-after": error.retry_after}
    return Response(error.body(), error.status, headers, media_type="application/json")


def shape_errors(app: FastAPI) -> None:
    """Answer the framework's own errors (no such path, wrong method) in OpenAI's shape too."""

    async def framework_error(request: Request, error: Exception) -> Response:
        error = cast("HTTPException", error)
        body = {
            "message": f"{error.detail}: {request.method} {request.url.path}",
            "type": "invalid_request_error",
            "param": None,
            "code": "not_found" if error.status_code == 404 else "invalid_request",
        }
        return JSONResponse({"error": body}, error.status_code, error.headers)

    async def gateway_error(_: Request, error: Exception) -> Response:
        return error_response(cast("GatewayError", error))

    async def invalid(_: Request, error: Exception) -> Response:
        problems = cast("RequestValidationError", error).errors()
        told = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in problems)
        return error_response(InvalidRequest(told))

    app.add_exception_handler(HTTPException, framework_error)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(GatewayError, gateway_error)


async def _taken() -> None:
    raise GatewayError("an inference request went past its route")


def build_edges(pool: Pool, metrics: Metrics, stopping: Callable[[], bool]) -> FastAPI:
    """Return the app for everything on `listen` but the inference routes."""
    app = FastAPI(title="twohop", openapi_url=None)
    shape_errors(app)

    for path in PATHS:  # so that another method gets 405 with Allow, not 404; the POSTs are taken before this app
        app.add_api_route(path, _taken, methods=["POST"])

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": list(pool.served_models().values())}

    @app.get("/v1/models/{model_id:path}")
    async def model(model_id: str) -> Any:
        served = pool.served_models()
        if model_id not in served:
            raise ModelNotFound(model_id, served)
        return served[model_id]

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz")
    @app.get("/health")
    async def readyz() -> Response:
        if stopping():
            return JSONResponse({"status": "shutting down"}, 503)
        if not pool.any_ready():
            return JSONResponse({"status": "no endpoint is ready"}, 503)
        return JSONResponse({"status": "ready"})

    @app.get("/metrics")
    async def exposition() -> Response:
        return Response(await metrics.render_all(), media_type=CONTENT_TYPE)

    return app
