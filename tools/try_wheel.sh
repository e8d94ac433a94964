#!/usr/bin/env bash
# tools/try_wheel.sh WHEEL [--cuda]: installs a wheel of tools/wheel.sh in a bare Debian 12 and uses it as a newcomer would: doctor, data
# prepare, 20 steps of training, a report, two ranks. Does so with the launcher and with each build that this processor can run.
# --cuda also installs octet[cuda], about 1.5 GB, and checks that the CUDA backend finds its libraries. Computing with it needs a GPU
# (tools/gpu.sh wheel).
# Prints PASS, FAIL or SKIP for each part. The root stays in build/try-wheel. Packages: debootstrap qemu-user-static
set -euo pipefail
wheel=$(realpath "$1")
cuda=${2:-}
cd "$(dirname "$(realpath "$0")")/.."
work=build/try-wheel
root=$work/root
venv=/opt/octet
mkdir -p "$work"

failures=0
try() {
  local name=$1
  shift
  if "$@" >"$work/$name.log" 2>&1; then
    echo "PASS $name"
  else
    tail -n 20 "$work/$name.log"
    echo "FAIL $name"
    failures=$((failures + 1))
  fi
}
inside() { tools/bare_root.sh run "$root" "$@"; }
as_user() { tools/bare_root.sh run --user=1000 --in=/home/user "$root" "$@"; }

reason=$(tools/bare_root.sh new "$root") || { echo "SKIP wheel: $reason"; exit 0; }
inside sh -c 'apt-get -qq update && apt-get -qq -y --no-install-recommends install python3-venv' >"$work/apt.log" 2>&1 ||
  { tail -n 5 "$work/apt.log"; echo "SKIP wheel: Python cannot be installed in the bare root"; exit 0; }
cp "$wheel" "$root/opt/"
file=/opt/$(basename "$wheel")
mkdir -p "$root/home/user/texts"
cp docs/*.md "$root/home/user/texts/"
chown -R 1000:1000 "$root/home/user"

# pip leaves empty folders behind.
files() { inside find $venv ! -type d | grep -v __pycache__ | sort; }
# Installs twice, because the second time must change nothing, and then once more over the installation.
install() {
  ! inside sh -c 'command -v cc || command -v gcc || command -v nvcc || command -v cmake' || return
  inside python3 -m venv $venv || return
  files >"$work/before"
  for again in "" "" --force-reinstall; do
    # shellcheck disable=SC2086
    inside $venv/bin/pip install --no-index $again "$file" || return
  done
  inside $venv/bin/pip check && inside test -s $venv/share/man/man1/octet.1 -a -s $venv/share/bash-completion/completions/octet
}
try install install
packages=$(inside $venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')

# newcomer NAME PROGRAM BUILD: does what a newcomer does. doctor must name BUILD. Every build, and two ranks, must give the same losses bit
# for bit, and the losses must fall.
newcomer() {
  local name=$1 octet=$2 build=$3
  local train=(train "$venv/share/octet/configs/quickstart.toml" "--data.source=[{path=\"$name/corpus\"}]" --training.steps=20
    --training.micro_batch_size=8 --evaluation.interval=0)
  as_user "$octet" doctor | tee "$work/doctor" || return
  grep -q "^build .*$build" "$work/doctor" || return
  as_user "$octet" data prepare --input texts --tokenizer byte --output "$name/corpus" || return
  as_user "$octet" "${train[@]}" "--run.output_dir=$name/one" || return
  as_user "$octet" launch -n 2 -- "${train[@]}" --parallel.replicate=2 "--run.output_dir=$name/two" || return
  as_user "$octet" report "$name/one" "$name/two" --output "$name" || return
  grep -q "</html>" "$root/home/user/$name/report.html" || return
  losses "$name/one" | awk 'NR == 1 { first = $1 } { last = $1 } END { print NR, first, last; exit !(NR == 20 && last < first) }' || return
  diff <(losses "$name/one") <(losses "$name/two") && diff <(losses "$name/one") <(losses launcher/one)
}
losses() { sed -nE 's/.*"step":[0-9]+,"loss":([0-9.e-]+).*/\1/p' "$root/home/user/$1/metrics.jsonl"; }

