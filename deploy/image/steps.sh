#!/bin/sh
# The steps by which Rowferry is put into a Debian, one by name: the Dockerfile runs them, and so does
# try.sh in a root without Docker. Run as root.
set -eu

prefix=/opt/rowferry
build=/opt/rowferry-build
user=10001

# What only building needs: nothing of it is in the image.
tools() {
    packages python3 python3-venv ca-certificates
    python3 -m venv "$build"
    "$build/bin/pip" install --quiet "$(sed -n 's/^UV_VERSION := /uv==/p' Makefile)"
}

# The wheel, built with the tools that requirements.lock names.
wheel() {
    "$build/bin/uv" build --quiet --wheel --build-constraints requirements.lock \
        --out-dir "$build/wheels" .
}

# The wheel and, of requirements.lock, what it needs with all extras; hashes are checked.
install() {
    "$build/bin/uv" pip compile --quiet --no-header --no-annotate --extra all \
        --constraints requirements.lock --output-file "$build/names.txt" pyproject.toml
    python3 deploy/image/locked.py requirements.lock "$build/names.txt" > "$build/runtime.lock"
    python3 -m venv --without-pip "$prefix"
    "$build/bin/uv" pip install --quiet --python "$prefix/bin/python" --compile-bytecode \
        --require-hashes --requirement "$build/runtime.lock"
    "$build/bin/uv" pip install --quiet --python "$prefix/bin/python" --compile-bytecode --no-deps \
        "$build"/wheels/rowferry-*.whl
    rm -f "$prefix/.lock"  # the installer's own, which everybody may write
}

# Machine code, in a folder that entrypoint.sh copies: Numba uses only what it may also write.
kernels() {
    NUMBA_CACHE_DIR="$prefix/kernels" NUMBA_CPU_NAME=generic NUMBA_CPU_FEATURES='' \
        "$prefix/bin/rowferry" warm
}

# What the image has beside /opt/rowferry, and whom it runs as.
runtime() {
    packages python3 openjdk-17-jre-headless tini ca-certificates
    groupadd --gid "$user" rowferry
    useradd --uid "$user" --gid "$user" --no-create-home --home-dir /var/lib/rowferry \
        --shell /usr/sbin/nologin rowferry
    mkdir -p /var/lib/rowferry
    chown "$user:$user" /var/lib/rowferry
    chmod 700 /var/lib/rowferry
}

# That it starts at all, and that nobody but root can change it.
look() {
    "$prefix/bin/rowferry" --version
    java -version 2>&1 | head -n 1
    found=$(find "$prefix" ! -type l -perm /022 -print -quit)
    test -z "$found" || { echo "others may write $found" >&2; exit 1; }
}

packages() {
    export DEBIAN_FRONTEND=noninteractive
    apt-get update --quiet --quiet
    apt-get install --quiet --quiet --yes --no-install-recommends "$@"
    rm -rf /var/lib/apt/lists/*
}

case "${1:-}" in
    tools | wheel | install | kernels | runtime | look) "$1" ;;
    *)
        echo "usage: steps.sh tools|wheel|install|kernels|runtime|look" >&2
        exit 2
        ;;
esac
