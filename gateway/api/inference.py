"""Which requests go to the data plane; no model validates a prompt, nothing is parsed twice."""

from collections.abc import Callable, Coroutine
from typing import Any

from gateway.api.request import ClientRequest
from gateway.dataplane.handle import DataPlane

PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})


class InferenceRoutes:
    """Takes POSTs on `PATHS`; every other request goes to `edges`. `data_plane` may be replaced at any time: a request
    stays with the one that it began with."""

    def __init__(self, data_plane: DataPlane, edges: Callable[[ClientRequest], Coroutine[Any, Any, None]]) -> None:
        self.data_plane = data_plane
        self._edges = edges

    def __call__(self, request: ClientRequest) -> Coroutine[Any, Any, None]:
        """Return what serves `request`."""
        if request.path in PATHS and request.method == "POST":
            return self.data_plane.handle(request)
        return self._edges(request)
