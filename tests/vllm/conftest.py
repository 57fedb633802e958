"""Real engines for the tests of this folder."""

from tests.vllm.engines import vllm_log, vllm_pair

__all__ = ["vllm_log", "vllm_pair"]
