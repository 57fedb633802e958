"""Which requests go to the data plane; no model validates a prompt, nothing is parsed twice."""

from collections.abc import Callable, Coroutine
from typing import Any

from gateway.api.request import ClientRequest
from gateway.api.routes import find
from gateway.dataplane.handle import DataPlane


class InferenceRoutes:
    """Takes what `find` knows as inference; every other request goes to `edges`. `data_plane` may be replaced at any
    time: a request stays with the one that it began with."""

    def __init__(self, data_plane: DataPlane, edges: Callable[[ClientRequest], Coroutine[Any, Any, None]]) -> None:
        self.data_plane = data_plane
        self._edges = edges

    def __call__(self, request: ClientRequest) -> Coroutine[Any, Any, None]:
        """Return what serves `request`."""
        route = find(request.method, request.path)
        return self._edges(request) if route is None else self.data_plane.handle(request, route)
