"""What the code defines is named in the project's own words."""

import ast
import re
from collections.abc import Iterator

from tests.architecture.source import Module, modules

BANNED = {"worker", "backend", "instance", "manager", "helper", "util", "utils", "base", "common"}
ALLOWED = {
    "workers": "uvicorn's word, and that of `twohop serve --workers`",
    "base_url": "httpx's and openai's own name for it",
    "_base_models": "LoRA's own term: what an adapter is laid on",
}


def defined_names(module: Module) -> Iterator[str]:
    """Yield what the module itself names: its path, classes, functions, arguments, variables, attributes set."""
    yield from module.name.split(".")
    for node in ast.walk(module.tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.arg(arg=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.alias(asname=str(name)):
                yield name


def words(name: str) -> set[str]:
    """Split snake_case and CamelCase into lower-case words, plural s dropped."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return {word for part in parts for word in (part.lower(), part.lower().removesuffix("s"))}


def test_no_banned_word_names_anything():
    found = {
        f"{module.path}: {name}"
        for module in modules()
        for name in defined_names(module)
        if name not in ALLOWED and words(name) & BANNED
    }
    assert found == set()


def test_no_banned_word_names_a_test_file():
    found = {
        module.path
        for module in modules("tests")
        for part in module.name.split(".")
        if part.removeprefix("test_") not in ALLOWED and words(part) & BANNED
    }
    assert found == set()


def test_names_are_split_into_words():
    assert words("HTTPWorkerPool") >= {"http", "worker", "pool"}
    assert "helper" in words("make_helpers")
    assert not words("basename_of_instances_seen") & {"base"}
