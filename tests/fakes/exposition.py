"""Text as vLLM's `/metrics` gives it: gauges, counters, histograms and info families, a given number of ranks."""

BUCKETS = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0]
HISTOGRAMS = (
    "time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds",
    "request_queue_time_seconds", "request_inference_time_seconds", "request_prefill_time_seconds",
    "request_decode_time_seconds", "request_prompt_tokens", "request_generation_tokens", "iteration_tokens_total",
    "request_params_n", "request_params_max_tokens", "request_max_num_generation_tokens",
    "request_time_per_output_token_seconds", "nixl_xfer_time_seconds", "nixl_bytes_transferred",
)  # fmt: skip


def exposition(
    waiting: float = 3,
    running: float = 5,
    kv_usage: float = 0.25,
    ranks: int = 1,
    started_s: float = 1.79e9,
    hits: float = 640,
) -> bytes:
    """Return a whole exposition; each of `ranks` data-parallel ranks tells the given figures for itself."""
    lines = ["# HELP process_start_time_seconds Start time of the process since unix epoch in seconds."]
    lines += ["# TYPE process_start_time_seconds gauge", f"process_start_time_seconds {started_s}"]
    for rank in range(ranks):
        labels = f'engine="{rank}",model_name="org/tiny, {{quoted}} \\"name\\""'
        lines += [
            "# TYPE vllm:num_requests_running gauge",
            f"vllm:num_requests_running{{{labels}}} {float(running)}",
            f"vllm:num_requests_waiting{{{labels}}} {float(waiting)}",
            f'vllm:num_requests_waiting_by_reason{{{labels},reason="capacity"}} 99.0',
            f"vllm:kv_cache_usage_perc{{{labels}}} {kv_usage}",
            f"vllm:prefix_cache_queries_total{{{labels}}} 4096.0",
            f"vllm:prefix_cache_queries_created{{{labels}}} 1.79e+09",
            f"vllm:prefix_cache_hits_total{{{labels}}} {hits}",
            f'vllm:cache_config_info{{block_size="16",cache_dtype="auto",engine="{rank}",num_gpu_blocks="8192"}} 1.0',
        ]
        for name in HISTOGRAMS:
            lines += [f"# HELP vllm:{name} Histogram of {name} as the engine sees it.", f"# TYPE vllm:{name} histogram"]
            lines += [f'vllm:{name}_bucket{{{labels},le="{edge}"}} 17.0' for edge in (*BUCKETS, "+Inf")]
            lines += [f"vllm:{name}_count{{{labels}}} 17.0", f"vllm:{name}_sum{{{labels}}} 3.25"]
    return ("\n".join(lines) + "\n").encode()
