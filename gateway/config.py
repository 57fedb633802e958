"""The configuration: one frozen model per section of the YAML, with defaults that a newcomer can keep.

Where values come from (file, environment, flags) and how errors are worded is `gateway/config_source.py`.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from gateway.config_tls import TlsConfig, UpstreamTlsConfig
from gateway.config_types import (
    Address,
    Count,
    Seconds,
    SecondsOrOff,
    Section,
    Switch,
    Text,
    Unavailable,
    is_loopback,
    off_is_a_word,
    refuse,
    split_address,
)
from scorers.model import Role

MAX_PROCESSES = 256


class AdminConfig(Section):
    """The admin API."""

    token: Text | None = Field(default=None, repr=False, description="if set, requests need it as a Bearer token")
    listen: Address | None = Field(
        default="127.0.0.1:8001",
        description="host:port of the admin API; null turns it off; open to other machines it needs a token",
    )

    @field_validator("listen")
    @classmethod
    def _check_open(cls, value: str | None, info: ValidationInfo) -> str | None:
        without_token = info.data.get("token", "wrong, and told so") is None
        if value is not None and without_token and not is_loopback(split_address(value)[0]):
            refuse(f"{value!r} is open to other machines: set admin.token, or listen on 127.0.0.1")
        return value


class EndpointConfig(Section):
    """One engine."""

    url: str = Field(description="http://host:port of the engine, or https:// (see `upstream_tls`)")
    name: Text = Field(default="", description="name in metrics, receipts, headers and logs; default host:port")
    role: Role = Field(default="both", description="what it computes: prompts (prefill), answers (decode), or both")
    labels: dict[str, str] = Field(default={}, description="free; zone, rack, host and gpu are understood")
    loadable_adapters: tuple[Text, ...] = Field(
        default=(),
        description="globs of LoRA adapters that it loads by itself when a request names one (vLLM: a LoRA resolver)",
    )
    kv_events: Unavailable = Field(default=None, description="not available in this version")
    kv_replay: Unavailable = Field(default=None, description="not available in this version")

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        return _engine_url(value)

    @field_validator("name")
    @classmethod
    def _check_name(cls, value: str) -> str:
        if not value.isprintable():  # it stands in headers and in lines of text
            refuse(f"{value!r} holds what cannot be printed")
        return value

    @field_validator("labels")
    @classmethod
    def _check_labels(cls, value: dict[str, str]) -> dict[str, str]:
        for text in (*value, *value.values()):
            if not text.isprintable():
                refuse(f"{text!r} holds what cannot be printed")
        return value

    @model_validator(mode="before")
    @classmethod
    def _default_name(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and data.get("name") is None and isinstance(data.get("url"), str):
            return {**data, "name": data["url"].partition("://")[2].rstrip("/") or data["url"]}
        return data


_ADDRESS = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]+)?")


def _engine_url(value: str) -> str:
    """Return `value` without a trailing slash where it is a URL that the data plane can reach."""
    if not value.startswith(("http://", "https://")):
        refuse(f"{value!r} is not http://host:port or https://host:port")
    try:
        parts = urlsplit(value)
        names_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        names_host = False
    if not names_host:
        refuse(f"{value!r} names no host, or no port from 1 to 65535")
    if value.rstrip("/") != f"{parts.scheme}://{parts.netloc}" or parts.username is not None:
        refuse(f"{value!r} holds more than {parts.scheme}://host:port")
    if not _ADDRESS.fullmatch(parts.netloc):
        refuse(
            f"{value!r} is not {parts.scheme}://host:port with a host in ASCII letters or an IPv6 address in brackets"
        )
    return value.rstrip("/")


class StaticDiscoveryConfig(Section):
    """Endpoints listed in the configuration."""

    endpoints: tuple[EndpointConfig, ...] = Field(default=(), description="the engines")

    @field_validator("endpoints")
    @classmethod
    def _check_names(cls, endpoints: tuple[EndpointConfig, ...]) -> tuple[EndpointConfig, ...]:
        names = [one.name for one in endpoints]
        twice = sorted({repr(name) for name in names if names.count(name) > 1})
        if twice:
            refuse(f"two endpoints are named {', '.join(twice)}: give each a name of its own")
        return endpoints


class DiscoveryConfig(Section):
    """Where endpoints come from: exactly one source."""

    static: StaticDiscoveryConfig = Field(default=StaticDiscoveryConfig(), description="endpoints listed here")
    file: Unavailable = Field(default=None, description="not available in this version")
    dns: Unavailable = Field(default=None, description="not available in this version")
    kubernetes: Unavailable = Field(default=None, description="not available in this version")


class ScrapeConfig(Section):
    """How engine metrics are read."""

    interval_s: Seconds = Field(default=1.0, description="seconds between two scrapes of an engine")
    timeout_s: Seconds = Field(default=0.5, description="seconds that a scrape may take")
    stale_after_s: Seconds = Field(default=5.0, description="figures older than this are not believed")


class HealthConfig(Section):
    """How engines are probed."""

    interval_s: Seconds = Field(
        default=2.0, description="seconds between two probes of a ready engine; others are probed faster"
    )
    timeout_s: Seconds = Field(default=1.0, description="seconds that a probe may take")
    unhealthy_after: Count = Field(
        default=3, description="failures in a row (probes and refused connections) until not ready"
    )
    healthy_after: Count = Field(default=1, description="good probes in a row until ready")
    progress_s: SecondsOrOff = Field(
        default=20.0,
        description="silence of an engine that has requests, after which it is asked for one token; 0 never asks",
    )
    warm_in_s: SecondsOrOff = Field(
        default=5.0, description="seconds in which an endpoint that became ready comes to its full part; 0 for at once"
    )


class EjectionConfig(Section):
    """When failing requests take an endpoint out for a while; 4xx never do, and never the last one of a model."""

    failures_in_a_row: Count = Field(
        default=5, description="failures without a success between, or within the window, until it goes out"
    )
    failure_share: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False, strict=True)] = Field(
        default=0.5, description="share of failures among the window's outcomes, at most 1, from which it goes out"
    )
    window_s: Seconds = Field(default=10.0, description="seconds that the share is taken over")
    first_s: Seconds = Field(default=1.0, description="seconds out the first time; each further time twice as long")
    longest_s: Seconds = Field(
        default=30.0, description="longest time out; as long without another, and it begins anew"
    )


class ScorerConfig(Section):
    """One scorer: its weight, and whatever parameters it takes."""

    model_config = ConfigDict(frozen=True, extra="allow")

    weight: Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)] = Field(
        default=1.0, description="its share"
    )

    @model_validator(mode="before")
    @classmethod
    def _bare_weight(cls, data: Any) -> Any:
        return data if isinstance(data, Mapping | ScorerConfig) else {"weight": data}

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The scorer's own parameters by name."""
        return dict(self.model_extra or {})


