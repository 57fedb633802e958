"""What the admin said of endpoints, over what their source tells: pure functions of the two.

Rule: the admin's word on a name holds until the source tells something else under that name.
"""

from collections.abc import Mapping
from typing import NamedTuple

from gateway.pool.spec import EndpointSpec

Specs = Mapping[str, EndpointSpec]


class Override(NamedTuple):
    """`spec` is the endpoint that the admin put under a name, None where one was taken out; `over` what it replaces."""

    spec: EndpointSpec | None
    over: EndpointSpec | None


Overrides = Mapping[str, Override]


def added(told: Specs, overrides: Overrides, spec: EndpointSpec) -> dict[str, Override]:
    """Return the overrides once the admin has put `spec` in; nothing is left to say where the source tells the same."""
    rest = {name: one for name, one in overrides.items() if name != spec.name}
    over = told.get(spec.name)
    return rest if over == spec else {**rest, spec.name: Override(spec, over)}


def removed(told: Specs, overrides: Overrides, name: str) -> dict[str, Override]:
    """Return the overrides once the admin has taken `name` out."""
    rest = {other: one for other, one in overrides.items() if other != name}
    return {**rest, name: Override(None, told[name])} if name in told else rest


def kept(told: Specs, overrides: Overrides) -> dict[str, Override]:
    """Return what still holds now that the source tells `told`."""
    still = {}
    for name, one in overrides.items():
        over = told.get(name)
        if over == one.over or (over is None and one.spec is not None):
            still[name] = Override(one.spec, over)
    return still


def wanted(told: Specs, overrides: Overrides) -> list[EndpointSpec]:
    """Return the endpoints that there should be: the source's in its order, then those that the admin added."""
    listed = [overrides[name].spec if name in overrides else spec for name, spec in told.items()]
    more = [one.spec for name, one in overrides.items() if name not in told]
    return [spec for spec in (*listed, *more) if spec is not None]
