"""How a worker process begins: the first frame of its link, read before there is an event loop."""

import socket
import threading

from gateway.config import Config
from gateway.state.frames import encode
from gateway.workers.process import Start, read_start
from gateway.workers.supervisor import in_words

FULL = {
    "listen": "127.0.0.1:0",
    "admin": {"token": "secret", "listen": "0.0.0.0:1"},
    "workers": 4,
    "discovery": {"static": {"endpoints": [{"url": "http://h:1", "role": "prefill", "labels": {"zone": "z"}}]}},
    "routing": {"scorers": {"queue_depth": {"weight": 2.0, "full_at": 16}, "kv_usage": 1}},
}


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


def test_the_configuration_arrives_as_it_was_read():
    config = Config.model_validate(FULL)
    start = Start(3, config.model_dump_json().encode(), {"config": None, "endpoint": ["http://h:1"]})
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sending = threading.Thread(target=ours.sendall, args=(framed(encode(start)),))
        sending.start()
        read = read_start(theirs)
        sending.join()
    assert read == start
    assert Config.model_validate_json(start.config) == config


def test_a_supervisor_that_has_gone_is_no_error():
    for sent in (b"", b"\0", framed(b"abc")[:-1]):
        ours, theirs = socket.socketpair()
        with theirs:
            with ours:
                ours.sendall(sent)
            assert read_start(theirs) is None


def test_an_exit_status_is_told_in_words():
    assert (in_words(-9), in_words(2)) == ("SIGKILL", "exit status 2")
