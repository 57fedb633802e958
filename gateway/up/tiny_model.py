"""Make a tiny Llama with random weights and a byte-level BPE tokenizer, without a download.

`python -P tiny_model.py FOLDER`, run by the Python of vLLM's own environment, by path. The same Python and libraries
give the same model: weights from a fixed seed, the tokenizer trained on files of the standard library in a fixed order.
Nothing is done where the folder exists; it appears under its name only when complete, so that two may make it at once.
"""

import sys
import sysconfig
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

SEED = 0
VOCABULARY = 4096
CORPUS_FILES = 150
BEGIN, END, TURN = "<|begin|>", "<|end|>", "<|turn|>"
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|turn|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)


def save_tokenizer(folder: Path) -> None:
    """Train the tokenizer and save it with its chat template."""
    tokenizers: Any = import_module("tokenizers")
    transformers: Any = import_module("transformers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[BEGIN, END, TURN],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:CORPUS_FILES]
    tokenizer.train([str(path) for path in sources], trainer)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BEGIN, eos_token=END, additional_special_tokens=[TURN]
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)


def save_weights(folder: Path) -> None:
    """Draw the weights from the fixed seed and save them.

    They are larger than usual and 32 bits wide, so that the best next token leads by far more than rounding can move:
    greedy answers do not depend on how a prompt was split into steps.
    """
    torch: Any = import_module("torch")
    transformers: Any = import_module("transformers")
    torch.manual_seed(SEED)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        initializer_range=0.2,
        bos_token_id=0,
        eos_token_id=1,
        dtype="float32",
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def main() -> None:
    """Make the model in a folder beside the one named, then give it the name."""
    folder = Path(sys.argv[1])
    if folder.exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=folder.name + ".", dir=folder.parent) as unfinished:
        made = Path(unfinished) / "model"
        save_tokenizer(made)
        save_weights(made)
        try:
            made.rename(folder)
        except OSError:
            if not folder.exists():
                raise


if __name__ == "__main__":
    main()
