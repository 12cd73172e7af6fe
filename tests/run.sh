#!/bin/sh
# All checks: format, lints, tests, licences. Installs what they need. One command, the same for you and for CI.
set -eu
cd "$(dirname "$0")/.."
sh deploy/packages.sh clang libclang-dev ccache mosquitto mosquitto-clients openssl python3 python3-venv systemd curl

# Paho, the client library that most Python devices use.
venv=${PINNACE_TEST_VENV:-$PWD/target/test-venv}
if ! "$venv/bin/python" -c "import paho.mqtt" 2>/dev/null; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet "paho-mqtt==2.1.0"
fi
export PINNACE_TEST_PYTHON="$venv/bin/python"

# mqtt.js, the client library of Node.js, as tests/clients/package-lock.json pins it.
command -v node >/dev/null && command -v npm >/dev/null || sh deploy/packages.sh nodejs npm
node=$PWD/target/test-node
if ! cmp -s tests/clients/package-lock.json "$node/installed"; then
    mkdir -p "$node"
    cp tests/clients/package.json tests/clients/package-lock.json "$node/"
    (cd "$node" && npm ci --silent --no-audit --no-fund)
    cp tests/clients/package-lock.json "$node/installed"
fi
export PINNACE_TEST_NODE_MODULES="$node/node_modules"

cargo fmt --check
echo "Building. The first time this compiles RocksDB: up to 30 minutes on 2 cores."
cargo clippy --locked --all-targets -- -D warnings
cargo clippy --locked --no-default-features --lib --bins -- -D warnings
cargo test --locked

# The unit, with the program that was just built: verify wants one that exists.
sed "s|/usr/bin/pinnace|$PWD/target/debug/pinnace|" deploy/pinnace.service >target/pinnace.service
systemd-analyze verify "$PWD/target/pinnace.service"

command -v cargo-deny >/dev/null || cargo install --quiet --locked cargo-deny
cargo deny --locked check bans licenses sources
if cargo deny --locked fetch db 2>/dev/null; then
    cargo deny --locked check advisories
else
    echo "NOT CHECKED: the advisory database cannot be reached from here; run 'cargo deny check advisories' where it can" >&2
fi
