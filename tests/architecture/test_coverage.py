"""The modules that decide are covered whole; collected last, in a whole run under coverage, and only there."""

import io

import coverage


def test_every_line_and_branch_of_the_deciding_modules_is_run(measured: coverage.Coverage):
    report = io.StringIO()
    percent = measured.report(file=report)
    assert percent >= 100, f"lines or branches that no test runs:\n{report.getvalue()}"
