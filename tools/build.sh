#!/usr/bin/env bash
# Installs what pp needs on Debian 12 and builds it into build/.
set -euo pipefail
cd "$(dirname "$0")/.."
packages=(cmake g++ git ninja-build python3 llvm-19-dev libmlir-19-dev mlir-19-tools lld-19 libopenmpi-dev openmpi-bin
          libdnnl-dev libopenblas-pthread-dev libgtest-dev libbenchmark-dev nlohmann-json3-dev)
missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  as_root=$([ "$(id -u)" = 0 ] || echo sudo)
  $as_root apt-get update -qq
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
fi
cmake --preset release
cmake --build --preset release
