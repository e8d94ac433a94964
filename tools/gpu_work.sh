# shellcheck shell=bash disable=SC2154
# For `source` by tools/gpu.sh, which defines the variables: the list of what has not run, and parts that only this list needs.
# The column "part" of docs/measurements/not-run.md has the same names.

# By value: PART GPUS SECONDS. GPUS is the least number. SECONDS is an estimate; a part whose estimate does not fit is left for
# another day. Parts called quality go on where they stopped, so theirs is the least that is worth a start.
work=(
  "tests 1 330"
  "ranks 2 330"
  "quality:bf16,bf16-repeat,16-bit-dgrad 4 120"  # rows of the speed tables without a curve
  "mesh:fsdp32:4 4 120"  # measured on one machine only
  "family:context-tail 2 30"
  "family:olmo2 2 30"
  "family:phi3-tensor 2 30"
  "mesh:olmo2:2 2 120"
  "mesh:phi3:2 2 120"
  "mesh:olmo2:4 4 120"
  "mesh:phi3:4 4 120"
  "quality-long:bf16,bf16-repeat,fp8_delayed,fp8-attention-backward 4 120"
  "quality:bf16,bf16-repeat,fp8_delayed,no-calibration 4 120"
  "quality:bf16,bf16-repeat,16-bit,16-bit-bf16 4 120"
  "stragglers 2 120"
  "torchrun 2 60"
  "interface 2 30"
  "wheel 2 90"
  "long-tiles 1 240"
)
work_off() {
  local entry name needs seconds
  work_ends=$((SECONDS + ${MINUTES:-8} * 60))
  for entry in "${work[@]}"; do
    read -r name needs seconds <<<"$entry"
    if [ "$gpus" -lt "$needs" ] || [ -e "$out/done-$name" ]; then continue; fi
    if [ $((work_ends - SECONDS)) -lt "$seconds" ]; then
      echo "$name is left for another day: it takes about $seconds s"
      continue
    fi
    local before=${#verdict[@]}
    run_part "$name"
    if [ ${#verdict[@]} -gt "$before" ] && ! printf '%s\n' "${verdict[@]:before}" | grep -q ^FAIL; then touch "$out/done-$name"; fi
  done
}

# run_quality FOLDER NAME,NAME...: losses of these settings of tools/quality.sh for each of SEEDS (default 1). A call without the
# time for all runs fails, and the next one goes on with them. $each_run has options of every run.
run_quality() {
  local folder="$out/$1" minutes names seed name status=0
  minutes=$(((${work_ends:-600000} - SECONDS) / 60))
  read -ra names <<<"${2//,/ }"
  OUT=$folder SEEDS=${SEEDS:-1} MINUTES=$minutes OPTIONS=${each_run:-} OCTET_BIN=$bin tools/quality.sh "${names[@]}" || status=1
  for seed in ${SEEDS:-1}; do
    for name in "${names[@]}"; do
      [ -e "$folder/$seed/$name/done" ] || { status=1; echo "$name, seed $seed: not complete"; }
    done
  done
  return $status
}

# run_long FAMILY MESH OPTION...: 2,000 steps of a small model of the family on one device, in BF16, in FP8 and in BF16 again.
run_long() {
  local name=$1 option options=() status
  shift 2
  prepare_corpus || return
  for option in "$@"; do [[ $option == --parallel.* ]] || options+=("$option"); done
  rm -rf "$out/long-$name"
  "$bin/octet" compare configs/quickstart.toml --recipes bf16,fp8_delayed --output "$out/long-$name" \
    --run.device="${DEVICE:-cuda}" --data.source="[{path=\"$corpus\"}]" --training.steps="${STEPS:-2000}" --optimizer.lr=0.001 \
    --lr_scheduler.warmup_steps=100 --checkpoint.interval=0 "${options[@]}" >"$out/long-$name.log" 2>&1
  status=$?
  sed -n -e '/^recipe  /,/^bf16-repeat /p' -e '/octet: /p' "$out/long-$name.log"
  return $status
}
# The same of the quickstart's model on the host, if its processor has AMX or AVX-512 BF16.
run_long_tiles() {
  "$bin/octet" doctor 2>/dev/null | grep -m 1 -E 'AMX-BF16|AVX512-BF16' ||
    { echo "this processor has neither AMX nor AVX-512 BF16"; return 1; }
  DEVICE=cpu run_long tiles shard=1
}

# small_train NAME OPTION...: 40 steps of the quickstart's model on all GPUs, after the words of the array `launcher`.
small_train() {
  local name=$1
  shift
  rm -rf "${out:?}/$name"
  "${launcher[@]}" train configs/quickstart.toml --run.device="${DEVICE:-cuda}" --data.source="[{path=\"$corpus\"}]" \
    --run.output_dir="$out/$name" --training.steps=40 --training.micro_batch_size=2 --training.global_batch_size=$((2 * gpus)) \
    --evaluation.interval=0 --metrics.log_freq=1 "$@" >"$out/$name.log" 2>&1
}
# torchrun must give the losses of octet launch.
run_torchrun() {
  local launcher status=0 name
  prepare_corpus || return
  launcher=("$bin/octet" launch -n "$gpus" --)
  small_train launch --run.deterministic=true || status=1
  launcher=(python3 -m torch.distributed.run --no-python --nproc-per-node="$gpus" "$bin/octet")
  small_train torchrun --run.deterministic=true || status=1
  for name in launch torchrun; do
    grep -o '"step":[0-9]*,"loss":[0-9.]*' "$out/$name/metrics.jsonl" >"$out/$name.losses" ||
      { status=1; tail -n 5 "$out/$name.log"; }
  done
  cmp "$out/launch.losses" "$out/torchrun.losses" || status=1
  tail -n 1 "$out/torchrun.losses"
  return $status
}
# NCCL must take the interface that comm.interface names.
run_interface() {
  local launcher=("$bin/octet" launch -n "$gpus" --)
  prepare_corpus || return
  NCCL_DEBUG=INFO small_train interface --comm.interface=lo || { tail -n 5 "$out/interface.log"; return 1; }
  grep -m 2 -E 'NCCL_SOCKET_IFNAME set|Using lo:' "$out/interface.log" | cut -c 1-200
  grep -q 'Using lo:' "$out/interface.log"
}

# A damaged file of GEMM choices, a file with other JSON and a folder in its place must cost a warning and end no run.
run_gemm_file() {
  local cache="$out/gemm-cache" status=0 log="$out/gemm-file.log"
  rm -rf "$cache" "$log"
  mkdir -p "$cache/octet"
  one_step() {
    XDG_CACHE_HOME=$cache "$bin/octet" bench step configs/quickstart.toml --run.device=cuda --seconds 1 >>"$log" 2>&1 || status=1
  }
  echo 'no JSON' >"$cache/octet/gemm.json"
  one_step
  echo '[]' >"$cache/octet/gemm.json"
  one_step
  rm "$cache/octet/gemm.json"
  mkdir "$cache/octet/gemm.json"
  one_step
  grep warning: "$log" | cut -c 1-250
  grep -q 'are chosen again and not kept' "$log" || status=1
  grep -q 'not a file of GEMM choices; it is overwritten' "$log" || status=1
  [ "$(grep -c warning: "$log")" -ge 3 ] || status=1
  return $status
}

# A rank whose GPU also does other work must be named, with what NVML says of its GPU, and the page of figures must have NVML's
# readings.
run_stragglers() {
  local run="$out/stragglers" settings="$narrow --training.seq_len=2048 --training.micro_batch_size=1" pid status=0
  prepare_corpus || return
  rm -rf "$run"
  # shellcheck disable=SC2086
  "$bin/octet" launch -n "$gpus" -- train configs/llama3.2-1b.toml --run.device=cuda --data.source="[{path=\"$corpus\"}]" \
    --run.output_dir="$run" $settings --training.global_batch_size=$((8 * gpus)) --training.steps=250 --metrics.log_freq=5 \
    --metrics.port=9400 --health.straggler=0.85 --evaluation.interval=0 --checkpoint.interval=0 >"$run.log" 2>&1 &
  pid=$!
  until [ -s "$run/metrics.jsonl" ] || ! kill -0 $pid 2>/dev/null; do sleep 0.2; done
  # shellcheck disable=SC2086
  CUDA_VISIBLE_DEVICES=$((gpus - 1)) timeout 60 "$bin/octet" bench step configs/llama3.2-1b.toml --run.device=cuda $settings \
    --training.global_batch_size=8 --seconds 20 >"$run-load.log" 2>&1 || status=1
  python3 -c 'import urllib.request; print(urllib.request.urlopen("http://127.0.0.1:9400/metrics").read().decode())' \
    >"$run.page" || status=1
  grep '^octet_gpu_' "$run.page" | head -n 8
  grep -q '^octet_gpu_power_watts' "$run.page" || status=1
  wait $pid || status=1
  cut -c 1-400 "$run/stragglers.jsonl" | head -n 4
  grep -q "\"rank\":$((gpus - 1))," "$run/stragglers.jsonl" || status=1
  rm -rf "$run/checkpoints" "$run/model"
  return $status
}
