"""Scorers for where there is room: one file each, as told in `scorers`.

A number scraped too long ago is never believed to an endpoint's favour (`EndpointView.stale`).
"""

from scorers import Scorer

__all__ = ["Scorer"]
