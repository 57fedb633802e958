"""A plugin is one file, its class bears the file's name, and nothing else in the repository need know it."""

import ast
import re
from pathlib import PurePath

from scorers.registry import FOLDERS, plugin_names
from tests.architecture.source import PLUGIN_FOLDERS, Module, modules


def plugins() -> list[Module]:
    files = [module for module in modules("scorers") if str(PurePath(module.path).parent) in PLUGIN_FOLDERS]
    return [module for module in files if not module.path.endswith("__init__.py")]


def test_each_file_of_a_plugin_folder_is_one_plugin_of_its_name():
    wrong = {}
    for plugin in plugins():
        public = [
            node.name
            for node in plugin.tree.body
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name[0] != "_"
        ]
        expected = PurePath(plugin.path).stem.title().replace("_", "")
        if public != [expected]:
            wrong[plugin.path] = public
    assert wrong == {}


def test_every_plugin_file_can_be_configured_by_its_name():
    files = {PurePath(plugin.path).stem for plugin in plugins()}
    assert files == {name for setting in FOLDERS for name in plugin_names(setting)}


def test_no_two_plugins_share_a_name():
    names = [PurePath(plugin.path).stem for plugin in plugins()]
    assert len(names) == len(set(names))


def test_a_plugin_folder_says_how_to_add_one():
    """In its own `__init__.py`, or in that of the package above it."""
    openings = {module.name: ast.get_docstring(module.tree) or "" for module in modules("scorers")}
    folders = [folder for setting in FOLDERS.values() for folder in setting]
    told = [folder for folder in folders if re.search("To add (one|a )", openings[folder] + openings["scorers"])]
    assert told == folders


def test_no_module_outside_names_a_plugin_module():
    names = {plugin.name for plugin in plugins()}
    importers = {
        f"{module.path} imports {node.module}"
        for module in modules("gateway", "scorers")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom) and node.module in names
    }
    assert importers == set()
