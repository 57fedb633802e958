"""Scorers for where the request's state is: one file each, as told in `scorers`."""

from scorers import Scorer

__all__ = ["Scorer"]
