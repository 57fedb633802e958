"""Run vLLM's API server with a NIXL progress thread that sleeps between its rounds.

Run by the Python of vLLM's own environment, by path, with the standard library and that environment alone. NIXL's
Python API sets the pause of that thread to zero, so each engine keeps a core busy and starves the rest of a small
machine. vLLM starts its engine core with multiprocessing's `spawn`, which runs this file there again under the name
`__mp_main__`: therefore the pause is set when the file is loaded, and the API server runs in the first process alone.
"""

import runpy
import sys
from importlib import import_module
from typing import Any

PROGRESS_PAUSE_US = 500
API_SERVER = "vllm.entrypoints.openai.api_server"


def pause_progress_thread(pause_us: int = PROGRESS_PAUSE_US) -> None:
    """Make every NIXL agent of this process wait at least `pause_us` microseconds between two rounds of progress."""
    bindings: Any = import_module("nixl_cu12._bindings")
    plain: Any = bindings.nixlAgentConfig

    def write(config: object, delay_us: int) -> None:
        plain.pthrDelay.fset(config, max(delay_us, pause_us))

    delay = property(plain.pthrDelay.fget, write)
    bindings.nixlAgentConfig = type("PausingAgentConfig", (plain,), {"pthrDelay": delay})


pause_progress_thread()

if __name__ == "__main__":
    sys.argv[0] = API_SERVER
    runpy.run_module(API_SERVER, run_name="__main__")
