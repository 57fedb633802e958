"""`twohop check-config` on files that can and cannot be used, plugins included."""

import pytest

from gateway.cli import main


@pytest.fixture
def check(tmp_path, capsys):
    def check(text: str):
        path = tmp_path / "twohop.yaml"
        path.write_text(text, encoding="utf-8")
        status = main(["check-config", str(path)])
        out, err = capsys.readouterr()
        return status, out, err.replace(f"{path}:", "")

    return check


ENGINES = """
discovery:
  static:
    endpoints:
    - {url: "http://a:1", role: prefill}
    - {url: "http://b:1", role: decode}
    - {url: "http://c:1", role: decode}
"""


def test_a_good_file_is_summed_up(check):
    assert check(ENGINES) == (0, "ok: 3 endpoints (1 prefill, 2 decode), listening on 127.0.0.1:8000\n", "")
    one = 'discovery: {static: {endpoints: [{url: "http://a:1"}]}}'
    assert check(one) == (0, "ok: 1 endpoint (1 both), listening on 127.0.0.1:8000\n", "")


def test_a_wrong_file_is_refused_with_line_field_and_nearest_name(check):
    assert check(f"lisen: x{ENGINES}") == (2, "", "1: lisen: unknown key; did you mean 'listen'?\n")


def test_every_wrong_plugin_name_and_parameter_is_told(check):
    routing = """
routing:
  scorers:
    prefix_cach: 1
    queue_depth: {weight: 1, zzz: 2}
  filters: [healthy, rol]
  picker: max_scor
disaggregation:
  connector: nxil
"""
    status, out, err = check(ENGINES.strip() + routing)
    lines = err.splitlines()
    assert (status, out, len(lines)) == (2, "", 5)
    for place, word in [
        ("9: routing.scorers.prefix_cach: ", "did you mean 'prefix_cache'?"),
        ("10: routing.scorers.queue_depth.zzz: ", "unknown parameter"),
        ("11: routing.filters.rol: ", "did you mean 'role'?"),
        ("12: routing.picker: ", "did you mean 'max_score'?"),
        ("14: disaggregation.connector: ", "'nxil' is unknown; did you mean 'nixl'?"),
    ]:
        assert any(line.startswith(place) and word in line for line in lines), err
