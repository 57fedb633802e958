"""File, environment and flags: which wins, and how everything wrong is told."""

import pytest

from gateway.config import Config
from gateway.config_source import Flags, load, nearest, process_environment
from gateway.errors import ConfigError

ENGINE = Flags(endpoints=["http://h:1"])


@pytest.fixture
def write(tmp_path):
    def write(text: str):
        path = tmp_path / "twohop.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def complaints(path=None, environ=None, flags=ENGINE, check_plugins=None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(path, environ or {}, flags, check_plugins)
    return [line.replace(f"{path}:", "") for line in str(caught.value).splitlines()]


def test_two_endpoint_flags_alone_are_a_whole_configuration():
    config = load(None, {}, Flags(endpoints=["http://h1:8000", "http://h2:8000,role=decode,name=d"]))
    assert [(one.url, one.role, one.name) for one in config.discovery.static.endpoints] == [
        ("http://h1:8000", "both", "h1:8000"),
        ("http://h2:8000", "decode", "d"),
    ]
    assert config.model_copy(update={"discovery": Config().discovery}) == Config()


def test_the_documented_file_is_read(write):
    config = load(
        write("""
listen: 127.0.0.1:9000
admin: {listen: 127.0.0.1:9001, token: null}
discovery:
  static:
    endpoints:
      - {url: "http://127.0.0.1:9001", name: a, role: prefill, labels: {zone: z1}, kv_events: null, kv_replay: null}
scrape: {interval_s: 2, timeout_s: 0.5, stale_after_s: 5.0}
health: {interval_s: 2.0, timeout_s: 1.0, unhealthy_after: 3, healthy_after: 1}
routing:
  scorers: {prefix_cache: 3, queue_depth: {weight: 2.0, full_at: 4}}
  filters: [healthy]
  picker: max_score
  receipt_headers: true
kv_events: {mode: off}
disaggregation: {mode: never, connector: nixl}
flow_control: {max_in_flight_per_endpoint: 256, max_queue: 0, max_queue_wait_s: 30}
retries: {max_attempts: 3}
timeouts:
limits:  {body_bytes: 33554432}
auth:    {keys_file: null}
ext_proc: {listen: null}
state:   {redis_url: null}
"""),
        {},
    )
    (endpoint,) = config.discovery.static.endpoints
    assert (endpoint.name, endpoint.role, endpoint.labels) == ("a", "prefill", {"zone": "z1"})
    assert (config.kv_events.mode, config.scrape.interval_s, config.flow_control.max_queue) == ("off", 2.0, 0)
    assert dict(config.routing.scorers["queue_depth"].parameters) == {"full_at": 4}
    assert config.timeouts == Config().timeouts


def test_the_environment_overrides_the_file_and_flags_override_both(write):
    path = write("listen: 127.0.0.1:1\nlog_level: debug\nlimits: {body_bytes: 5}\nretries: {max_attempts: 7}\n")
    environ = {
        "TWOHOP_LISTEN": "127.0.0.1:2",
        "TWOHOP_LOG_LEVEL": "error",
        "TWOHOP_LIMITS__BODY_BYTES": "6",
        "TWOHOP_ROUTING__RECEIPT_HEADERS": "true",
        "TWOHOP_DISCOVERY__STATIC__ENDPOINTS": '[{url: "http://e:1"}]',
        "TWOHOP_TIMEOUTS": "{idle_s: 3}",
    }
    config = load(path, environ, Flags(listen="127.0.0.1:3"))
    assert (config.listen, config.log_level, config.limits.body_bytes) == ("127.0.0.1:3", "error", 6)
    assert (config.retries.max_attempts, config.routing.receipt_headers, config.timeouts.idle_s) == (7, True, 3.0)
    assert [one.name for one in config.discovery.static.endpoints] == ["e:1"]
    assert load(path, environ, ENGINE).discovery.static.endpoints[0].name == "h:1"


def test_a_text_in_the_environment_is_taken_as_it_is_and_null_turns_off():
    environ = {"TWOHOP_ADMIN__TOKEN": "00123: #x", "TWOHOP_ADMIN__LISTEN": "null"}
    config = load(None, environ, ENGINE)
    assert (config.admin.token, config.admin.listen) == ("00123: #x", None)


