"""The routes on `listen` that are not hot: models, health, metrics; errors in OpenAI's shape."""

from collections.abc import Callable
from typing import Any, cast

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from gateway.api.routes import POSTED, style_of
from gateway.errors import GatewayError, InvalidRequest, ModelNotFound, Style, cut, error_body
from gateway.observability.metrics import CONTENT_TYPE, Metrics
from gateway.pool.store import Pool

READ = ["GET", "HEAD"]


def error_response(error: GatewayError, style: Style = "openai") -> Response:
    """Return the answer for an error of ours."""
    headers = {} if error.retry_after is None else {"retry-after": error.retry_after}
    return Response(error.body(style), error.status, headers, media_type="application/json")


def shape_errors(app: FastAPI) -> None:
    """Answer the framework's own errors (no such path, wrong method) in the shape of all others too."""

    async def framework_error(request: Request, error: Exception) -> Response:
        error = cast("HTTPException", error)
        path, code = request.scope["path"], "not_found" if error.status_code == 404 else "invalid_request"
        message = f"{error.detail}: {request.method} {cut(path)}"
        body = error_body(error.status_code, message, "invalid_request_error", None, code, style_of(path))
        return Response(body, error.status_code, error.headers, media_type="application/json")

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


async def _no_response(response_id: str) -> None:
    raise HTTPException(404, f"{cut(response_id)!r} is no id of a response")


def _add_models(app: FastAPI, pool: Pool) -> None:
    @app.api_route("/v1/models", methods=READ)
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": list(pool.served_models().values())}

    @app.api_route("/v1/models/{model_id:path}", methods=READ)
    async def model(model_id: str) -> Any:
        served = pool.served_models()
        if model_id not in served:
            raise ModelNotFound(model_id, served)
        return served[model_id]


def build_edges(pool: Pool, metrics: Metrics, stopping: Callable[[], bool]) -> FastAPI:
    """Return the app for everything on `listen` but the inference routes."""
    app = FastAPI(title="twohop", openapi_url=None, redirect_slashes=False)
    shape_errors(app)

    # So that another method gets 405 with Allow, not 404; those listed here are taken before this app.
    for path in POSTED:
        app.add_api_route(path, _taken, methods=["POST"])
    app.add_api_route("/v1/responses/{response_id}", _no_response, methods=["GET", "DELETE"])
    app.add_api_route("/v1/responses/{response_id}/cancel", _no_response, methods=["POST"])

    _add_models(app, pool)

    @app.api_route("/healthz", methods=READ)
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.api_route("/readyz", methods=READ)
    @app.api_route("/health", methods=READ)
    async def readyz() -> Response:
        if stopping():
            return JSONResponse({"status": "shutting down"}, 503)
        if not pool.any_ready():
            return JSONResponse({"status": "no endpoint is ready"}, 503)
        return JSONResponse({"status": "ready"})

    @app.api_route("/metrics", methods=READ)
    async def exposition() -> Response:
        return Response(await metrics.render_all(), media_type=CONTENT_TYPE)

    return app
