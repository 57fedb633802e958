"""The configuration page is what the models say, and the models document every key."""

from pathlib import Path

from tests.architecture.configuration_page import configuration_page, section_of, sections

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"


def test_the_configuration_page_is_as_the_models_make_it():
    assert PAGE.read_text(encoding="utf-8") == configuration_page(), "run scripts/gen_reference.py"


def test_every_key_says_what_it_means():
    assert [
        f"{title} {name}"
        for title, section, _ in sections()
        for name, field in section.model_fields.items()
        if not field.description and section_of(field) is None
    ] == []
