#!/usr/bin/env python3
"""Write docs/reference/configuration.md from the models in gateway/config.py."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.architecture.configuration_page import configuration_page  # noqa: E402 - found through the line above

page = ROOT / "docs" / "reference" / "configuration.md"
page.parent.mkdir(parents=True, exist_ok=True)
page.write_text(configuration_page(), encoding="utf-8")
