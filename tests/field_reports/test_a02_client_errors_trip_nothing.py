"""A02: client errors trip no endpoint; real failures do, and it comes back.

The scenarios are those of `scripts/bench field-reports`, scaled down.
"""

import pytest

from benchmarks.field_reports.a02 import SCENARIOS
from benchmarks.field_reports.case import SMALL, Scenario


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_a02(scenario: Scenario):
    await scenario(SMALL)
