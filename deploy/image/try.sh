#!/bin/sh
# Carries out the steps of the image in a clean Debian below ROOT, without Docker, and lets its server
# answer once. Needs debootstrap and root: sh deploy/image/try.sh /var/tmp/clean [MIRROR]
set -eu

root=$1
mirror=${2:-http://deb.debian.org/debian}
here=$(cd "$(dirname "$0")/../.." && pwd)

debootstrap --variant=minbase bookworm "$root" "$mirror"
cp /etc/resolv.conf "$root/etc/resolv.conf"
mount --bind /proc "$root/proc"
mount --bind /dev "$root/dev"
trap 'umount "$root/proc" "$root/dev"' EXIT
# What decides on this machine from where packages come, and whom they are believed from.
for kept in /etc/apt/apt.conf.d /etc/apt/sources.list /etc/apt/sources.list.d /etc/pip.conf \
    /etc/ssl/certs /usr/local/share/ca-certificates; do
    [ -e "$kept" ] || continue
    mkdir -p "$root$(dirname "$kept")"
    cp -rLf "$kept" "$root$(dirname "$kept")/"
done

mkdir -p "$root/src"
(cd "$here" && git ls-files -z | xargs -0 tar -cf -) | tar -xf - -C "$root/src"

for step in tools wheel install kernels runtime look; do
    echo "== $step"
    chroot "$root" sh -c "cd /src && sh deploy/image/steps.sh $step"
done
rm -rf "$root/opt/rowferry-build" "$root/src"
cp "$here/deploy/image/entrypoint.sh" "$root/opt/rowferry/entrypoint.sh"

echo "== the server answers, as the image's user"
chroot --userspec=10001:10001 "$root" sh -c '
    cd /var/lib/rowferry
    export HOME=/var/lib/rowferry PATH=/opt/rowferry/bin:$PATH NUMBA_CPU_NAME=generic NUMBA_CPU_FEATURES=
    sh /opt/rowferry/entrypoint.sh server --addr 127.0.0.1:18300 &
    server=$!
    for second in $(seq 120); do
        python -c "import urllib.request as u; u.urlopen(\"http://127.0.0.1:18300/health\")" \
            2>/dev/null && answered=yes && break
        sleep 1
    done
    kill "$server"; wait "$server" || true
    test "${answered:-no}" = yes
'
echo "== passed"
