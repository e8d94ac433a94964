# shellcheck shell=bash disable=SC2154
# Functions for `source` by run-tests: build presets, run their tests and count how many passed and failed.
# The caller defines say and give_up, and the variables passed, failed, jobs and started.

# The tiers. A test is slow or long if its file is called x_slow_test.cpp or x_long_test.cpp (CMake gives it that label), or if the
# instantiation of its parameters is called Slow or Long.
slow_cases='\.(Slow|Long)/' long_cases='\.Long/'
quick=(-LE '(slow|long)$' -E "$slow_cases")
# ThreadSanitizer makes tests ten times as long. Of the rooms that mostly compute, `--full` gives it some tests of each kind of thread:
# workers that read and tokenise, ranks, saves behind training, copies of optimizer states. `--long` gives it all.
threads='^(base|storage|device|comm|telemetry|checkpoint)\.'
threads+='|^data\.(LoaderTest|OrderedPipeline|OutputWatch|Prepare|TaskReader)\.'
threads+='|^train\.(Run|MeshTest|Fetched|Quick/DemoteOnRanks|OffloadTest\.GivesTheSameBitsInAnyOrder|Recipes/Snapshot.*/bf16)'

minutes() { printf '%d min %02d s' $(($1 / 60)) $(($1% 60)); }

# Shows progress in one line that is rewritten on a terminal, and in a line for every tenth elsewhere. Passes other lines on.
progress() {
  awk -v terminal="$([ -t 1 ] && echo 1)" '
    function show(done, all, text) {
      if (terminal) printf "\r\033[K%d of %d  %s", done, all, substr(text, 1, 60)
      else if (int(10 * done / all) > tenth) printf "  %d of %d\n", done, all
      tenth = int(10 * done / all)
      fflush()
    }
    match($0, /^\[[0-9]+\/[0-9]+\]/) { split(substr($0, 2, RLENGTH - 2), n, "/"); show(n[1], n[2], $NF); next }
    /^ *[0-9]+\/[0-9]+ Test +#.*(Passed|Skipped)/ { split($1, n, "/"); show(n[1], n[2], $4); next }
    /^ +Start +[0-9]+:/ || /^$/ { next }
    { if (terminal) printf "\r\033[K"; print; fflush() }
    END { if (terminal) printf "\r\033[K" }'
}

python_packages() {
  if .venv/bin/python tools/check_python.py tests/requirements.txt >/dev/null 2>&1; then return; fi
  say "Installing the Python packages of tests/requirements.txt into .venv"
  if ! { python3 -m venv .venv && .venv/bin/pip install --quiet --disable-pip-version-check -r tests/requirements.txt; } >build/venv.log 2>&1; then
    tail -n 5 build/venv.log >&2
    give_up "the Python packages cannot be installed: is there a network?"
  fi
}

# build PRESET TARGET [CMAKE_OPTION...]
build() {
  local preset=$1 target=$2 start=$SECONDS arrow
  shift 2
  say "Building $preset"
  arrow=$(.venv/bin/python -c 'import pyarrow; print(*pyarrow.__path__)')  # for the plugins
  local options=(-DCMAKE_UNITY_BUILD=ON -DOCTET_PYTHON="$PWD/.venv/bin/python" -DOCTET_ARROW="$arrow")
  if command -v ccache >/dev/null; then options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_CUDA_COMPILER_LAUNCHER=ccache); fi
  if cmake --preset "$preset" "${options[@]}" "$@" >"build/$preset.log" 2>&1 &&
    cmake --build --preset "$preset" --target "$target" -j "$jobs" 2>&1 | tee -a "build/$preset.log" | grep --line-buffered '^\[' | progress; then
    printf '  built in %s\n' "$(minutes $((SECONDS - start)))"
    return 0
  fi
  tail -n 40 "build/$preset.log"
  printf 'the %s build failed; everything it said is in build/%s.log\n' "$preset" "$preset"
  failed=$((failed + 1))
  return 1
}