DEFAULT_SCORERS = {"prefix_cache": 3.0, "queue_depth": 2.0, "kv_usage": 1.0, "lora": 1.0}


class RoutingConfig(Section):
    """How an endpoint is chosen: filters, then the weighted sum of scorers, then the picker."""

    scorers: dict[str, ScorerConfig] = Field(
        default={name: ScorerConfig(weight=weight) for name, weight in DEFAULT_SCORERS.items()},
        description="name: weight, or name: {weight: , and the scorer's parameters}",
    )
    filters: tuple[str, ...] = Field(default=("healthy", "model_served", "role"), description="in this order")
    picker: str = Field(default="max_score", description="picks one of the scored endpoints")
    receipt_headers: Switch = Field(default=False, description="add the x-twohop-* response headers")
    index_mb: Count = Field(
        default=64, description="MB that the prefix index may take in all, shared by the endpoints that have any of it"
    )


class KvEventsConfig(Section):
    """Engines' KV cache events (not read in this version)."""

    mode: Annotated[Literal["auto", "off"], BeforeValidator(off_is_a_word)] = Field(
        default="auto", description="auto or off"
    )


class DisaggregationConfig(Section):
    """Prefill on one engine, decode on another."""

    mode: Literal["auto", "always", "never"] = Field(
        default="auto", description="when two hops are taken; a pair needs an endpoint of role prefill or decode"
    )
    connector: str = Field(default="nixl", description="how the KV cache gets from one engine to the other")


class FlowControlConfig(Section):
    """Who may go now."""

    max_in_flight_per_endpoint: Count = Field(default=256, description="requests that one endpoint may hold")
    max_queue: Annotated[int, Field(ge=0, strict=True)] = Field(default=2000, description="requests that may wait")
    max_queue_wait_s: Seconds = Field(default=30.0, description="longest wait for a turn or for a first ready endpoint")


