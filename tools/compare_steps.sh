#!/usr/bin/env bash
# tools/compare_steps.sh COMMIT: shows whether the core still does what it did at COMMIT. Builds octet_step_record from both, in build/steps,
# and compares what it writes: the ops of 2,300 steps with their waits, memory plans, and the bits that 1,500 runs compute. About ten minutes
# on two cores the first time. Prints the first differences and exits with 1 if there are any. The folders stay for diff.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
commit=$(git rev-parse --verify "${1:?usage: tools/compare_steps.sh COMMIT}^{commit}")
folder=$PWD/build/steps

# record SOURCE BUILD OUTPUT
record() {
  local options=(-DCMAKE_BUILD_TYPE=Release '-DCMAKE_CXX_FLAGS_RELEASE=-O2 -DNDEBUG' -DCMAKE_UNITY_BUILD=ON -DBUILD_TESTING=ON -DOCTET_CUDA=OFF)
  if command -v ccache >/dev/null; then options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
  if ! { cmake -S "$1" -B "$2" -G Ninja "${options[@]}" && ninja -C "$2" octet_step_record; } >"$2.log" 2>&1; then
    tail -n 20 "$2.log"
    exit 1
  fi
  rm -rf "$3"
  "$2/tests/octet_step_record" "$3"
}

mkdir -p "$folder"
if [ ! -e "$folder/$commit" ]; then
  git worktree prune
  git worktree add --detach "$folder/source" "$commit" >/dev/null 2>&1 || git -C "$folder/source" checkout --quiet --detach "$commit"
  record "$folder/source" "$folder/before" "$folder/partial" && mv "$folder/partial" "$folder/$commit"
fi
record "$PWD" "$folder/after" "$folder/now"

differing=$({ diff -rq "$folder/$commit" "$folder/now" || true; } | tee "$folder/differences.txt" | wc -l)
printf '%d records, %d differ from %s\n' "$(find "$folder/now" -type f | wc -l)" "$differing" "${commit:0:12}"
[ "$differing" -eq 0 ] || { diff -r "$folder/$commit" "$folder/now" | head -n 40; exit 1; }
