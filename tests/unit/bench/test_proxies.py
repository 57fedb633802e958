"""How the overhead benchmark finds proxies and builds their commands."""

import json
from pathlib import Path

import pytest

from benchmarks.overhead.proxies import NotInstalled, Place, find, twohop_command


def pretend_installed(peers: Path, name: str) -> None:
    (peers / "lib/python3.11/site-packages" / f"{name}.dist-info").mkdir(parents=True)


def test_a_peer_that_is_missing_or_of_another_version_says_so(tmp_path):
    with pytest.raises(NotInstalled, match=r"needs vllm-router==.* does not have it"):
        find("vllm-router:cache_aware", tmp_path)
    pretend_installed(tmp_path, "sglang_router-0.0.1")
    with pytest.raises(NotInstalled, match=r"needs sglang-router==.* has 0\.0\.1"):
        find("smg:cache_aware", tmp_path)


@pytest.mark.parametrize("name", ["nginx", "smg", "vllm-router:", ""])
def test_an_unknown_name_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="no proxy is called"):
        find(name, tmp_path)


def test_a_peer_gets_addresses_and_policy(tmp_path):
    pretend_installed(tmp_path, "vllm_router-0.1.17")
    proxy = find("vllm-router:round_robin", tmp_path)
    command = proxy.command(Place(9000, ["http://h:1", "http://h:2"], tmp_path))
    assert command[0] == str(tmp_path / "bin/vllm-router")
    assert command[command.index("--worker-urls") + 1 :][:2] == ["http://h:1", "http://h:2"]
    assert command[command.index("--policy") + 1] == "round_robin"
    assert command[command.index("--port") + 1] == "9000"


def test_the_naive_proxy_gets_every_endpoint(tmp_path):
    command = find("naive", tmp_path).command(Place(9000, ["http://h:1", "http://h:2"], tmp_path))
    assert command.count("--endpoint") == 2


def test_peers_txt_pins_the_versions_that_are_looked_for(tmp_path):
    pins = (Path(__file__).parents[3] / "benchmarks/overhead/peers.txt").read_text().split()
    for pin in pins:
        package, _, version = pin.partition("==")
        pretend_installed(tmp_path, f"{package.replace('-', '_')}-{version}")
    assert find("vllm-router:cache_aware", tmp_path).version == "0.1.17"
    assert find("smg:cache_aware", tmp_path).version == "0.3.2"


def test_the_gateway_runs_without_its_admin_api_on_all_endpoints(tmp_path):
    command = twohop_command(Place(9000, ["http://h:1", "http://h:2"], tmp_path))
    config = json.loads(Path(command[-1]).read_text())
    assert config["admin"] == {"listen": None}
    assert [endpoint["url"] for endpoint in config["discovery"]["static"]["endpoints"]] == ["http://h:1", "http://h:2"]