class RetriesConfig(Section):
    """Attempts before the first byte to the client."""

    max_attempts: Count = Field(default=3, description="attempts in all")
    budget_ratio: Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)] = Field(
        default=0.2,
        description="retries as a share of requests, beside 10 at first and one a second; refused connections and 429"
        " do not count",
    )


class TimeoutsConfig(Section):
    """Seconds until a step is given up."""

    header_s: Seconds = Field(default=10.0, description="for a client to send its request head")
    body_s: Seconds = Field(
        default=30.0, description="in each of which at least 1 KiB a second of a client's request body has to come"
    )
    connect_s: Seconds = Field(default=2.0, description="to connect to an engine")
    first_byte_s: Seconds = Field(default=120.0, description="until an engine's first byte")
    idle_s: Seconds = Field(default=60.0, description="between two bytes of an engine's answer")
    prefill_s: Seconds = Field(default=120.0, description="for the prefill leg of two hops")
    total_s: Seconds = Field(default=3600.0, description="for a request as a whole")


class UpstreamConfig(Section):
    """Connections to engines."""

    max_connections: Count | None = Field(
        default=None,
        description="open connections to one endpoint at most; null: twice `flow_control.max_in_flight_per_endpoint`",
    )


class LimitsConfig(Section):
    """Sizes that a client may send."""

    body_bytes: Count = Field(default=33_554_432, description="longest request body")
    header_bytes: Count = Field(default=65_536, description="longest request head")


class AuthConfig(Section):
    """API keys (not available in this version)."""

    keys_file: Unavailable = Field(default=None, description="not available in this version")


class ExtProcConfig(Section):
    """Envoy's endpoint picker (not available in this version)."""

    listen: Unavailable = Field(default=None, description="not available in this version")


class StateConfig(Section):
    """Shared state (not available in this version: in this process alone)."""

    redis_url: Unavailable = Field(default=None, description="not available in this version")


class DrainConfig(Section):
    """How the gateway stops."""

    grace_s: Seconds = Field(
        default=60.0, description="seconds for requests in flight to end, after SIGTERM and delay_s"
    )
    delay_s: Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)] = Field(
        default=0.0,
        description="seconds after SIGTERM in which new requests are still served, while health checks say 503",
    )


class Config(Section):
    """The whole configuration."""

    listen: Address = Field(default="127.0.0.1:8000", description="host:port of the inference API, /metrics and health")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least severity that is logged"
    )
    workers: Annotated[int, Field(ge=1, le=MAX_PROCESSES, strict=True)] = Field(
        default=1, description="processes that serve, one for each core that the gateway may use"
    )
    admin: AdminConfig = AdminConfig()
    discovery: DiscoveryConfig = DiscoveryConfig()
    scrape: ScrapeConfig = ScrapeConfig()
    health: HealthConfig = HealthConfig()
    ejection: EjectionConfig = EjectionConfig()
    routing: RoutingConfig = RoutingConfig()
    kv_events: KvEventsConfig = KvEventsConfig()
    disaggregation: DisaggregationConfig = DisaggregationConfig()
    flow_control: FlowControlConfig = FlowControlConfig()
    retries: RetriesConfig = RetriesConfig()
    continuation: bool = Field(
        default=False,
        description="where an engine is lost in the middle of a plain text stream, go on with it on another",
    )
    timeouts: TimeoutsConfig = TimeoutsConfig()
    limits: LimitsConfig = LimitsConfig()
    tls: TlsConfig = TlsConfig()
    upstream: UpstreamConfig = UpstreamConfig()
    upstream_tls: UpstreamTlsConfig = UpstreamTlsConfig()
    drain: DrainConfig = DrainConfig()
    auth: AuthConfig = AuthConfig()
    ext_proc: ExtProcConfig = ExtProcConfig()
    state: StateConfig = StateConfig()

    @model_validator(mode="after")
    def _check_connections(self) -> "Config":
        in_flight, most = self.flow_control.max_in_flight_per_endpoint, self.upstream.max_connections
        if most is not None and most < in_flight:
            refuse(
                f"upstream.max_connections: {most} is less than flow_control.max_in_flight_per_endpoint ({in_flight}):"
                " requests would wait for a connection after their turn had come"
            )
        return self

    @property
    def max_connections(self) -> int:
        """Open connections to one endpoint at most."""
        return self.upstream.max_connections or 2 * self.flow_control.max_in_flight_per_endpoint
