#!/usr/bin/env bash
# Make a virtual environment with both commands in it: scripts/setup.sh VENV EXTRA
#
# EXTRA is `cpu` or `cuda`. PYTHON=... picks the interpreter (3.11 or newer). FFmpeg's shared libraries come from apt
# where that can be done without a question; without them decoding goes on with PyAV, which carries its own.
set -euo pipefail
venv=$1 extra=${2:-cpu}

find_python() {
    for name in ${PYTHON:-python3 python3.13 python3.12 python3.11 python}; do
        if "$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$name"
            return
        fi
    done
    echo "setup: no Python 3.11 or newer with venv among: ${PYTHON:-python3 python3.13 python3.12 python3.11 python}." \
        "Install one (on Debian: apt install python3 python3-venv), or name it: make setup PYTHON=/path/to/python3" >&2
    return 1
}

install_ffmpeg() {
    command -v ffmpeg >/dev/null && return
    local as_root=()
    if [ "$(id -u)" != 0 ]; then as_root=(sudo -n); fi
    if command -v apt-get >/dev/null && "${as_root[@]}" true 2>/dev/null; then
        "${as_root[@]}" apt-get update -q -o APT::Update::Error-Mode=any &&
            "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends ffmpeg &&
            return
    fi
    echo "setup: FFmpeg is not installed and cannot be installed from here; going on with PyAV, which is slower." \
        "To get torchcodec's decoders: sudo apt install ffmpeg (or your system's package of FFmpeg 4 to 8)," \
        "then look at: vidpipe doctor" >&2
}

install_ffmpeg
python=$(find_python)
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)
if [ "$extra" = cpu ]; then
    # Named first and exactly, so that pip takes a CPU build where one is offered: 0.2 GB instead of 3.
    "${pip[@]}" "torch==${TORCH_VERSION:-2.13.0}"
fi
"${pip[@]}" --editable ".[$extra,captions,notebook,dev]"
"$venv/bin/vidpipe" --version
