#!/usr/bin/env bash
# Debian's packages: `stores` are PostgreSQL and Redis, for the sandbox; `browser` is chromium, which looks at our pages;
# `metrics` is Prometheus, which reads our metrics, rules and queries; `models` is spin with a C compiler, for models/.
# Usage: scripts/setup-packages.sh stores [browser] [metrics] [models]. Does nothing, quickly, when all is there already.
# It takes root and apt-get; elsewhere it says what to install. Services that the packages bring are not used.
set -euo pipefail

say() { printf 'setup-packages: %s\n' "$*" >&2; }

missing=()
for wanted in "$@"; do
    case $wanted in
        stores)
            compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || command -v initdb >/dev/null || missing+=(postgresql)
            command -v redis-server >/dev/null || missing+=(redis-server)
            ;;
        browser)
            command -v chromium >/dev/null || command -v google-chrome >/dev/null || missing+=(chromium)
            ;;
        metrics)
            { command -v prometheus && command -v promtool; } >/dev/null || missing+=(prometheus)
            ;;
        models)
            command -v spin >/dev/null || missing+=(spin)
            command -v gcc >/dev/null || missing+=(gcc libc6-dev)
            ;;
        *) say "$wanted is neither 'stores' nor 'browser' nor 'metrics' nor 'models'"; exit 64 ;;
    esac
done
[[ ${#missing[@]} -gt 0 ]] || exit 0

by_hand="install ${missing[*]} with your system's packages, so that initdb, postgres, redis-server, chromium, prometheus, promtool, spin, gcc are on PATH"
command -v apt-get >/dev/null || { say "there is no apt-get here; $by_hand"; exit 3; }
as_root=()
if [[ $EUID -ne 0 ]]; then
    { command -v sudo >/dev/null && sudo -n true 2>/dev/null; } || { say "apt-get needs root; $by_hand"; exit 3; }
    as_root=(sudo -n)
fi
say "installing ${missing[*]}"
log=$(mktemp)
policy=/usr/sbin/policy-rc.d made_policy=
trap 'rm -f "$log"; [[ -z $made_policy ]] || "${as_root[@]}" rm -f "$policy"' EXIT
# Debian's way to say that an installation starts no service.
if [[ ! -e $policy ]]; then
    made_policy=yes
    printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
    "${as_root[@]}" chmod 755 "$policy"
fi
install() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install --yes --quiet --no-install-recommends "${missing[@]}" >"$log" 2>&1
}
if ! install; then
    # Package lists of an image are often gone or old; fetch them and try once more.
    "${as_root[@]}" apt-get update --quiet >>"$log" 2>&1 || true
    install || { tail -n 15 "$log" >&2; say "apt-get failed; $by_hand"; exit 3; }
fi
say "ready (${SECONDS} s)"
