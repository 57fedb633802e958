# What scripts/run and scripts/test share: the project's virtual environment. Source it from the project's folder.

say() {
    printf '%s\n' "$*" >&2
}

# Print the first Python of at least 3.11 on the PATH.
find_python() {
    for candidate in python3 python3.14 python3.13 python3.12 python3.11 python; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return 0
        fi
    done
    say "Python 3.11 or newer is needed and none is on the PATH (python3 is: $(python3 --version 2>&1))."
    say "Install it (Debian, Ubuntu: apt install python3 python3-venv; macOS: brew install python) and try again."
    return 1
}

# Make .venv afresh with the Python found.
make_venv() {
    python=$(find_python) || return 1
    say "making .venv with $("$python" --version)"
    if ! "$python" -m venv --clear .venv; then
        rm -rf .venv # half of one would look like a whole one
        say "$python cannot make a virtual environment; its module ensurepip is probably missing."
        say "Debian, Ubuntu: apt install python3-venv; elsewhere install a complete Python, then try again."
        return 1
    fi
    pwd -P >.venv/made-for
}

# ensure_venv EXTRAS: have .venv hold the project, editable, with these extras (comma-separated, may be empty).
# Done again where pyproject.toml changed; made afresh where the folder was moved, since its scripts hold their path.
ensure_venv() {
    wanted="$(pwd -P) $(cksum <pyproject.toml)"
    stamp=".venv/installed${1:+-$1}"
    if [ ! -x .venv/bin/python ] || { [ -f .venv/made-for ] && [ "$(cat .venv/made-for)" != "$(pwd -P)" ]; }; then
        make_venv || return 1
    elif [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
        return 0
    fi
    say "installing twohop${1:+ with $1} into .venv"
    .venv/bin/python -m pip install --quiet --quiet --disable-pip-version-check --editable ".${1:+[$1]}" || {
        say "pip could not install the project; its message is above."
        return 1
    }
    printf '%s\n' "$wanted" >"$stamp"
}
