"""Answers a request forces: tool calls and JSON that fits a schema, made by rule from the schema and a seed.

With `tool_choice: auto` (the default where tools are given) a tool is called unless the last message is a tool's
result; so an agent's loop ends after one round.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.simulator.refusal import malformed
from gateway.simulator.tokens import WORDS, seed_of


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call: the function's name, its arguments as JSON text, and an id."""

    name: str
    arguments: str
    id: str
    named: bool


def forced_answer(body: Mapping[str, Any], seed: int) -> tuple[str | None, Call | None]:
    """Return the text the model must say (None: free) and the tool call it stands for (None: no call)."""
    call = _tool_call(body, seed)
    if call is not None:
        return call.arguments, call
    wanted = body.get("response_format")
    if not isinstance(wanted, Mapping) or wanted.get("type") in (None, "text"):
        return None, None
    schema: Any = {"type": "object", "properties": {"answer": {"type": "string"}}}
    if isinstance(wanted.get("json_schema"), Mapping):
        schema = wanted["json_schema"].get("schema", schema)
    return _json(sample(schema, seed)), None


def sample(schema: Any, seed: int) -> Any:
    """Return a value that fits the JSON schema (types, enum, const, properties, items), the same for the same seed."""
    if not isinstance(schema, Mapping):
        return None
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][seed % len(schema["enum"])]
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = kind[0] if kind else None
    if kind == "object" or "properties" in schema:
        properties = schema.get("properties") or {}
        return {name: sample(part, seed_of(seed, name)) for name, part in properties.items()}
    if kind == "array":
        return [sample(schema.get("items", {"type": "string"}), seed_of(seed, 0))]
    low = schema.get("minimum", 0)
    plain = {"integer": low + seed % 90, "number": low + seed % 90 + 0.5, "boolean": seed % 2 == 0, "null": None}
    return plain.get(str(kind), WORDS[seed % len(WORDS)].strip())


def _tool_call(body: Mapping[str, Any], seed: int) -> Call | None:
    tools, choice = body.get("tools"), body.get("tool_choice")
    _check(tools, choice)
    if not tools or choice == "none":
        return None
    last = body["messages"][-1] if body["messages"] else None
    if choice in (None, "auto") and isinstance(last, Mapping) and last.get("role") == "tool":
        return None
    functions = {tool["function"]["name"]: tool["function"] for tool in tools}
    named = isinstance(choice, Mapping)
    name = choice["function"]["name"] if isinstance(choice, Mapping) else sorted(functions)[seed % len(functions)]
    arguments = _json(sample(functions[name].get("parameters") or {"type": "object"}, seed))
    return Call(name, arguments, f"chatcmpl-tool-{seed:016x}", named)


def _check(tools: Any, choice: Any) -> None:
    if tools is not None and (not isinstance(tools, list) or not tools):
        raise malformed("tools: a list of at least one tool is required", "tools")
    for tool in tools or ():
        if (
            not isinstance(tool, Mapping)
            or not isinstance(tool.get("function"), Mapping)
            or "name" not in tool["function"]
        ):
            raise malformed("tools: each needs a function with a name", "tools")
    if choice is None or choice == "none":
        return
    if not tools:
        raise malformed("tool_choice needs tools", "tool_choice")
    if isinstance(choice, Mapping):
        function = choice.get("function")
        names = [tool["function"]["name"] for tool in tools]
        if not isinstance(function, Mapping) or function.get("name") not in names:
            raise malformed("tool_choice names a function that tools does not hold", "tool_choice")
    elif choice not in ("auto", "required"):
        raise malformed(
            f"tool_choice: none, auto, required or a named function is required, got {choice}", "tool_choice"
        )


def _json(value: Any) -> str:
    return json.dumps(value)
