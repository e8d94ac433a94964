#!/usr/bin/env bash
# tests/library/install_and_use.sh BUILD SOURCE CXX: installs the build to a temporary folder. Checks that man pages and completion are
# there, that the headers need only what is installed, and that examples/own-model builds against the installation alone and learns.
# Other tests check derivatives.
set -euo pipefail
build=$1 source=$2 cxx=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cmake --install "$build" --prefix "$folder/octet" >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }

# The installed program has the build's Parquet plugin, or says that there is none.
printf PAR1 >"$folder/noise.parquet"
if "$folder/octet/bin/octet" data prepare --input "$folder/noise.parquet" --output "$folder/corpus" 2>"$folder/log"; then exit 1; fi
if grep -q octet_parquet.so "$build/install_manifest.txt"; then reason="cannot read this Parquet"; else reason="there is no octet_parquet.so"; fi
grep "$reason" "$folder/log" || { cat "$folder/log"; exit 1; }

# Man pages and completion must belong to this program.
share=$folder/octet/share
"$folder/octet/bin/octet" completion bash | cmp - "$share/bash-completion/completions/octet"
for file in man/man1/octet.1 man/man1/octet-train.1 zsh/site-functions/_octet fish/vendor_completions.d/octet.fish; do test -s "$share/$file"; done

(cd "$folder/octet/include" && find octet -name '*.h' | sort | sed 's/.*/#include "&"/') >"$folder/all.cpp"
echo "$(wc -l <"$folder/all.cpp") headers"
"$cxx" -std=c++20 -fsyntax-only -DOCTET_HAS_CUDA=0 -I"$folder/octet/include" "$folder/all.cpp"

cmake -S "$source/examples/own-model" -B "$folder/example" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER="$cxx" \
  -DCMAKE_PREFIX_PATH="$folder/octet" >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
cmake --build "$folder/example" >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
for recipe in bf16 fp8_delayed fp8_current fp8_rowwise fp8_block mxfp8; do
  "$folder/example/own-model" "$recipe" >"$folder/losses"
  awk -v recipe="$recipe" 'NR == 1 { first = $NF } { last = $NF }
    END { print recipe, first, last; exit !(first > 2 && last < first / 100) }' "$folder/losses" || { cat "$folder/losses"; exit 1; }
done
if "$folder/example/own-model" fp9 2>"$folder/log"; then exit 1; fi
grep -q "fp9" "$folder/log"
