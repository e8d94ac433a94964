#!/usr/bin/env bash
# tools/try_report.sh OCTET [FOLDER]: checks reports, watched pages and pictures in a headless Chromium (tests/browser), and leaves
# screenshots in FOLDER (default: build/screenshots). Prints lines that begin with PASS, FAIL or SKIP. Installs the browser if run as root.
# Packages: chromium-headless-shell python3
set -euo pipefail
octet=$(realpath "$1")
screenshots=$(realpath -m "${2:-$(dirname "$(realpath "$0")")/../build/screenshots}")
cd "$(dirname "$(realpath "$0")")/.."

has_browser() { python3 -c 'import sys; sys.path.insert(0, "tests/browser"); import chrome; sys.exit(not chrome.find())'; }
if ! has_browser && [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
  { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install chromium-headless-shell fonts-dejavu-core; } >/dev/null 2>&1 || true
fi
if ! has_browser; then
  echo "SKIP browser: no Chromium here, and it cannot be installed; as root: apt-get install chromium-headless-shell"
  exit 0
fi
python3 tests/browser/report_test.py "$octet" "$screenshots"
echo "screenshots: $screenshots"
