# Shared by the scripts of this folder: `ensure_venv EXTRAS` makes .venv with the project and those extras in it.
ensure_venv() {
    stamp=".venv/.stamp-$1-$(cksum pyproject.toml | cut -d' ' -f1)"
    [ -e "$stamp" ] && return 0
    [ -x .venv/bin/python ] || "${PYTHON:-python3}" -m venv .venv || return 1
    .venv/bin/python -m pip install --quiet -e ".[$1]" && touch "$stamp"
}