def test_one_scorers_variable_leaves_the_others_their_weights(write):
    environ = {"TWOHOP_ROUTING__SCORERS__PREFIX_CACHE": "9"}
    weights = {name: one.weight for name, one in load(None, environ, ENGINE).routing.scorers.items()}
    assert weights == {"prefix_cache": 9.0, "queue_depth": 2.0, "kv_usage": 1.0, "lora": 1.0}
    path = write("routing: {scorers: {in_flight: 1}}")
    weights = {name: one.weight for name, one in load(path, environ, ENGINE).routing.scorers.items()}
    assert weights == {"in_flight": 1.0, "prefix_cache": 9.0}


@pytest.mark.parametrize(
    "name",
    [
        "TWOHOP_TEST_ANYTHING", "TWOHOP_VLLM_VENV", "TWOHOP_SERVICE_HOST", "TWOHOP_SERVICE_PORT_HTTP", "TWOHOP_PORT",
        "TWOHOP_GATEWAY_PORT_8000_TCP_ADDR", "TWOHOP_PORT_8000_TCP", "HOME", "MY_TWOHOP_LISTEN",
    ],
)  # fmt: skip
def test_variables_that_are_no_configuration_are_left_alone(name):
    assert load(None, {name: "tcp://10.0.0.1:8000"}, ENGINE) == load(None, {}, ENGINE)


def test_everything_wrong_is_told_at_once_with_origin_field_and_nearest_name(write):
    path = write("""listen: 8000
listen: 127.0.0.1:1
routing:
  scorrers: {a: 1}
  scorers: {prefix_cache: heavy, queue_depth: -1, kv_usage: .nan}
disaggregation: {mode: allways}
timeouts: {idle_s: 0, total_s: .inf, connect_s: yes, frist_byte_s: 1}
admin: [1]
discovery:
  static:
    endpoints:
    - name: a
    - {url: "http://h:1", role: prefil, kv_events: "tcp://x"}
  kubernetes: {selector: x}
auth: {keys_file: keys.yaml}
""")
    environ = {"TWOHOP_ROUTING__PICKR": "x", "TWOHOP_LIMITS__BODY_BYTES": "{", "TWOHOP_FOO": "1"}
    told = complaints(path, environ, Flags(log_level="inf"))
    for expected in [
        "2: listen: is there twice, first at 1",
        "environment TWOHOP_LIMITS__BODY_BYTES: limits.body_bytes: is no valid YAML",
        "1: listen: must be a valid string, not 8000",
        "--log-level: log_level: 'inf' is not one of debug, info, warning, error; did you mean 'info'?",
        "8: admin: must be a mapping of keys to values, not [1]",
        "12: discovery.static.endpoints[0].url: is missing",
        "13: discovery.static.endpoints[1].role: 'prefil' is not one of both, prefill, decode; did you mean 'prefill'?",
        "13: discovery.static.endpoints[1].kv_events: is not available in this version: leave it out",
        "14: discovery.kubernetes: is not available in this version: leave it out",
        "15: auth.keys_file: is not available in this version: leave it out",
        "4: routing.scorrers: unknown key; did you mean 'scorers'?",
        "5: routing.scorers.prefix_cache.weight: must be a valid number, not 'heavy'",
        "5: routing.scorers.queue_depth.weight: must be greater than or equal to 0, not -1",
        "5: routing.scorers.kv_usage.weight: must be a finite number, not nan",
        "environment TWOHOP_ROUTING__PICKR: routing.pickr: unknown key; did you mean 'picker'?",
        "6: disaggregation.mode: 'allways' is not one of auto, always, never; did you mean 'always'?",
        "7: timeouts.idle_s: must be greater than 0, not 0",
        "7: timeouts.total_s: must be a finite number, not inf",
        "7: timeouts.connect_s: must be a valid number, not True",
        "7: timeouts.frist_byte_s: unknown key; did you mean 'first_byte_s'?",
        "environment TWOHOP_FOO: foo: unknown key; known here: admin, auth, ",
    ]:
        (found,) = [line for line in told if line.startswith(expected)]
        told.remove(found)
    assert told == []


