"""The inference routes: raw ASGI before the FastAPI app; no model validates a prompt, nothing is parsed twice."""

from starlette.types import ASGIApp

from gateway.api.protocol import EXTENSION
from gateway.dataplane.handle import DataPlane
from gateway.dataplane.records import Receive, Scope, Send

PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})


class InferenceRoutes:
    """Takes POSTs on `PATHS`; every other request goes to `edges`. A new `data_plane` takes the requests to come."""

    def __init__(self, data_plane: DataPlane, edges: ASGIApp) -> None:
        self.data_plane = data_plane
        self._edges = edges

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope["type"] == "http" and scope["path"] in PATHS and scope["method"] == "POST":
            connection = (scope.get("extensions") or {}).get(EXTENSION)
            await self.data_plane.handle(scope, receive, send, connection)
            return
        await self._edges(scope, receive, send)
