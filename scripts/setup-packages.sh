#!/usr/bin/env bash
# Debian's packages: `stores` are PostgreSQL and Redis, for the sandbox; `browser` is chromium, which looks at our pages;
# `metrics` is Prometheus, which reads our metrics, rules and queries; `models` is spin with a C compiler, for models/;
# `containers` is Podman with what make test-containers needs, nothing where Docker answers.
# Usage: scripts/setup-packages.sh stores [browser] [metrics] [models] [containers]. Does nothing, quickly, when all is
# there already.
# It takes root and apt-get; elsewhere it says what to install. Services that the packages bring are not used.
set -euo pipefail

say() { printf 'setup-packages: %s\n' "$*" >&2; }

# A machine with hybrid control groups takes runc and no crun; one that lets nobody raise limits needs its own in each
# container. `compat_api_enforce_docker_hub = false`: a short name means a local image over the Docker API, too.
podman_settings=/etc/containers/containers.conf.d/brew.conf
needs_podman_settings() {
    [[ ! -e $podman_settings && -z $docker_answers ]] && { [[ ! -e /sys/fs/cgroup/cgroup.controllers ]] || ! (ulimit -Sn 1048576); } 2>/dev/null
}
write_podman_settings() {
    local files processes
    files=$(ulimit -Hn) processes=$(ulimit -Hu)
    [[ $files != unlimited && $files -lt 65536 ]] || files=65536
    [[ $processes != unlimited && $processes -lt 16384 ]] || processes=16384
    "${as_root[@]}" mkdir -p "${podman_settings%/*}"
    "${as_root[@]}" tee "$podman_settings" >/dev/null <<EOF
# Written by scripts/setup-packages.sh containers; remove it to have Podman's own defaults.
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
compat_api_enforce_docker_hub = false
[network]
network_backend = "netavark"
[containers]
default_ulimits = ["nofile=$files:$files", "nproc=$processes:$processes"]
EOF
    say "wrote $podman_settings"
}

missing=() docker_answers='' settings_needed=''
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
        containers)
            if command -v docker >/dev/null && timeout 20 docker info >/dev/null 2>&1; then docker_answers=yes; else
                command -v podman >/dev/null || missing+=(podman)
                command -v podman-compose >/dev/null || missing+=(podman-compose)
                command -v runc >/dev/null || missing+=(runc)
                [[ -x /usr/lib/podman/netavark ]] || missing+=(netavark aardvark-dns)
                command -v iptables >/dev/null || missing+=(iptables)
                command -v catatonit >/dev/null || missing+=(catatonit) # the first process of a pod; Debian only recommends it
                command -v debootstrap >/dev/null || missing+=(debootstrap)
            fi
            if needs_podman_settings; then settings_needed=yes; fi
            ;;
        *) say "$wanted is neither 'stores' nor 'browser' nor 'metrics' nor 'models' nor 'containers'"; exit 64 ;;
    esac
done
[[ ${#missing[@]} -gt 0 || -n $settings_needed ]] || exit 0

by_hand="install ${missing[*]} with your system's packages, so that initdb, postgres, redis-server, chromium, prometheus, promtool, spin, gcc, podman are on PATH"
command -v apt-get >/dev/null || { say "apt-get is missing; $by_hand"; exit 3; }
as_root=()
if [[ $EUID -ne 0 ]]; then
    { command -v sudo >/dev/null && sudo -n true 2>/dev/null; } || { say "apt-get needs root; $by_hand"; exit 3; }
    as_root=(sudo -n)
fi
if [[ -n $settings_needed ]]; then write_podman_settings; fi
[[ ${#missing[@]} -gt 0 ]] || exit 0
say "installing ${missing[*]} with apt-get, as root"
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