def test_a_wrong_token_is_not_shown():
    assert complaints(environ={"TWOHOP_ADMIN": "{token: 98765}"}) == [
        "environment TWOHOP_ADMIN: admin.token: must be a valid string, not what is given"
    ]


def test_no_engine_at_all_is_told_with_the_fix():
    assert complaints(flags=Flags()) == [
        "configuration: discovery.static.endpoints: "
        "no engine is named: add --endpoint http://HOST:PORT, or list engines here"
    ]


def test_two_endpoints_of_one_name_are_refused():
    told = complaints(flags=Flags(endpoints=["http://h:1", "http://h:1", "http://h:2,name=h:1"]))
    assert told == [
        "--endpoint: discovery.static.endpoints: two endpoints are named 'h:1': give each a name of its own"
    ]


def test_an_open_admin_api_is_told_with_its_origin():
    assert complaints(environ={"TWOHOP_ADMIN__LISTEN": "0.0.0.0:1"}) == [
        "environment TWOHOP_ADMIN__LISTEN: admin.listen: "
        "'0.0.0.0:1' is open to other machines: set admin.token, or listen on 127.0.0.1"
    ]


@pytest.mark.parametrize("flag", ["http://h:1,rôle=x", "http://h:1,role", "http://h:1,url=x"])
def test_an_unknown_part_of_an_endpoint_flag_is_refused(flag):
    assert complaints(flags=Flags(endpoints=[flag])) == [
        f"--endpoint: {flag!r}: {flag.split(',')[1]!r} is neither role=R nor name=N"
    ]


def test_a_scorers_variable_over_a_section_that_is_none_is_refused(write):
    told = complaints(write("routing: fast"), {"TWOHOP_ROUTING__SCORERS__PREFIX_CACHE": "9"})
    assert "1: routing: must be a mapping of keys to values, not 'fast'" in told


def test_a_variable_below_a_list_is_refused(write):
    path = write('discovery: {static: {endpoints: [{url: "http://h:1"}]}}')
    (told,) = complaints(path, {"TWOHOP_DISCOVERY__STATIC__ENDPOINTS__0__URL": "x"}, Flags())
    assert told.endswith("stands below a value that is no mapping: give that one whole, as YAML")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: [1", "1: is no valid YAML: expected"),
        ("a: !!python/object:os.system x", "1: is no valid YAML: could not determine a constructor"),
        ("a: &x [*x]", "1: is no valid YAML: a value holds itself"),
        ("{[1]: 2}", "1: is no valid YAML: a key is no text"),
        ("a: 1\n--- \nb: 2", "is no valid YAML: but found another document"),
        ("a: \x01", "is no valid YAML: unacceptable character"),
        ("a: 2026-99-99", "is no valid YAML: month must be in 1..12"),
        ("- 1", "holds no mapping of keys to values"),
    ],
)
def test_a_file_that_is_no_yaml_mapping_is_told(write, text, why):
    path = write(text)
    assert any(why in line for line in complaints(path)), complaints(path)


def test_a_file_that_is_not_there_is_told(tmp_path):
    assert complaints(tmp_path / "no.yaml") == [" cannot be read: No such file or directory"]


def test_an_empty_file_and_anchors_are_fine(write):
    assert load(write(""), {}, ENGINE) == load(None, {}, ENGINE)
    config = load(write("timeouts: {idle_s: &t 7, connect_s: *t}"), {}, ENGINE)
    assert (config.timeouts.idle_s, config.timeouts.connect_s) == (7.0, 7.0)


def test_the_plugin_check_names_line_and_field(write):
    def check(config):
        assert config.routing.picker == "best"
        return [(("routing", "picker"), "'best' is unknown")]

    assert complaints(write("routing:\n  picker: best\n"), check_plugins=check) == [
        "2: routing.picker: 'best' is unknown"
    ]


def test_the_nearest_name_is_hinted_at():
    assert nearest("scorrers", ["scorers", "picker"]) == "did you mean 'scorers'?"
    assert nearest("zzz", ["b", "a"]) == "known here: a, b"


def test_the_process_environment_is_a_mapping_of_texts():
    assert "PATH" in process_environment()
