"""The chat template of simulated models: messages and tools to one prompt text.

Every message ends with a marker, so the text of a conversation begins with the text of any shorter part of it.
"""

from collections.abc import Mapping
from typing import Any

import msgspec


def chat_text(messages: list[Any], tools: Any, *, generation_prompt: bool, continues: bool = False) -> str:
    """Return the prompt text for `messages`, each an object with `role` and `content` (text, parts or null).

    `continues`: the last message is not over.
    """
    parts = []
    if tools:
        parts.append(f"<|tools|>\n{msgspec.json.encode(tools).decode()}<|end|>\n")
    for message in messages:
        if not isinstance(message, Mapping):
            continue
        calls = message.get("tool_calls")
        called = msgspec.json.encode(calls).decode() if calls else ""
        parts.append(f"<|{message.get('role')}|>\n{_content(message.get('content'))}{called}<|end|>\n")
    if continues and len(parts) > bool(tools):
        parts[-1] = parts[-1].removesuffix("<|end|>\n")
    if generation_prompt:
        parts.append("<|assistant|>\n")
    return "".join(parts)


def _content(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = []
    for part in content:
        if isinstance(part, Mapping) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            texts.append(f"<|part:{msgspec.json.encode(part).decode()[:200]}|>")
    return "\n".join(texts)
