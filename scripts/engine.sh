#!/usr/bin/env bash
# For scripts that need a container engine: `source` it, then engine=$(find_engine) || exit 3.

# Prints the first of ENGINE (or docker, podman) that answers.
find_engine() {
    local candidate
    for candidate in ${ENGINE:-docker podman}; do
        if command -v "$candidate" >/dev/null && timeout 20 "$candidate" info >/dev/null 2>&1; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    say "no container engine responds (tried: ${ENGINE:-docker podman})."
    say "Start Docker or Podman, or name another one with ENGINE=...; on Debian, scripts/setup-packages.sh containers installs Podman."
    return 1
}
