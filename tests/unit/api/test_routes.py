"""What is inference and what is not: the table, the catch-all, and what no client may reach."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.routes import KINDS, OTHER, POSTED, RESPONSE_BY_ID, find, response_id, style_of

LORA = "/v1/load_lora_adapter"


@pytest.mark.parametrize("path", POSTED)
def test_every_path_of_the_table_takes_post_alone(path):
    assert find("POST", path) is POSTED[path]
    assert [find(method, path) for method in ("GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS")] == [None] * 6
    assert POSTED[path].kind in KINDS


@pytest.mark.parametrize("path", ["/v1/x", "/v1/chat/completions/render", "/v1/audio/speech", "/v1/a.b/c-d_e~f/1:2@3"])
def test_another_path_under_v1_goes_by_the_bodys_model(path):
    assert find("POST", path) is OTHER
    assert find("GET", path) is None


@pytest.mark.parametrize(
    "path",
    [
        LORA,
        "/v1/unload_lora_adapter",
        LORA.upper().replace("/V1", "/v1"),
        f"{LORA}/",
        f"{LORA}/x",
        "/v1//load_lora_adapter",
        "//v1/load_lora_adapter",
        "/v1/x/../load_lora_adapter",
        "/v1/./load_lora_adapter",
        "/v1/x/load_lora_adapter",
        "/v1/%6coad_lora_adapter",  # was encoded twice
        "/v1/load_lora_adapter;x=1",
        "/v1/load_lora_adapter?x",
        "/v1/load_lora_adapter#x",
        "/v1/load_lora_adapter\x00",
        "/v1/load_lora_adapter\n",
        "/v1/load_lora_adapter ",
        "/v1\\load_lora_adapter",
        "/v1/x\\..\\load_lora_adapter",
        "/v1/\u017foad",  # folds to "s"
        "/v1/load_lora_adapter/../x",
        "/v1/chat/completions/../../load_lora_adapter",
    ],
)
def test_what_could_change_an_engines_adapters_is_no_route(path):
    assert find("POST", path) is None


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1",
        "/v1/",
        "/v1/x/",
        "/v2/x",
        "/sleep",
        "/v1x",
        "/v1/models",
        "/v1/models/m",
        "/v1/models/a/b",
        "/metrics",
    ],
)
def test_what_is_no_inference_is_left_to_the_edges(path):
    assert find("POST", path) is None


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/responses/resp_1"),
        ("DELETE", "/v1/responses/resp_1"),
        ("POST", "/v1/responses/resp_1/cancel"),
    ],
)
def test_a_response_is_found_by_its_id(method, path):
    assert find(method, path) is RESPONSE_BY_ID
    assert response_id(path) == "resp_1"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/responses"),
        ("GET", "/v1/responses/"),
        ("GET", "/v1/responses/.."),
        ("GET", "/v1/responses/a/b"),
        ("GET", "/v1/responses/a%2f"),
        ("PUT", "/v1/responses/a"),
        ("GET", "/v1/responses/a/cancel"),
    ],
)
def test_what_is_no_response_is_left_to_the_edges(method, path):
    assert find(method, path) is None


def test_errors_look_as_the_routes_clients_expect():
    assert {path for path, route in POSTED.items() if route.style == "anthropic"} == {
        "/v1/messages",
        "/v1/messages/count_tokens",
    }
    route = find("POST", "/v1/messages/batches")
    assert route is not None
    assert (route.style, route.kind) == ("anthropic", "other")
    assert [style_of(path) for path in ("/v1/messages", "/v1/messages/x", "/v1/messagesx", "/x")] == [
        "anthropic",
        "anthropic",
        "openai",
        "openai",
    ]


@given(st.text(max_size=30))
def test_no_path_outside_the_table_passes_unless_every_segment_is_plain(tail):
    path = f"/v1/{tail}"
    if find("POST", path) is not None and path not in POSTED:
        segments = path.split("/")[1:]
        assert path.isascii()
        assert not set(path) & set("%\\;?# \t\r\n\0")
        assert all(segment and segment not in {".", ".."} for segment in segments)
        assert not any("load_lora_adapter" in segment.lower() for segment in segments)
