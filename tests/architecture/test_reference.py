"""The configuration models document every key."""

from tests.architecture.configuration_page import section_of, sections


def test_every_key_says_what_it_means():
    assert [
        f"{title} {name}"
        for title, section, _ in sections()
        for name, field in section.model_fields.items()
        if not field.description and section_of(field) is None
    ] == []
