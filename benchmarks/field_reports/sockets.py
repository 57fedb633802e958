"""Which process has the other end of a connection, from /proc (Linux)."""

from pathlib import Path

from benchmarks.field_reports.client import Connection


def server_process(connection: Connection, parent: int) -> int | None:
    """Return the process, `parent` or below it, that holds the server's end of `connection`, or None."""
    near = connection.writer.get_extra_info("sockname")
    far = connection.writer.get_extra_info("peername")
    wanted = (_as_in_proc(far), _as_in_proc(near))  # local and remote as the server sees them
    inode = next((found for *ends, found in _table() if tuple(ends) == wanted), None)
    if inode is None:
        return None
    for pid in _family(parent):
        try:
            held = {str(one.readlink()) for one in Path(f"/proc/{pid}/fd").iterdir()}
        except (FileNotFoundError, ProcessLookupError):
            continue
        if f"socket:[{inode}]" in held:
            return pid
    return None


def _family(parent: int) -> list[int]:
    """Return the ids of `parent` and of every process below it: workers are in process groups of their own."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        try:
            stat = (entry / "stat").read_text() if entry.name.isdigit() else ""
        except (FileNotFoundError, ProcessLookupError):  # it ended while we looked
            continue
        if stat:
            children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    family = [parent]
    for pid in family:
        family += children.get(pid, [])
    return family


def _table() -> list[tuple[str, str, str]]:
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [(row[1], row[2], row[9]) for row in rows]


def _as_in_proc(end: tuple[str, int]) -> str:
    host, port = end[:2]
    return "".join(f"{int(part):02X}" for part in reversed(host.split("."))) + f":{port:04X}"
