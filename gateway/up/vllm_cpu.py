"""Start real vLLM engines with NIXL on this machine's CPU, serving the tiny model."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from gateway.up import vllm_install
from gateway.up.ports import free_port
from gateway.up.processes import Children, Program
from gateway.up.running import RunningEngine, answers

MODEL = "tiny"
BLOCK_SIZE = 32  # NIXL on the CPU takes multiples of 32 only
START_S = 600.0  # half a minute on an idle machine, minutes beside other load
MODEL_S = 120.0
KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer", "both": "kv_both"}
LAUNCH = Path(__file__).with_name("vllm_launch.py")
TINY_MODEL = Path(__file__).with_name("tiny_model.py")
ENVIRONMENT = {
    "PYTHONPATH": "",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "UCX_TLS": "tcp",
    "UCX_NET_DEVICES": "lo",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
}


def prepare(children: Children) -> tuple[Path, Path]:
    """Install vLLM and make the tiny model where they are absent; return the Python and the model's folder."""
    python = vllm_install.install(children)
    folder = vllm_install.project_folder() / ".twohop" / "tiny-llama"
    if not folder.exists():
        children.say("making a tiny model")
        child = children.start(
            "tiny-model", Program(str(TINY_MODEL), [str(folder)], ENVIRONMENT, str(python)), quiet=True
        )
        children.wait_done(child, MODEL_S)
    return python, folder


def start_engines(children: Children, engines: Sequence[tuple[str, str]]) -> list[RunningEngine]:
    """Start one engine per (name, role), wait until all are healthy, and return them; raises as `Children.wait_ready`.

    Each takes about 2.7 GB of memory.
    """
    python, folder = prepare(children)
    started = [_start(children, name, role, python, folder) for name, role in engines]
    for engine in started:
        children.wait_ready(engine.child, partial(answers, f"{engine.url}/health"), START_S)
    return started


def _start(children: Children, name: str, role: str, python: Path, folder: Path) -> RunningEngine:
    port = free_port()
    transfer = {
        "kv_connector": "NixlConnector",
        "kv_role": KV_ROLES[role],
        "kv_buffer_device": "cpu",
        "kv_connector_extra_config": {"num_threads": 0},
    }
    arguments = {
        "--model": str(folder),
        "--served-model-name": MODEL,
        "--host": "127.0.0.1",
        "--port": str(port),
        "--dtype": "float32",
        "--max-model-len": "4096",
        "--block-size": str(BLOCK_SIZE),
        "--kv-transfer-config": json.dumps(transfer),
    }
    flags = ["--enforce-eager", "--enable-prompt-tokens-details", "--disable-uvicorn-access-log"]
    words = [*(word for pair in arguments.items() for word in pair), *flags]
    environment = {**ENVIRONMENT, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port())}
    child = children.start(name, Program(str(LAUNCH), words, environment, str(python)))
    return RunningEngine(name, role, f"http://127.0.0.1:{port}", MODEL, child, BLOCK_SIZE)