# chosen BUILD: checks that the launcher becomes that build, with the same process number, exit code and signals.
chosen() {
  # shellcheck disable=SC2016
  as_user sh -c '
    "$0" train "$1" --data.source="[{path=\"launcher/corpus\"}]" --training.steps=100000 --run.output_dir="chosen-$2" &
    while [ ! -s "chosen-$2/metrics.jsonl" ] && kill -0 $!; do sleep 0.1; done
    readlink /proc/$!/exe >chosen.exe
    kill -TERM $!
    wait $!
    echo $? >chosen.code' $venv/bin/octet $venv/share/octet/configs/quickstart.toml "$1"
  cat "$root/home/user/chosen.exe" "$root/home/user/chosen.code"
  [ "$(cat "$root/home/user/chosen.exe")" = "$packages/octet/$1" ] && [ "$(cat "$root/home/user/chosen.code")" = 75 ]
}

try launcher newcomer launcher $venv/bin/octet "CPU, x86-64-v"
try cpu-v3 newcomer cpu-v3 "$packages/octet/octet-cpu-v3" "CPU, x86-64-v3"
if grep -qw avx512vl /proc/cpuinfo; then
  try cpu-v4 newcomer cpu-v4 "$packages/octet/octet-cpu-v4" "CPU, x86-64-v4"
  try chosen chosen octet-cpu-v4
else
  echo "SKIP cpu-v4: this processor has no AVX-512"
  try chosen chosen octet-cpu-v3
fi

# emulated PROCESSOR SENTENCE: checks what the launcher does on another processor. QEMU names the program that it starts.
emulated() {
  cp "$(command -v qemu-x86_64-static)" "$root/opt/qemu"
  inside /opt/qemu -strace -cpu "$1" $venv/bin/octet --version >"$work/emulated" 2>&1 || true
  cat "$work/emulated"
  grep -qF "$2" "$work/emulated"
}
if command -v qemu-x86_64-static >/dev/null; then
  try no-avx2 emulated Nehalem "this processor lacks AVX2 or FMA"
  try no-avx512 emulated Haswell "execve(\"$packages/octet/octet-cpu-v3\""
else
  echo "SKIP no-avx2, no-avx512: qemu-user-static is not installed"
fi

uninstall() {
  inside $venv/bin/pip uninstall --yes octet || return
  files >"$work/after"
  diff "$work/before" "$work/after"
}
try uninstall uninstall

if [ -x build/wheel/venv/bin/python ]; then
  try auditwheel build/wheel/venv/bin/python tools/wheel/audit.py "$wheel"
  cat "$work/auditwheel.log"
  parquet() {
    build/wheel/venv/bin/python -c 'import pyarrow, pyarrow.parquet as p, sys
p.write_table(pyarrow.table({"text": ["one text", "another one"]}), sys.argv[1])' "$root/home/user/texts.parquet" || return
    inside $venv/bin/pip install --quiet "${file}[parquet]" || return
    as_user $venv/bin/octet data prepare --input texts.parquet --tokenizer byte --output parquet || return
    as_user $venv/bin/octet data inspect parquet
  }
  try parquet parquet
else
  echo "SKIP auditwheel, parquet: build/wheel/venv, which tools/wheel.sh makes, is not here"
fi

if [ "$cuda" = --cuda ]; then
  cuda() {
    inside $venv/bin/pip install --quiet "${file}[cuda]" || return
    newcomer cuda-v3 $venv/bin/octet "CUDA .*, x86-64-v3" && chosen octet-cuda-v3
  }
  try cuda cuda
fi
[ $failures -eq 0 ]
