#!/usr/bin/env bash
# tests/library/install_and_use.sh BUILD SOURCE CXX: installs the build to a temporary folder. Checks that man pages and completion are
# there, and the configurations, that the program and the package have the version of CMakeLists.txt, that each header needs only what is installed and none is
# private, that the archive is complete, and that examples/own-model builds against the installation alone and learns. Other tests check
# derivatives.
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

# The configurations that --help names.
"$folder/octet/bin/octet" train "$folder/octet/share/octet/configs/quickstart.toml" --print-config >"$folder/log"

# Man pages and completion must belong to this program.
share=$folder/octet/share
"$folder/octet/bin/octet" completion bash | cmp - "$share/bash-completion/completions/octet"
for file in man/man1/octet.1 man/man1/octet-train.1 zsh/site-functions/_octet fish/vendor_completions.d/octet.fish doc/octet/LICENSE; do test -s "$share/$file"; done

# The number of the version.
version=$(sed -nE 's/^project\(octet VERSION ([0-9.]+) .*/\1/p' "$source/CMakeLists.txt")
minor=${version%.*}
"$folder/octet/bin/octet" --version | grep -F "octet $version ("
grep -q "find_package(octet $minor)" "$source/docs/library.md"
# accepts VERSION: whether find_package(octet VERSION) takes the installation.
accepts() {
  cat >"$folder/accepts.cmake" <<TEXT
set(PACKAGE_FIND_VERSION $1)
string(REPLACE . ";" numbers $1)
list(GET numbers 0 PACKAGE_FIND_VERSION_MAJOR)
list(GET numbers 1 PACKAGE_FIND_VERSION_MINOR)
include($(find "$folder/octet" -name octet-config-version.cmake))
if(NOT PACKAGE_VERSION_COMPATIBLE)
  message(FATAL_ERROR "\${PACKAGE_VERSION} is not for $1")
endif()
TEXT
  cmake -P "$folder/accepts.cmake" 2>"$folder/log"
}
accepts "$minor"
if accepts "${minor%.*}.$((${minor#*.} - 1))"; then exit 1; fi

# Each header is compiled alone. Those of one backend, or inside an operation of `kernels`, are not installed.
cd "$folder/octet/include"
find octet -name '*.h' | sort >"$folder/headers"
echo "$(wc -l <"$folder/headers") headers"
if grep -E '_(cpu|cuda)\.h$|/(cpu|cuda|tiles)/' "$folder/headers"; then exit 1; fi
if grep -rE 'namespace octet::.*\b(cpu|cuda)\b' octet; then exit 1; fi
# shellcheck disable=SC2016
xargs -P 2 -I{} sh -c 'echo "#include \"$1\"" | "$0" -std=c++20 -Wall -Wextra -Werror -fsyntax-only -I. -x c++ -' "$cxx" {} <"$folder/headers"
cd "$OLDPWD"

# The archive has the objects of all rooms, those of x_hopper_cuda.cu included.
objects() { for archive in "$@"; do ar t "$archive"; done | sort; }
rooms=(base numerics telemetry device tensor kernels comm recipes parallel nn optim)
existing=()
for room in "${rooms[@]}"; do
  if [ -e "$build/src/octet/liboctet_$room.a" ]; then existing+=("$build/src/octet/liboctet_$room.a"); fi
done
diff <(objects "$build/src/octet/liboctet_layers.a") <(objects "${existing[@]}")

# The installation may be moved.
mv "$folder/octet" "$folder/moved octet"
# configure BUILD PREFIX: configures the example.
configure() {
  cmake -S "$source/examples/own-model" -B "$1" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_PREFIX_PATH="$2" >"$folder/log" 2>&1
}
cp -r "$folder/moved octet" "$folder/lacking"
find "$folder/lacking" -name octet-config.cmake -exec sed -i 's/libsodium/libnowhere/' {} +
if configure "$folder/without" "$folder/lacking"; then exit 1; fi
tr -s ' \n' ' ' <"$folder/log" | grep -q "libnowhere[^ ]*, which this machine lacks" || { cat "$folder/log"; exit 1; }
configure "$folder/example" "$folder/moved octet" || { cat "$folder/log"; exit 1; }
cmake --build "$folder/example" >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
for recipe in bf16 fp8_delayed fp8_current fp8_rowwise fp8_block mxfp8; do
  "$folder/example/own-model" "$recipe" >"$folder/losses"
  awk -v recipe="$recipe" 'NR == 1 { first = $NF } { last = $NF }
    END { print recipe, first, last; exit !(first > 2 && last < first / 100) }' "$folder/losses" || { cat "$folder/losses"; exit 1; }
done
if "$folder/example/own-model" fp9 2>"$folder/log"; then exit 1; fi
grep -q "fp9" "$folder/log"
