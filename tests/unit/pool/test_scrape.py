"""The scrape parser: figures, renamed families, ranks, and what it must refuse."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.pool.scrape import BadSample, Load, parse
from tests.fakes.exposition import exposition


def test_a_whole_exposition_gives_every_figure():
    assert parse(exposition(waiting=3, running=5, kv_usage=0.25, hits=640)) == Load(
        waiting=3,
        running=5,
        kv_usage=0.25,
        prefix_queries=4096,
        prefix_hits=640,
        block_tokens=16,
        num_blocks=8192,
        process_started_s=1.79e9,
    )


@given(st.integers(1, 8), st.integers(0, 500), st.integers(0, 500), st.floats(0, 1))
def test_ranks_sum_their_requests_and_average_their_kv_usage(ranks, waiting, running, kv_usage):
    load = parse(exposition(waiting, running, kv_usage, ranks))
    assert (load.waiting, load.running) == (waiting * ranks, running * ranks)
    assert load.kv_usage == pytest.approx(kv_usage)


def test_old_names_are_read_and_newer_ones_win():
    old = b"vllm:gpu_cache_usage_perc 0.5\nvllm:gpu_prefix_cache_hits_total 3\nvllm:gpu_prefix_cache_queries_total 4\n"
    assert parse(old) == Load(kv_usage=0.5, prefix_hits=3, prefix_queries=4)
    new = b"vllm:kv_cache_usage_perc 0.75\nvllm:prefix_cache_hits_total 30\n"
    for both in (old + new, new + old):
        assert parse(both) == Load(kv_usage=0.75, prefix_hits=30, prefix_queries=4)


@pytest.mark.parametrize(
    "tail", [" 7", " 7 1790000000000", "\t7.0\r", '{a="} 9"} 7', '{a="\\"} 9"} 7e0', "{} +7", "{}7", " 70.e-1"]
)
def test_a_value_may_be_written_in_many_ways(tail):
    assert parse(f"vllm:num_requests_running{tail}\n".encode()).running == 7


def test_blocks_may_not_be_known_yet():
    text = b'vllm:num_requests_running 1\nvllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1\n'
    assert parse(text) == Load(running=1, block_tokens=16)
    assert parse(text.replace(b'"16"', b'"0"')).block_tokens is None
    assert parse(text.replace(b'"16"', b'"%b"' % (b"9" * 5000))).block_tokens is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "empty"),
        (b"<html>502 Bad Gateway</html>\n", "no figure"),
        (b"process_start_time_seconds 1\n", "no figure"),
        (b"\x00\xff\xfe\n", "no figure"),
        (exposition()[:-1], "middle of a line"),
        (exposition(waiting=float("nan")), "num_requests_waiting is nan"),
        (exposition(running=-1), "num_requests_running is -1"),
        (exposition(kv_usage=float("inf")), "kv_cache_usage_perc is inf"),
        (exposition(kv_usage=1.5), "KV usage is 1.5"),
        (b"vllm:num_requests_running\n", "no figure"),
        (b"vllm:num_requests_running \n", "no readable value"),
        (b"vllm:num_requests_running one\n", "no readable value"),
        (b"vllm:num_requests_running 1_0\n", "no readable value"),
        (b"vllm:num_requests_running 1 2 3\n", "no readable value"),
        (b"vllm:num_requests_running{ 1\nvllm:num_requests_waiting 1\n", "no readable value"),
        (b"vllm:num_requests_running +Inf\n", "is inf"),
        (b"vllm:num_requests_running %b\n" % (b"1" * (1 << 20)), "is inf"),
        (b"vllm:num_requests_running %bx\n" % (b"1" * (1 << 20)), "no readable value"),
        (b"vllm:num_requests_running 1.%bx\n" % (b"1" * (1 << 20)), "no readable value"),
        (b"vllm:num_requests_running 1%bx\n" % (b" " * (1 << 20)), "no readable value"),
    ],
)
def test_what_cannot_be_believed_is_refused_whole(text, why):
    with pytest.raises(BadSample, match=why):
        parse(text)


@given(st.integers(0, len(exposition())), st.binary(max_size=30))
def test_any_damage_is_read_or_refused_and_never_gives_a_wrong_kind_of_figure(cut, noise):
    whole = exposition()
    try:
        load = parse(whole[:cut] + noise)
    except BadSample:
        return
    for figure in (load.waiting, load.running, load.kv_usage):
        assert figure is None or 0 <= figure < float("inf")


def test_a_restart_shows_in_the_start_time_or_else_in_counters_that_fall():
    assert Load(process_started_s=2, prefix_hits=9).restarted_since(Load(process_started_s=1, prefix_hits=3))
    assert not Load(process_started_s=1, prefix_hits=1).restarted_since(Load(process_started_s=1, prefix_hits=3))
    assert Load(prefix_hits=1).restarted_since(Load(prefix_hits=3))
    assert Load(prefix_queries=1).restarted_since(Load(prefix_queries=3))
    assert not Load(prefix_queries=3).restarted_since(Load(prefix_queries=3))
    assert not Load().restarted_since(Load(prefix_queries=3, process_started_s=1))


def test_a_line_too_long_to_be_searched_is_refused():
    line = b'vllm:cache_config_info{a="' + b'\\"' * 40_000 + b'"} 1\n'
    with pytest.raises(BadSample, match="cache_config_info is over 65536 bytes"):
        parse(b"vllm:num_requests_waiting 0\n" + line)


def info(running: str, waiting: str, value: float, slots: str = "4") -> bytes:
    labels = f'max_lora="{slots}",running_lora_adapters="{running}",waiting_lora_adapters="{waiting}"'
    return f"vllm:lora_requests_info{{{labels}}} {value}\n".encode()


def test_of_all_sets_of_adapters_that_ever_were_the_newest_counts():
    base = b"vllm:num_requests_running 1\n"
    old, new = info("a,b", "c", 1.7e9), info("b", "d,b", 1.8e9)
    for text in (base + old + new, new + base + old):
        assert (parse(text).adapters, parse(text).adapter_slots) == (("b", "d"), 4)
    assert parse(base + old + info("", "", 1.9e9)).adapters == ()
    assert parse(base + info("x", "", 1.0) + info("y", "", 1.0)).adapters == ("y",)
    assert parse(base).adapters is None
    assert parse(base + info("a", "", 1.0, slots="many")).adapter_slots is None
    assert parse(base + b"vllm:lora_requests_info 1\n").adapters == ()


def test_adapter_names_are_read_as_they_were_written():
    names = 'org/a\\\\b, q\\"\u00e9'
    assert parse(b"vllm:num_requests_running 1\n" + info(names, "", 1.0)).adapters == ("org/a\\b", 'q"\u00e9')
    assert parse(b"vllm:num_requests_running 1\n" + info("a\\nb", "", 1.0)).adapters == ("a\nb",)


@pytest.mark.parametrize("line", [info("a" * 70_000, "", 1.0), info("a", "", float("nan")), info("a", "", -1.0)])
def test_adapters_that_cannot_be_believed_spoil_the_sample(line):
    with pytest.raises(BadSample):
        parse(b"vllm:num_requests_running 1\n" + line)
