"""No module is too long to read in one sitting, no function to see at once."""

from tests.architecture.source import modules

MODULE_LINES = 400
FUNCTION_LINES = 50


def test_no_module_is_over_400_lines():
    lines = {
        module.path: len(module.text.splitlines()) for module in modules("gateway", "scorers", "benchmarks", "tests")
    }
    assert {path: count for path, count in lines.items() if count > MODULE_LINES} == {}


def test_no_function_is_over_50_lines():
    lines = {
        f"{module.path}:{function.name}": (function.end_lineno or 0) - function.lineno + 1
        for module in modules("gateway", "scorers", "benchmarks", "tests")
        for function in module.functions()
    }
    assert {name: count for name, count in lines.items() if count > FUNCTION_LINES} == {}
