#!/usr/bin/env bash
# Makes a bare Debian 12 in a folder for tests. It holds what the image debian:12-slim holds, so no compiler and no Python. Needs root,
# debootstrap and, the first time, a network.
#
#   tools/bare_root.sh new FOLDER                                     makes FOLDER anew from a copy in build/bare-root
#   tools/bare_root.sh run [--user=ID] [--in=DIR] FOLDER COMMAND...   runs COMMAND there as process 1 (root, in /)
#
# The root uses this machine's network, with its resolver, its certificates and its proxies. The exit code is 77 if this machine cannot
# make such a root.
set -euo pipefail

cannot() {
  echo "$*"
  exit 77
}

# The copy gets its final name only when it is complete.
make_new() {
  local folder=$1 kept
  kept=$(dirname "$(realpath "$0")")/../build/bare-root
  [ "$(id -u)" -eq 0 ] || cannot "a bare Debian is made by root only"
  command -v debootstrap >/dev/null || cannot "debootstrap is not installed"
  unshare --mount --pid --fork true 2>/dev/null || cannot "this machine does not let root mount anything"
  if [ ! -d "$kept" ]; then
    mkdir -p "$(dirname "$kept")"
    rm -rf "$kept.part"
    if ! debootstrap --variant=minbase bookworm "$kept.part" >"$kept.log" 2>&1; then
      cannot "debootstrap failed: $(tail -n 1 "$kept.log")"
    fi
    mv "$kept.part" "$kept"
  fi
  mkdir -p "$(dirname "$folder")"
  rm -rf "$folder"
  cp -a "$kept" "$folder"
  cp -L /etc/resolv.conf "$folder/etc/resolv.conf"
  cp -L /etc/ssl/certs/ca-certificates.crt "$folder/etc/certificates-of-the-host.crt"
}

# Mounts end with the namespace, so that a later `rm` of FOLDER cannot follow them.
run_in() {
  local user=0 directory=/ home=/root name environment
  while [[ $1 == --* ]]; do
    case $1 in --user=*) user=${1#*=} home=/tmp ;; --in=*) directory=${1#*=} ;; esac
    shift
  done
  environment=("HOME=$home" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 PIP_CERT=/etc/certificates-of-the-host.crt)
  for name in http_proxy https_proxy no_proxy PIP_INDEX_URL; do
    if [ -n "${!name:-}" ]; then environment+=("$name=${!name}"); fi
  done
  # shellcheck disable=SC2016
  exec unshare --mount --pid --fork --kill-child bash -c '
    root=$1 user=$2
    shift 2
    mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev" && mount --rbind /sys "$root/sys" &&
      exec chroot --userspec="$user:$user" "$root" env -i "$@"' bash "$1" "$user" --chdir="$directory" "${environment[@]}" "${@:2}"
}

case ${1:-} in
  new) make_new "$2" ;;
  run) run_in "${@:2}" ;;
  *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