# check PRESET CTEST_OPTION...: runs tests and adds the counts of ctest's last lines. Succeeds if all passed.
# It runs half as many tests again as there are processors, because many tests of end_to_end wait for a host that fell silent.
check() {
  local preset=$1 start=$SECONDS log total bad
  shift
  say "Testing $preset"
  log=build/$preset-tests.log
  ctest --test-dir "build/$preset" --output-on-failure --no-label-summary -j $((jobs + jobs / 2)) --output-junit "../$preset-tests.xml" "$@" 2>&1 | tee "$log" | progress
  total=$(sed -nE 's/.*tests passed, ([0-9]+) tests? failed out of ([0-9]+).*/\2/p' "$log" | tail -n 1)
  bad=$(sed -nE 's/.*tests passed, ([0-9]+) tests? failed out of ([0-9]+).*/\1/p' "$log" | tail -n 1)
  if [ -z "$total" ]; then  # ctest found nothing or did not finish
    failed=$((failed + 1))
    return 1
  fi
  printf '  %s: %d passed, %d failed in %s\n' "$preset" $((total - bad)) "$bad" "$(minutes $((SECONDS - start)))"
  passed=$((passed + total - bad))
  failed=$((failed + bad))
  [ "$bad" -eq 0 ]
}

# check_rooms PRESET: runs the quick tests of all rooms but end_to_end, whose tests start the program and run for a quarter of an hour
# through code that the other rooms' tests run as well. Each room has four processes, and not one for each test: with AddressSanitizer a
# process takes longer to start than most tests run. (ThreadSanitizer does not allow what some tests do, to fork in a
# process that has had threads.) Tests that did not pass, and those that a crash kept from running, run again with a process for each,
# which shows what they say.
check_rooms() {
  local preset=$1 start=$SECONDS out log program room piece count total=0 broken=() names
  set --
  for program in build/"$preset"/tests/octet_test_*; do
    room=${program##*/octet_test_}
    case $room in *_slow | *_long | *.* | *\[* | end_to_end | gpu*) ;; *) set -- "$@" "$room" ;; esac
  done
  say "Testing $preset"
  out=$PWD/build/$preset-tests
  log=$out.log
  rm -rf "$out" && mkdir -p "$out" && : >"$log"
  for room in "$@"; do
    for piece in 0 1 2 3; do echo "$room $piece"; done
  done | out=$out programs=$PWD/build/$preset/tests xargs -P "$jobs" -L 1 bash -c '
    export GTEST_TOTAL_SHARDS=4 GTEST_SHARD_INDEX=$1
    cd "$programs" && timeout 1800 "./octet_test_$0" --gtest_filter="-Slow/*:Long/*" >"$out/$0.$1" 2>&1 || echo "$0" >>"$out/failed"
    echo "$0"' | for ((piece = 1; piece <= 4 * $#; ++piece)); do
    read -r room
    if ((piece % 8 == 0)); then echo "  $piece of $((4 * $#)), $room"; fi
  done
  for room in "$@"; do
    cat "$out/$room".[0-3] | sed -E "s/^(\[ +OK \] )/\1$room./" >>"$log"
    # Skipped tests count as passed, as ctest counts them.
    count=$(cat "$out/$room".[0-3] | grep -cE '^\[ +(OK|SKIPPED) \] .* \([0-9]+ ms\)$')
    total=$((total + count))
    if [ "$count" -eq 0 ] || grep -qx "$room" "$out/failed" 2>/dev/null; then broken+=("$room"); fi
  done
  passed=$((passed + total))
  printf '  %s: %d passed in %s\n' "$preset" "$total" "$(minutes $((SECONDS - start)))"
  [ ${#broken[@]} -gt 0 ] || return 0
  names=$(for room in "${broken[@]}"; do
    comm -23 <("build/$preset/tests/octet_test_$room" --gtest_list_tests --gtest_filter='-Slow/*:Long/*' 2>/dev/null |
      awk '/^[^ ].*\./ { suite = $1; next } /^  / { print suite $1 }' | sort) \
      <(sed -nE 's/^\[ +(OK|SKIPPED) \] (.*) \([0-9]+ ms\)$/\2/p' "$out/$room".[0-3] | sort) | sed "s/^/$room./"
  done | sed 's/[.[*^$+?()|]/\\&/g' | paste -sd '|')
  if [ -z "$names" ] || check "$preset" -R "^($names)( |\$)" "${quick[@]}"; then
    echo "These rooms failed, but their tests pass alone: ${broken[*]}. Their output is in $out"
    failed=$((failed + 1))
  fi
  return 1
}

# thread_sanitizer [CTEST_OPTION...]
thread_sanitizer() {
  build tsan threaded_tests || return
  TSAN_OPTIONS="halt_on_error=1 suppressions='$PWD/tests/tsan.supp'" ARROW_DEFAULT_MEMORY_POOL=system \
    check tsan -L 'threaded$' "${quick[@]}" "$@"
}

# image PROGRAM: prints a checksum of its code and data. It leaves out the commit (cmake/commit.cmake) and the linker's id, which covers
# the commit. objcopy cannot write to a pipe.
image() {
  objcopy -O binary -R .octet_commit -R .note.gnu.build-id "$1" build/image 2>/dev/null || cp "$1" build/image
  sha256sum <build/image
}

# files PATH...: prints the checksums of these files, and of all files in these folders.
files() { git ls-files -co --exclude-standard -- "$@" | xargs -r -d '\n' sha256sum 2>/dev/null; }

# uses ROOM PATTERN: whether the sources of the room's tests match.
uses() { grep -rqE "$2" "tests/$1"; }

# program_of ROOM: prints a checksum of what a room's tests can reach in the program: for rooms of src/octet their own library and those
# below, so that a change in one room runs its own tests and those of the rooms above; for app, end_to_end and docs the whole program.
program_of() {
  local room libraries=()
  case $1 in app | end_to_end | docs) image build/release/octet; return ;; esac
  for room in $(awk -F '[()]' -v top="$1" '
      /^octet_room/ { split($2, names, " "); lower[names[1]] = $2 }
      function visit(room, n, i, list) {
        if (seen[room]++) return
        print room
        n = split(lower[room], list, " ")
        for (i = 2; i <= n; ++i) visit(list[i])
      }
      END { if (top in lower) visit(top) }' src/octet/CMakeLists.txt); do
    if [ -e "build/release/src/octet/liboctet_$room.a" ]; then libraries+=("build/release/src/octet/liboctet_$room.a"); fi
  done
  sha256sum "${libraries[@]}" </dev/null
}

# sum_of ROOM: prints one checksum of everything that the quick tests of a room run and read. The names that their sources use tell
# whether they start the program or read the repository. "docs" and "layers" are the tests that have no program of their own.
sum_of() {
  local room=$1
  case $room in
    docs) # git's list is read because a page may name any file
      program_of docs
      git ls-files
      files docs README.md quickstart run-tests Dockerfile configs examples tools tests/docs tests/fuzz/seeds
      ;;
    layers) files src docs/layers.md cmake tools 'tests/*.h' 'tests/*.cpp' 'tests/*.cu' 'tests/*.py' 'tests/*.sh' 'tests/*.txt' ;;
    *)
      image "build/release/tests/octet_test_$room"
      files "tests/$room/*.py"
      if compgen -G "tests/$room/*_oracle.py" >/dev/null || uses "$room" 'support/(program|terminal|tiny_run)\.h|program_path'; then
        program_of "$room"
        for plugin in parquet s3; do
          if [ -e build/release/octet_$plugin.so ]; then image build/release/octet_$plugin.so; fi
        done
      fi
      if uses "$room" golden_dir; then files tests/golden; fi
      if uses "$room" source_dir; then
        files CMakeLists.txt quickstart run-tests cmake configs examples tools 'tests/*.py' docs/reference docs/pictures src/octet/base/require.h \
          src/octet/app/doctor.h src/octet/app/gate.h
      fi
      ;;
  esac | sha256sum
}

