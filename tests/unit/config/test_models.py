"""The configuration's own rules: defaults, addresses, URLs, names."""

import pytest
from pydantic import ValidationError

from gateway.config import AdminConfig, Config, EndpointConfig, ScorerConfig
from gateway.config_types import is_loopback, split_address


def test_the_defaults_are_the_documented_ones():
    config = Config()
    assert (config.listen, config.admin.listen, config.admin.token) == ("127.0.0.1:8000", "127.0.0.1:8001", None)
    assert {name: one.weight for name, one in config.routing.scorers.items()} == {
        "prefix_cache": 3.0,
        "queue_depth": 2.0,
        "kv_usage": 1.0,
        "lora": 1.0,
    }
    assert config.routing.filters == ("healthy", "model_served", "role")
    assert (config.limits.body_bytes, config.limits.header_bytes, config.drain.grace_s) == (33_554_432, 65_536, 60.0)


def test_a_configuration_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        Config().listen = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8000", ("127.0.0.1", 8000)),
        ("[::1]:80", ("::1", 80)),
        ("host.name:0", ("host.name", 0)),
        ("0.0.0.0:65535", ("0.0.0.0", 65535)),
    ],
)
def test_addresses_are_split(text, address):
    assert split_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "8000", ":8000", "host", "host:", "host:x", "host:65536", "::1:80", "[::1]", "[x]:80", "a/b:1", "h:٣"]
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ValidationError, match="is not host:port"):
        Config(listen=text)


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("h", False)],
)
def test_loopback_is_this_machine_alone(host, local):
    assert is_loopback(host) is local


@pytest.mark.parametrize("listen", ["0.0.0.0:8001", "[::]:8001", "10.0.0.1:8001", "gateway:8001"])
def test_an_admin_api_open_to_others_needs_a_token(listen):
    with pytest.raises(ValidationError, match=r"set admin\.token, or listen on 127\.0\.0\.1"):
        AdminConfig(listen=listen)
    assert AdminConfig(listen=listen, token="s3cret").listen == listen
    assert "s3cret" not in repr(AdminConfig(listen=listen, token="s3cret"))


def test_the_admin_api_can_be_off():
    assert AdminConfig(listen=None).listen is None


@pytest.mark.parametrize(
    ("url", "kept", "name"),
    [
        ("http://h1:8000", "http://h1:8000", "h1:8000"),
        ("http://h1:8000/", "http://h1:8000", "h1:8000"),
        ("http://[::1]:9", "http://[::1]:9", "[::1]:9"),
        ("http://h1", "http://h1", "h1"),
        ("https://h1:8443/", "https://h1:8443", "h1:8443"),
    ],
)
def test_an_endpoint_is_named_by_host_and_port(url, kept, name):
    endpoint = EndpointConfig.model_validate({"url": url})
    assert (endpoint.url, endpoint.name, endpoint.role) == (kept, name, "both")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("https://h:1/v1", "holds more than https://host:port"),
        ("https:h", "is not http://host:port or https://"),
        ("h:8000", "is not http://"),
        ("ftp://h", "is not http://"),
        ("http://", "names no host"),
        ("http://h:99999", "no port from 1 to 65535"),
        ("http://[::1", "names no host"),
        ("http://h:0", "no port from 1 to 65535"),
        ("http://h:1/v1", "holds more than"),
        ("http://u:p@h:1", "holds more than"),
        ("http://h:1?a=b", "holds more than"),
        ("http://h:1?", "holds more than"),
        ("http://h:1#", "holds more than"),
        ("http://h\n:1", "holds more than"),
        ("http://a b:1", "a host in ASCII"),
        ("http://ü:1", "a host in ASCII"),
        ("http://[::1]x:1", "a host in ASCII"),
        ("http://h:", "a host in ASCII"),
    ],
)
def test_a_url_that_cannot_be_reached_is_refused(url, why):
    with pytest.raises(ValidationError, match=why):
        EndpointConfig.model_validate({"url": url})


def test_a_name_that_would_break_a_line_is_refused():
    with pytest.raises(ValidationError, match="cannot be printed"):
        EndpointConfig.model_validate({"url": "http://h:1", "name": "a\r\nx: y"})


def test_a_scorer_is_a_weight_or_a_weight_with_parameters():
    assert ScorerConfig.model_validate(2).weight == 2.0
    scorer = ScorerConfig.model_validate({"weight": 0, "full_at": 8})
    assert (scorer.weight, scorer.parameters) == (0.0, {"full_at": 8})
    assert ScorerConfig.model_validate(2).parameters == {}
