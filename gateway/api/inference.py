"""The inference routes: raw ASGI before the FastAPI app; no model validates a prompt, nothing is parsed twice."""

from starlette.types import ASGIApp

from gateway.api.protocol import EXTENSION
from gateway.api.routes import find
from gateway.dataplane.handle import DataPlane
from gateway.dataplane.records import Receive, Scope, Send


class InferenceRoutes:
    """Takes what `find` knows as inference; every other request goes to `edges`."""

    def __init__(self, data_plane: DataPlane, edges: ASGIApp) -> None:
        self._data_plane = data_plane
        self._edges = edges

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope["type"] == "http" and (route := find(scope["method"], scope["path"])) is not None:
            connection = (scope.get("extensions") or {}).get(EXTENSION)
            await self._data_plane.handle(scope, receive, send, connection, route)
            return
        await self._edges(scope, receive, send)