# Prints name and checksum of each room that has quick tests.
sums_of_tests() {
  local program room rooms=(docs layers)
  for program in build/release/tests/octet_test_*; do
    room=${program##*/octet_test_}
    case $room in *_slow | *_long | *.*) ;; *) rooms+=("$room") ;; esac
  done
  for room in "${rooms[@]}"; do echo "$room $(sum_of "$room")"; done
}

# Runs the quick tests of the release build, or only those that changed since all of them passed. The checksums of the programs and of
# the files that their tests read show which changed.
passed_before=build/release/passed.txt
check_quick() {
  check release "${quick[@]}" || return
  if command -v git >/dev/null; then sums_of_tests >$passed_before; fi
}
check_changed() {
  local rooms
  command -v git >/dev/null || { check_quick; return; }  # without git nothing tells what changed
  touch $passed_before
  rooms=$(sums_of_tests | grep -vxFf $passed_before | cut -d ' ' -f 1 | paste -sd '|')
  if [ -z "$rooms" ]; then
    say "Nothing changed since all tests passed"
  elif say "Changed: ${rooms//|/, }" && check release -L "^($rooms)(-threaded)?\$" "${quick[@]}"; then
    sums_of_tests >$passed_before
  fi
}

# cuda [;ARCHITECTURE...]: compiles the CUDA backend and its tests for Hopper and for these GPUs, if nvcc, cuDNN and NCCL are installed.
# Runs the tests if there is a GPU.
cuda() {
  if ! command -v nvcc >/dev/null || ! printf '#include <cudnn.h>\n#include <nccl.h>\n' | nvcc -x cu -E - >/dev/null 2>&1; then
    say "No nvcc with cuDNN and NCCL here: the CUDA backend is not compiled"
    return
  fi
  if ! PYTHON=.venv/bin/python tools/cudnn_frontend.sh; then
    say "The headers of nvidia-cudnn-frontend cannot be downloaded: the CUDA backend is not compiled"
    failed=$((failed + 1))
    return
  fi
  local options=(-DOCTET_CUDA_ARCHITECTURES="90a-real${1:-}")
  # Without a GPU nothing will run, so nothing is optimised.
  if [ ! -e /dev/nvidia0 ]; then
    options+=(-DOCTET_QUICK_CUDA=ON -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0 -DCMAKE_CUDA_FLAGS_DEBUG=-O0)
  fi
  if build cuda gpu_tests "${options[@]}" && [ -e /dev/nvidia0 ]; then check cuda -L gpu; fi
}

