# shellcheck shell=bash disable=SC2034
# Functions for `source`: install the Debian packages that are missing, and tell the user what to do if that fails.
# The caller must define say (prints a line) and give_up (prints a line and exits).

build_packages="g++ cmake ninja-build libopenblas-pthread-dev libgloo-dev nlohmann-json3-dev libtomlplusplus-dev libcli11-dev libfmt-dev libhwy-dev libxxhash-dev libpcre2-dev libutf8proc-dev libsodium-dev zlib1g-dev libzstd-dev"

missing_packages() {
  local package
  for package in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || echo "$package"
  done
}

# free_mb FOLDER: prints the free megabytes on the disk of FOLDER.
free_mb() { df -Pk "$1" | awk 'NR == 2 {print int($4 / 1024)}'; }

need_disk() {
  local folder=$1 needed=$2 free
  free=$(free_mb "$folder")
  [ "$free" -ge "$needed" ] || give_up "the disk of $(realpath "$folder") is nearly full: $free MB free, about $needed MB are needed. Make room and run this again."
}

# need_folders FOLDER...: makes the folders, in which the caller will write.
need_folders() {
  local folder
  for folder in "$@"; do
    if ! mkdir -p "$folder" 2>/dev/null || [ ! -w "$folder" ]; then
      give_up "cannot write to $PWD/$folder. Run this in a copy of the sources that belongs to you."
    fi
  done
}

# install_packages PACKAGE...
install_packages() {
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    say "This is not Debian or Ubuntu. Install these packages yourself if the build does not find them: $*"
    return
  fi
  local missing as_root=() log
  missing=$(missing_packages "$@" | tr '\n' ' ')
  [ -n "$missing" ] || return 0
  say "Installing packages: $missing"
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || give_up "packages are missing, and there is no sudo. Run as root: apt-get install $missing"
    if ! sudo -n true 2>/dev/null; then
      [ -t 0 ] || give_up "packages are missing, and sudo needs a password. Run: sudo apt-get install $missing"
      sudo -v || give_up "packages are missing, and sudo refused. Run as root: apt-get install $missing"
    fi
    as_root=(sudo)
  fi
  need_disk /usr 700
  log=$(mktemp)
  if ! "${as_root[@]}" apt-get -qq -o Acquire::Retries=2 update >"$log" 2>&1 || grep -q "^[WE]: Failed to fetch" "$log"; then
    tail -n 3 "$log" >&2
    give_up "cannot fetch the package lists. Check the network. Needed packages: $missing"
  fi
  # $missing is unquoted on purpose: it is a list of names without blanks.
  # shellcheck disable=SC2086
  if ! "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o Dpkg::Use-Pty=0 --no-install-recommends install $missing >"$log" 2>&1; then
    tail -n 5 "$log" >&2
    [ "$(free_mb /usr)" -ge 20 ] || give_up "the disk is full; free about 700 MB and run this again"
    give_up "apt-get could not install: $missing (the end of its output is above)"
  fi
  rm -f "$log"
}
