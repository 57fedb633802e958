"""Code that decides runs in one breath: nothing in it waits. What it may import, pyproject.toml's contracts say."""

import ast

from tests.architecture.source import DECIDING, PLUGIN_FOLDERS, modules

WAITING = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)


def test_every_folder_and_file_that_is_held_to_these_rules_is_there():
    paths = [module.path for module in modules()]
    held = [*DECIDING, *PLUGIN_FOLDERS]
    assert [prefix for prefix in held if not any(path.startswith(prefix) for path in paths)] == []


def test_nothing_that_decides_waits():
    found = {
        f"{module.path}:{node.lineno}"
        for module in modules("scorers", "gateway")
        if module.path.startswith(DECIDING)
        for node in ast.walk(module.tree)
        if isinstance(node, WAITING)
    }
    assert found == set()


def test_nothing_that_decides_prints_or_opens_a_file():
    found = {
        f"{module.path}:{node.lineno} {node.func.id}"
        for module in modules("scorers", "gateway")
        if module.path.startswith(DECIDING)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"open", "print", "input"}
    }
    assert found == set()
