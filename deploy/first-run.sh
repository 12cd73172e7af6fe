#!/bin/sh
# From a fresh Debian 12 with Rust to a running broker: installs what the build needs, builds, and serves on 127.0.0.1:1883.
# Arguments go to `pinnace serve`.
set -eu
cd "$(dirname "$0")/.."
sh deploy/packages.sh clang libclang-dev ccache
if [ ! -x target/release/pinnace ]; then
    echo "Building. The first time this compiles RocksDB: up to 30 minutes on 2 cores; later builds take seconds to minutes."
fi
cargo build --release --locked
exec target/release/pinnace serve "$@"