# verdicts COMMAND...: counts the lines that begin with PASS and FAIL.
verdicts() {
  local line
  while IFS= read -r line; do
    printf '%s\n' "$line"
    case $line in PASS*) passed=$((passed + 1)) ;; FAIL*) failed=$((failed + 1)) ;; esac
  done < <("$@" 2>&1 || echo "FAIL $*")
}

# fuzz SECONDS: runs each fuzz target for SECONDS.
fuzz() {
  build fuzz fuzzers || return
  local program name seeds
  for program in build/fuzz/fuzz/fuzz_*; do
    name=$(basename "$program")
    say "Fuzzing $name for $1 s"
    mkdir -p "build/fuzz/corpus/$name"
    seeds=()
    if [ -d "tests/fuzz/seeds/$name" ]; then seeds=("tests/fuzz/seeds/$name"); fi
    if "$program" -max_total_time="$1" -timeout=20 -rss_limit_mb=2048 -print_final_stats=0 -verbosity=0 \
      -artifact_prefix="build/fuzz/$name-" "build/fuzz/corpus/$name" "${seeds[@]}"; then
      passed=$((passed + 1))
    else
      failed=$((failed + 1))
    fi
  done
}

# Prints the ten slowest tests of all builds that were tested in this run.
slowest() {
  local logs
  mapfile -t logs < <(find build -maxdepth 1 -name '*-tests.log' -newermt "@$(($(date +%s) - (SECONDS - started)))")
  [ ${#logs[@]} -gt 0 ] || return
  say "The ten slowest tests, in seconds"
  sed -nE -e 's|^.*Test +#[0-9]+: ([^ ]+) .* ([0-9]+\.[0-9]+) sec$|\2 \1|p' -e 's|^\[ +OK \] ([^ ,]+).* \(([0-9]*)([0-9]{3}) ms\)$|\2.\3 \1|p' \
    "${logs[@]}" | sort -rn | head -n 10 | awk '{printf "%8.1f  %s\n", $1, $2}'
}
