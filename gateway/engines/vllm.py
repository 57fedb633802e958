"""vLLM's metric names, newest first where a family was renamed; `gateway/pool/scrape.py` reads them."""

from typing import Literal, NamedTuple

Figure = Literal["waiting", "running", "kv_usage", "prefix_queries", "prefix_hits", "process_started_s"]
How = Literal["sum", "mean", "max"]


class Family(NamedTuple):
    """The figure a metric family tells, how its series (one per data-parallel rank and model) join, and its rank.

    Of several names for one figure the lowest `age` present counts alone, for engines in transition emit both.
    """

    figure: Figure
    how: How
    age: int = 0


FAMILIES: dict[str, Family] = {
    "vllm:num_requests_waiting": Family("waiting", "sum"),
    "vllm:num_requests_running": Family("running", "sum"),
    "vllm:kv_cache_usage_perc": Family("kv_usage", "mean"),
    "vllm:gpu_cache_usage_perc": Family("kv_usage", "mean", age=1),
    "vllm:prefix_cache_queries_total": Family("prefix_queries", "sum"),
    "vllm:prefix_cache_queries": Family("prefix_queries", "sum", age=1),
    "vllm:gpu_prefix_cache_queries_total": Family("prefix_queries", "sum", age=2),
    "vllm:gpu_prefix_cache_queries": Family("prefix_queries", "sum", age=3),
    "vllm:prefix_cache_hits_total": Family("prefix_hits", "sum"),
    "vllm:prefix_cache_hits": Family("prefix_hits", "sum", age=1),
    "vllm:gpu_prefix_cache_hits_total": Family("prefix_hits", "sum", age=2),
    "vllm:gpu_prefix_cache_hits": Family("prefix_hits", "sum", age=3),
    "process_start_time_seconds": Family("process_started_s", "max"),
}

NAMESPACE = "vllm:"
CACHE_CONFIG = "vllm:cache_config_info"
BLOCK_SIZE_LABEL = "block_size"
NUM_BLOCKS_LABEL = "num_gpu_blocks"
# One series for each set of adapters that ever was, and none goes away; the value is when it was so. Told for engines
# of one data-parallel rank alone.
ADAPTERS = "vllm:lora_requests_info"
ADAPTER_LABELS = ("running_lora_adapters", "waiting_lora_adapters")
ADAPTER_SLOTS_LABEL = "max_lora"
