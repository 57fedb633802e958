"""Named timing and memory profiles of simulated engines.

A step of the engine takes `step_s + prefill_token_s * prefill tokens + decode_seq_s * decoding sequences +
context_token_s * tokens of their context`: reading the weights, arithmetic, per-sequence work, reading the KV cache.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Profile:
    """How fast an engine is and how much it holds; times in seconds, `bandwidth` in bytes per second.

    `kv_token_bytes` is the size of one token's KV, `handshake_s` and `transfer_s` what the first and every
    transfer from one engine cost beside its bytes.
    """

    step_s: float
    prefill_token_s: float
    decode_seq_s: float
    context_token_s: float
    kv_token_bytes: int
    bandwidth: float
    handshake_s: float
    transfer_s: float
    block_size: int
    num_blocks: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int


PROFILES = {
    # An 8-billion-parameter model in 16 bits on one H100: 16 GB of weights at 3.35 TB/s, about 28,000 prompt tokens
    # a second, 131,072 bytes of KV a token, 53 GB of KV cache, a 200 Gb/s network.
    "default": Profile(
        step_s=0.0062,
        prefill_token_s=35e-6,
        decode_seq_s=25e-6,
        context_token_s=4e-8,
        kv_token_bytes=131_072,
        bandwidth=20e9,
        handshake_s=0.25,
        transfer_s=0.002,
        block_size=16,
        num_blocks=25_000,
        max_model_len=131_072,
        max_num_seqs=256,
        max_num_batched_tokens=8192,
    ),
    # The same model on an L40S-like card with little memory to spare, on a 25 Gb/s network.
    "small": Profile(
        step_s=0.019,
        prefill_token_s=120e-6,
        decode_seq_s=40e-6,
        context_token_s=1.6e-7,
        kv_token_bytes=131_072,
        bandwidth=2.5e9,
        handshake_s=0.25,
        transfer_s=0.003,
        block_size=16,
        num_blocks=9_000,
        max_model_len=32_768,
        max_num_seqs=128,
        max_num_batched_tokens=2048,
    ),
    # For tests: the same shape, a millisecond a step.
    "fast": Profile(
        step_s=0.001,
        prefill_token_s=5e-7,
        decode_seq_s=1e-6,
        context_token_s=1e-10,
        kv_token_bytes=1_024,
        bandwidth=1e9,
        handshake_s=0.0,
        transfer_s=0.0005,
        block_size=16,
        num_blocks=8_192,
        max_model_len=65_536,
        max_num_seqs=256,
        max_num_batched_tokens=8192,
    ),
}
