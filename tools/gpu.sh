#!/usr/bin/env bash
# tools/gpu.sh PART...: runs parts of the tests and measurements on a machine with a GPU. The parts are:
#   doctor, tests, kernels
#   sanitize             all of compute-sanitizer's tools, or the name of one of them
#   rows, row:NAME       the speed table of docs/measurements/h200-one-gpu.md, or one of its rows
#   checkpoint           the time that training stands still for a save, of a step that is longer than the copy of the state
#   ranks                the tests between all GPUs of the machine
#   same-model           runs that must write the same model; a part of ranks
#   mesh:NAME:N          the rows of N GPUs: states, fsdp, fsdp32, context, tensor, tensor-each, stages, stages-even, stages-interleaved, lora,
#                        offload; experts, experts-pair, experts-lanes, experts-stages and experts-context, which train a slice of Mixtral;
#                        olmo2 and phi3, which train OLMo 2 7B and Phi-4 14B
#   gate                 what octet launch checks before ranks start
#   recovery             supervised runs on all GPUs whose last rank is killed and stopped, and what each restart took: recovery-disk,
#                        recovery-memory and recovery-8b
#   snapshots            what snapshots in memory cost
#   replicas             runs on all GPUs whose ranks compare their bits after every step, in all recipes
#   families             small runs of the families, of mixtures, adapters and offloaded states on all GPUs, against one GPU; family:NAME
#                        is one of them
#   devices              small runs on one GPU and on the CPU, which must end with nearly the same loss: packed chats with masks, a recipe and a
#                        sequence length that change midway, adapters of experts
#   amx                  on a host whose processor has AMX: tests of its products and of attention (octet_test_kernels), and steps of 22 million
#                        parameters on two of its cores, with tiles, without them and by PyTorch, in turns
#   test:FILTER          the tests of one GPU that match, such as test:PageLock*
#   quality:NAME,NAME    losses of these settings of tools/quality.sh for each of SEEDS (default 1); quality-long trains twice as long
#   long:NAME            2,000 steps of a small model of a family on one GPU, in BF16 and FP8; long-tiles on the host's processor
#   stragglers           a rank that shares its GPU with other work is named, with NVML's readings
#   torchrun             torchrun on all GPUs gives the losses of octet launch
#   interface            NCCL takes the interface that comm.interface names
#   gemm-file            files of GEMM choices that cannot be read or written cost a warning
#   work                 the parts of the list in tools/gpu_work.sh that have not passed yet, the most valuable first, within MINUTES (default 8)
#   wheel                WHEEL (default: the newest in dist/) in a virtual environment of its own, on one GPU and on all
# The programs octet, octet_test_gpu and octet_test_gpu_ranks come from OCTET_BIN (default build/release) and may have been built
# elsewhere. cuBLAS, cuDNN and NCCL come from the system's folders or Python's nvidia/*/lib, and libraries that were copied along, such as
# Gloo, from OCTET_BIN/lib. SHARDS is the number of processes that share a sanitizer's tests (default 12). Logs go to OUT (default
# out/gpu). The last lines give a verdict for each part.
set -uo pipefail
cd "$(dirname "$(realpath "$0")")/.." || exit
bin=${OCTET_BIN:-build/release}
out=${OUT:-out/gpu}
mkdir -p "$out"
folders=$(python3 -c 'import glob, site, sys; print(":".join(f for p in sys.path if p for f in glob.glob(p + "/nvidia/*/lib")))' 2>/dev/null)
export LD_LIBRARY_PATH="$bin/lib:${LD_LIBRARY_PATH:-}${LD_LIBRARY_PATH:+:}$folders"

gpus=$(nvidia-smi --list-gpus 2>/dev/null | wc -l)
verdict=()
part() {
  local name=$1 start=$SECONDS status
  shift
  printf '\n== %s\n' "$name"
  "$@"
  status=$?
  verdict+=("$([ $status -eq 0 ] && echo PASS || echo FAIL) $name ($((SECONDS - start)) s)")
  [ $status -eq 0 ]
}
test_program() { find "$bin" -name "${1:-octet_test_gpu}" -type f | head -n 1; }

run_doctor() {
  "$bin/octet" doctor && "$bin/octet" doctor --json >"$out/doctor.json" && python3 -m json.tool "$out/doctor.json" >/dev/null
}
# sharded SHARDS PROGRAM NAME: runs the tests of a program in SHARDS processes at once. Each uses all GPUs, but takes another one first.
sharded() {
  local shards=$1 program=$2 name=$3 shard pids=() status=0 order
  for ((shard = 0; shard < shards; ++shard)); do
    order=$(seq 0 $((gpus - 1)) | awk -v n="$gpus" -v first="$shard" '{ printf "%s%d", (NR > 1 ? "," : ""), ($1 + first) % n }')
    CUDA_VISIBLE_DEVICES=$order GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard "$program" >"$out/$name-$shard.log" 2>&1 &
    pids+=($!)
  done
  for ((shard = 0; shard < shards; ++shard)); do
    wait "${pids[shard]}" || status=1
    grep -E '^\[  FAILED|^\[  PASSED|tests ran' "$out/$name-$shard.log" | sort -u | tail -n 40
  done
  echo "The slowest, in milliseconds:"
  sed -nE 's/^\[       OK \] (.*) \(([0-9]+) ms\)$/\2 \1/p' "$out/$name"-*.log | sort -rn | head -n 5
  return $status
}
# Several processes at once, because references on the CPU take most of the time of one test program, and connecting that of the other.
run_tests() { sharded $((4 * gpus)) "$(test_program)" tests; }
run_ranks() { sharded $((3 * gpus)) "$(test_program octet_test_gpu_ranks)" ranks; }
# Leaves out tests of products, of their timing and of whole steps, which take long under a sanitizer and run the libraries' kernels.
# SHARDS processes run at once on all GPUs in turn, because the tool leaves a GPU idle most of the time. racecheck leaves out another test
# that takes it hours. RmsNormGpuTest.BackwardAgreesWithTheCpu runs the same kernel with more slabs than clusters.
sanitize() {
  local tool=$1 shards=${SHARDS:-12} shard pids=() status=0 without='*Gemm*:*GpuStep*:*GpuDocumentMask*:*Attention*:Advise*'
  [ "$tool" = racecheck ] && without+=':*WritesTheCodesOfMoreSlabsThanClusters'
  for ((shard = 0; shard < shards; ++shard)); do
    CUDA_VISIBLE_DEVICES=$((shard % gpus)) GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard \
      compute-sanitizer --tool "$tool" --error-exitcode 9 --print-limit 5 "$(test_program)" \
      --gtest_filter="-$without" >"$out/$tool-$shard.log" 2>&1 &
    pids+=($!)
  done
  for ((shard = 0; shard < shards; ++shard)); do
    wait "${pids[shard]}" || status=1
    grep -E '^\[  PASSED|^\[  FAILED|SUMMARY|Race reported' "$out/$tool-$shard.log" | sort -u | cut -c 1-250 | head -n 6
  done
  return $status
}

# The rows keep BF16 weights with stochastic rounding, BF16 moments and BF16 gradients, or everything in FP32.
narrow="--training.grad_dtype=bf16 --optimizer.state_dtype=bf16 --optimizer.master_weights=false"
long="--training.seq_len=8192 --training.micro_batch_size=1 --training.global_batch_size=8"
short="--training.seq_len=1024 --training.micro_batch_size=16 --training.global_batch_size=64"
all="--precision.recipe=fp8_delayed --precision.head=recipe --precision.accumulation=fast"
eight="--model.num_hidden_layers=8 --training.seq_len=8192 --training.micro_batch_size=2 --training.global_batch_size=2"
small="--training.seq_len=8192 --training.micro_batch_size=2 --training.global_batch_size=8"
# These settings fit 80 GB.
two_k="--training.seq_len=2048 --training.micro_batch_size=1 --training.global_batch_size=32"
lean="--precision.weight_transpose_cache=false"
four_k="--training.seq_len=4096 --training.micro_batch_size=1"
lora="--lora.rank=16 --precision.recipe=fp8_delayed"
rows=(
  "8b-delayed llama3.1-8b $narrow $long --precision.recipe=fp8_delayed"
  "8b-bf16 llama3.1-8b $narrow $long --precision.recipe=bf16"
  "8b-current llama3.1-8b $narrow $long --precision.recipe=fp8_current"
  "8b-rowwise llama3.1-8b $narrow $long --precision.recipe=fp8_rowwise"
  "8b-block llama3.1-8b $narrow $long --precision.recipe=fp8_block"
  "8b-dgrad llama3.1-8b $narrow $long --precision.recipe=fp8_delayed --precision.accumulation.dgrad=fast"
  "8b-attention llama3.1-8b $narrow $long --precision.recipe=fp8_delayed --precision.attention=fp8_forward"
  "8b-attention-dgrad llama3.1-8b $narrow $long --precision.recipe=fp8_delayed --precision.attention=fp8_forward --precision.accumulation.dgrad=fast"
  "8b-fp8-attention llama3.1-8b $narrow $long --precision.recipe=fp8_delayed --precision.attention=fp8"
  "8b-all llama3.1-8b $narrow $long $all"
  "8b-all-attention llama3.1-8b $narrow $long $all --precision.attention=fp8"
  "8b-short-delayed llama3.1-8b $narrow $short --precision.recipe=fp8_delayed"
  "8b-short-bf16 llama3.1-8b $narrow $short --precision.recipe=bf16"
  "8b-short-all llama3.1-8b $narrow $short $all"
  "8b-each-delayed llama3.1-8b $narrow $long --training.global_batch_size=1 --precision.recipe=fp8_delayed"
  "8b-each-bf16 llama3.1-8b $narrow $long --training.global_batch_size=1 --precision.recipe=bf16"
  "8-layers-delayed llama3.1-8b $eight --precision.recipe=fp8_delayed"
  "8-layers-bf16 llama3.1-8b $eight --precision.recipe=bf16"
  "8b-full-delayed llama3.1-8b $narrow $long $lean --activation_checkpoint.mode=full --precision.recipe=fp8_delayed"
  "8b-full-bf16 llama3.1-8b $narrow $long --activation_checkpoint.mode=full --precision.recipe=bf16"
  "8b-2k-delayed llama3.1-8b $narrow $two_k $lean --precision.recipe=fp8_delayed"
  "8b-2k-dgrad llama3.1-8b $narrow $two_k $lean --precision.recipe=fp8_delayed --precision.accumulation.dgrad=fast"
  "8b-2k-attention llama3.1-8b $narrow $two_k $lean --precision.recipe=fp8_delayed --precision.attention=fp8_forward"
  "8b-2k-fp8-attention llama3.1-8b $narrow $two_k $lean --precision.recipe=fp8_delayed --precision.attention=fp8"
  "8b-2k-all llama3.1-8b $narrow $two_k $lean $all"
  "8b-2k-current llama3.1-8b $narrow $two_k $lean --precision.recipe=fp8_current"
  "8b-2k-block llama3.1-8b $narrow $two_k $lean --precision.recipe=fp8_block"
  "8b-2k-bf16 llama3.1-8b $narrow $two_k --precision.recipe=bf16"
  "8b-offload-delayed llama3.1-8b $long $lean --activation_checkpoint.mode=selective --optimizer.offload=true --training.grad_dtype=bf16 --precision.recipe=fp8_delayed"
  "qwen3-8b-delayed qwen3-8b $narrow $two_k $lean --precision.recipe=fp8_delayed"
  "qwen3-8b-bf16 qwen3-8b $narrow $two_k --precision.recipe=bf16"
  "8b-fp8-moments llama3.1-8b $narrow $long $lean --optimizer.state_dtype=fp8 --activation_checkpoint.mode=selective --precision.recipe=fp8_delayed"
  "8b-lora llama3.1-8b $lora --training.seq_len=8192 --training.micro_batch_size=1 --training.global_batch_size=1"
  "8b-lora-all llama3.1-8b $lora $all --training.seq_len=8192 --training.micro_batch_size=1 --training.global_batch_size=1"
  "8b-lora-attention llama3.1-8b $lora $all --precision.attention=fp8 --training.seq_len=8192 --training.micro_batch_size=1 --training.global_batch_size=1"
  "8b-lora-2k llama3.1-8b $lora --training.seq_len=2048 --training.micro_batch_size=4 --training.global_batch_size=4"
  "8b-lora-2k-all llama3.1-8b $lora $all --training.seq_len=2048 --training.micro_batch_size=4 --training.global_batch_size=4"
  "70b-lora llama3-70b $lora $all $lean --training.seq_len=8192 --training.micro_batch_size=1 --training.global_batch_size=1 --activation_checkpoint.mode=full --activation_checkpoint.layers=46"
  "70b-lora-attention llama3-70b $lora $all --precision.attention=fp8 $lean --training.seq_len=8192 --training.micro_batch_size=1 --training.global_batch_size=1 --activation_checkpoint.mode=full --activation_checkpoint.layers=46"
  "qwen3-30b-2-layers qwen3-30b-a3b --model.num_hidden_layers=2 $narrow --training.seq_len=4096 --training.micro_batch_size=1 --training.global_batch_size=4 --precision.recipe=fp8_delayed"
  "olmo2-delayed olmo2-7b $narrow $four_k --training.global_batch_size=16 --precision.recipe=fp8_delayed"
  "olmo2-block olmo2-7b $narrow $four_k --training.global_batch_size=16 --precision.recipe=fp8_block"
  "olmo2-bf16 olmo2-7b $narrow $four_k --training.global_batch_size=16 --precision.recipe=bf16"
  "phi4-delayed phi4-14b $narrow $lean $four_k --training.global_batch_size=8 --precision.recipe=fp8_delayed"
  "phi4-bf16 phi4-14b $narrow $four_k --training.global_batch_size=8 --precision.recipe=bf16"
  "1b-delayed llama3.2-1b $narrow $small --precision.recipe=fp8_delayed"
  "1b-bf16 llama3.2-1b $narrow $small --precision.recipe=bf16"
)
# Rows of several GPUs: mesh:NAME:N runs them on N GPUs in FP8 and BF16. The sequences of a step grow with the number of data ranks.
mesh_rows() {
  local n=$2 step="--training.seq_len=8192 --training.micro_batch_size=1 --training.reduce_dtype=bf16 --parallel.shard=$2"
  local fsdp="--parallel.reshard_after_forward=true --parallel.gradients=sharded"
  local eight=$((8 * n)) two=$((2 * n))
  case $1 in
    states) echo "$narrow $step --training.global_batch_size=$eight" ;;  # only optimizer states are sharded
    fsdp) echo "$narrow $step --training.global_batch_size=$eight $fsdp" ;;
    fsdp32) echo "$step --training.global_batch_size=$two $fsdp" ;;  # FP32 master weights, moments and gradients
    context)
      echo "--training.seq_len=16384 --training.micro_batch_size=1 --training.global_batch_size=1 --training.reduce_dtype=bf16 \
        --parallel.context=$n" ;;
    tensor) echo "$narrow $long --training.global_batch_size=8 --training.reduce_dtype=bf16 --parallel.tensor=$n" ;;
    tensor-each) echo "$narrow $long --training.global_batch_size=1 --training.reduce_dtype=bf16 --parallel.tensor=$n" ;;  # one sequence
    stages) echo "$narrow $step --training.global_batch_size=$((8 * n)) --parallel.shard=1 --parallel.pipeline=$n" ;;
    stages-even)
      echo "$narrow $step --training.global_batch_size=$((8 * n)) --parallel.shard=1 --parallel.pipeline=$n --parallel.pipeline_head_blocks=0" ;;
    stages-interleaved)
      echo "$narrow $step --training.global_batch_size=$((8 * n)) --parallel.shard=1 --parallel.pipeline=$n \
        --parallel.pipeline_schedule=interleaved --parallel.pipeline_chunks=2" ;;
    experts) echo "--model.num_hidden_layers=2 $step --training.global_batch_size=$n --parallel.expert=$n" ;;
    experts-pair) echo "--model.num_hidden_layers=2 $step --training.global_batch_size=$two --parallel.expert=$n" ;;  # two micro-batches
    experts-lanes)  # the same two micro-batches, in two lanes
      echo "--model.num_hidden_layers=2 $step --training.global_batch_size=$two --parallel.expert=$n --parallel.expert_lanes=2" ;;
    olmo2) echo "$narrow $step $four_k --training.global_batch_size=$((16 * n))" ;;
    phi3)  # its ten key heads divide between two
      echo "$narrow $step $four_k --training.global_batch_size=$((4 * n)) --parallel.tensor=2 --parallel.shard=$((n / 2)) \
        --activation_checkpoint.mode=none" ;;
    lora) echo "$lora $step --training.global_batch_size=$n" ;;
    offload) echo "$step --training.global_batch_size=$eight $fsdp --optimizer.offload=true --activation_checkpoint.mode=selective" ;;
    experts-stages)  # a mixture in two stages
      echo "--model.num_hidden_layers=4 $step --training.global_batch_size=$eight --parallel.pipeline=2 --parallel.shard=$((n / 2)) \
        --parallel.expert=$((n / 2))" ;;
    experts-context)  # experts are divided among shards, sequences between pairs
      echo "--model.num_hidden_layers=2 --training.seq_len=16384 --training.micro_batch_size=1 --training.reduce_dtype=bf16 \
        --training.global_batch_size=$((n / 2)) --parallel.context=2 --parallel.shard=$((n / 2)) --parallel.expert=$((n / 2))" ;;
    *) return 1 ;;
  esac
}
run_mesh() {
  local name=$1 n=$2 recipe=$3 config=llama3.1-8b settings status
  settings=$(mesh_rows "$name" "$n") || { echo "tools/gpu.sh: no rows $name" >&2; return 2; }
  [[ $name == experts* ]] && config=mixtral-8x7b
  [ "$name" = olmo2 ] && config=olmo2-7b
  [ "$name" = phi3 ] && config=phi4-14b
  timeout 150 "$bin/octet" launch -n "$n" -- bench step "configs/$config.toml" --run.device=cuda $settings \
    --precision.recipe="$recipe" --seconds 10 >"$out/$name-$n-$recipe.log" 2>&1
  status=$?
  grep -E "tok/s/gpu,|octet:|wait for ranks" "$out/$name-$n-$recipe.log" | cut -c 1-250 | sed "s/^/$name-$n-$recipe: /"
  return $status
}
# Two ranks must write the same model however they keep weights and gradients, whether NCCL or copy engines gather.
# Two runs that divide sequences among all GPUs must write the same model, and so must two that divide layers between two GPUs. If a copy
# came too early, no two runs would be equal. Their loss must be that of one GPU within half a per cent. Rounding in another order moved it
# by 0.013% after 40 steps. Losing a part of a sequence, or seeing it twice, would change a large part of the gradient.
# Pipeline stages, whose messages copy engines fetch, must write the model of one GPU. They would add up the norm of the gradient in another
# order, so these runs do not clip it.
same_model() {
  local corpus="$out/same-corpus" status=0 train name
  "$bin/octet" data prepare --input README.md docs --tokenizer byte --output "$corpus" >"$out/same.log" 2>&1 || return 1
  train="train configs/quickstart.toml --run.device=cuda --run.deterministic=true --training.steps=40 --training.micro_batch_size=2"
  same_run() {  # NAME RANKS OPTION...
    local name=$1 ranks=$2
    shift 2
    rm -rf "$out/same-$name"
    "$bin/octet" launch -n "$ranks" -- $train --data.source="[{path=\"$corpus\"}]" --run.output_dir="$out/same-$name" "$@" \
      >>"$out/same.log" 2>&1
  }
  same_as() { cmp "$out/same-$1/model/model.safetensors" "$out/same-$2/model/model.safetensors" || status=1; }
  last_loss() { grep -o '"loss":[0-9.]*' "$out/same-$1/metrics.jsonl" | tail -n 1 | cut -d : -f 2; }
  local whole="--parallel.gradients=whole" global="--training.global_batch_size=$((2 * gpus))"
  local deep="--training.global_batch_size=8 --model.num_hidden_layers=4 --optimizer.max_grad_norm=0"
  local experts="--model.model_type=mixtral --model.num_local_experts=4 --model.num_experts_per_tok=2"
  local interleaved="--parallel.pipeline=2 --parallel.pipeline_schedule=interleaved --parallel.pipeline_chunks=2"
  same_run kept 2 --training.global_batch_size=4 $whole --parallel.reshard_after_forward=false &&
    same_run resharded 2 --training.global_batch_size=4 $whole --parallel.reshard_after_forward=true &&
    same_run sharded 2 --training.global_batch_size=4 --parallel.gradients=sharded --parallel.reshard_after_forward=true &&
    same_run context 1 $global --parallel.context=1 && for name in context-a context-b; do
      same_run $name "$gpus" $global --parallel.context="$gpus" || break
    done && for name in tensor-a tensor-b; do
      same_run $name 2 $global --parallel.tensor=2 || break
    done && same_run stage 1 $deep && same_run stages 2 $deep --parallel.pipeline=2 && same_run interleaved 2 $deep $interleaved &&
    same_run mixture 1 $deep $experts && same_run mixture-stages 2 $deep $experts $interleaved || status=1
  same_as kept resharded
  same_as kept sharded
  same_as context-a context-b
  same_as tensor-a tensor-b
  same_as stage stages
  same_as stage interleaved
  same_as mixture mixture-stages
  for name in context-a tensor-a; do
    echo "last loss: one GPU $(last_loss context), $name $(last_loss $name)"
    awk -v a="$(last_loss context)" -v b="$(last_loss $name)" 'BEGIN { exit !(a > 0 && b > 0 && (a - b) ^ 2 < (0.005 * a) ^ 2) }' || status=1
  done
  rm -rf "$out"/same-*
  return $status
}
run_row() {
  local name=$1 config=$2
  shift 2
  timeout 120 "$bin/octet" bench step "configs/$config.toml" --run.device=cuda "$@" --seconds 10 >"$out/$name.log" 2>&1
  local status=$?
  grep -E "tok/s/gpu,|octet:" "$out/$name.log" | sed "s/^/$name: /"
  return $status
}

run_checkpoint() {
  timeout 300 "$bin/octet" launch -n "$gpus" -- bench checkpoint configs/llama3.2-1b.toml --saves 3 --run.device=cuda \
    --run.output_dir="$out/checkpoint" $narrow --training.seq_len=8192 --training.micro_batch_size=2 --training.global_batch_size=$((32 * gpus))
}

run_gate() {
  local kind status=0
  for kind in quick full; do
    "$bin/octet" doctor --gate $kind --gpus "$gpus" --folder "$out" --json >"$out/gate-$kind.json" 2>"$out/gate-$kind.log"
    [ $? -eq 0 ] || status=1
    cat "$out/gate-$kind.log" "$out/gate-$kind.json" | cut -c 1-2000
  done
  return $status
}

corpus="$out/corpus"
prepare_corpus() {
  [ -e "$corpus.idx" ] || "$bin/octet" data prepare --input README.md docs --tokenizer byte --output "$corpus" >"$out/corpus.log" 2>&1
}

# supervised NAME CONFIG EVENTS OPTION...: a run on all GPUs whose last rank gets signals: "45:KILL 85:STOP" are SIGKILL after step 45 and
# SIGSTOP after step 85. "99:END" kills the supervisor, so that the run saves and exports nothing. Prints what the supervisor said, and the
# parts of each attempt in seconds. `gate` is for --gate.
supervised() {
  local name=$1 config=$2 events=$3 run="$out/$1" pid status event
  shift 3
  rm -rf "$run"
  prepare_corpus || return
  "$bin/octet" launch -n "$gpus" --supervise --gate "${gate:-auto}" -- train "configs/$config.toml" --run.device=cuda --data.source="[{path=\"$corpus\"}]" \
    --run.output_dir="$run" --training.seq_len=2048 --training.micro_batch_size=1 --training.global_batch_size=8 \
    --metrics.log_freq=1 --evaluation.interval=0 --comm.stall_s=5 "$@" >"$run.log" 2>&1 &
  pid=$!
  for event in $events; do
    until [ "$(grep -o '"step":[0-9]*' "$run/metrics.jsonl" 2>/dev/null | tail -n 1 | cut -d : -f 2)0" -ge "${event%:*}0" ]; do
      kill -0 $pid 2>/dev/null || break
      sleep 0.05
    done
    if [ "${event#*:}" = END ]; then
      kill -s KILL $pid
    else
      kill -s "${event#*:}" "$(pgrep -P $pid | tail -n 1)"
    fi
  done
  wait $pid
  status=$?
  [[ $events != *END || $status -ne 137 ]] || status=0
  grep -E "^octet launch:|from memory|no snapshots|octet:" "$run.log" | cut -c 1-300
  python3 -c '
import json, sys
for path in sys.argv[1:]:
    attempt = json.load(open(path))
    print(attempt["attempt"], "code", attempt["code"], "steps", attempt["from_step"], "to", attempt["last_step"], attempt["seconds"])
' "$run"/attempts/*.json
  rm -rf "$run/checkpoints" "$run/model"
  return $status
}

recovery_disk() {
  gate=off supervised recovery-disk llama3.2-1b "45:KILL 85:KILL 125:STOP" $narrow --training.steps=140 --checkpoint.interval=20 \
    --checkpoint.memory_every=0
}
recovery_memory() {
  gate=off supervised recovery-memory llama3.2-1b "45:KILL 85:KILL 125:STOP" $narrow --training.steps=140 --checkpoint.interval=70
}
# With gates, a model of 48 GB that is not saved at all.
recovery_8b() {
  supervised recovery-8b llama3.1-8b "25:KILL 45:KILL 60:END" $narrow $lean --training.steps=1000 --checkpoint.interval=0 \
    --checkpoint.memory_every=5
}

# The mean time of a step, in milliseconds, over the last 60 of 100, with snapshots in memory and without.
run_snapshots() {
  local every status=0
  for every in 0 10 auto 0; do
    gate=off supervised snapshots llama3.2-1b "" $narrow --training.steps=100 --checkpoint.interval=0 --checkpoint.memory_every=$every >/dev/null ||
      status=1
    python3 -c '
import json, sys
steps = [json.loads(line) for line in open(sys.argv[1])][-60:]
print("memory_every", sys.argv[2], sum(s["step_time_s"] for s in steps) / len(steps) * 1e3)
' "$out/snapshots/metrics.jsonl" $every || status=1
  done
  return $status
}

# Ranks that must hold the same bits compare them after every step, and compute the same micro-batch after every tenth. A difference ends
# the run.
run_replicas() {
  local mesh recipe status=0 eight_heads="--model.hidden_size=256 --model.num_attention_heads=8 --model.num_key_value_heads=4"
  prepare_corpus || return
  for recipe in bf16 fp8_delayed fp8_current fp8_rowwise fp8_block; do
    for mesh in "replicate=$gpus" "tensor=$gpus" "replicate=2 --parallel.tensor=2" "replicate=2 --parallel.context=2"; do
      [[ $gpus -lt 4 && $mesh == *\ * ]] && continue
      rm -rf "$out/replicas"
      "$bin/octet" launch -n "$gpus" -- train configs/quickstart.toml --run.device=cuda --data.source="[{path=\"$corpus\"}]" \
        --run.output_dir="$out/replicas" $eight_heads --training.steps=40 --training.micro_batch_size=2 \
        --training.global_batch_size=$((2 * gpus)) --precision.recipe=$recipe --health.replicas_every=1 --health.sdc_every=10 --parallel.$mesh \
        >"$out/replicas.log" 2>&1 || { status=1; echo "$recipe $mesh:"; tail -n 5 "$out/replicas.log"; }
    done
  done
  return $status
}

# families: NAME MESH OPTION... trains 20 steps on all GPUs and on one, and saves. The last losses must agree within half a per cent.
wide="--model.hidden_size=256 --model.num_attention_heads=8"
qwen3_moe="--model.model_type=qwen3_moe $wide --model.num_key_value_heads=4 --model.head_dim=32 --model.num_experts=8 \
  --model.num_experts_per_tok=2 --model.moe_intermediate_size=128 --model.norm_topk_prob=true"
families=(
  "gpt-neo shard=$gpus $wide --model.intermediate_size=1024 --model.num_hidden_layers=2 --model.vocab_size=256 \
    --model.max_position_embeddings=512 --training.seq_len=128"
  "qwen2 shard=$gpus --model.model_type=qwen2 $wide --model.num_key_value_heads=4"
  "qwen3-tensor tensor=$gpus --model.model_type=qwen3 $wide --model.num_key_value_heads=4 --model.head_dim=32"
  "olmo2 shard=$gpus --model.model_type=olmo2 $wide --model.num_key_value_heads=4"
  "phi3-tensor tensor=$gpus --model.model_type=phi3 $wide --model.num_key_value_heads=4"
  "qwen3-moe shard=$gpus --parallel.expert=2 $qwen3_moe"
  "qwen3-moe-dense shard=$gpus --parallel.expert=2 $qwen3_moe --model.num_hidden_layers=4 --model.decoder_sparse_step=2"
  "router-biases shard=$gpus --parallel.expert=2 $qwen3_moe --model.router_bias_update_rate=0.001"
  "offload shard=$gpus $wide --model.num_key_value_heads=4 --optimizer.offload=true --parallel.gradients=sharded"
  "fp8-moments shard=$gpus $wide --model.num_key_value_heads=4 --optimizer.state_dtype=fp8"
  "lora shard=$gpus $wide --model.num_key_value_heads=4 --lora.rank=8"
  "lora-experts shard=$gpus --parallel.expert=2 $qwen3_moe --lora.rank=8"
  "lora-tensor tensor=$gpus $wide --model.num_key_value_heads=4 --lora.rank=8 --lora.dropout=0.1"
  "mixture-stages pipeline=2 $qwen3_moe"
  "context-tail context=$gpus $wide --model.num_key_value_heads=4 --model.max_position_embeddings=2048 \
    --training.seq_len=$((2 * gpus * 192))"  # each rank has two chunks of 192 positions, whose last tile has 64 of 128 keys
)
run_family() {  # NAME MESH OPTION...
  local name=$1 mesh=$2 run="$out/families" config=configs/quickstart.toml n status=0
  [ "$name" = gpt-neo ] && config=configs/gpt-neo-1.3b.toml  # the quickstart has keys that GPT-Neo lacks
  shift 2
  prepare_corpus || return
  for n in 1 "$gpus"; do
    rm -rf "$run"
    [ "$n" -eq 1 ] && layout="" || layout="--parallel.$mesh"
    options=()
    for option in "$@"; do [[ $n -eq 1 && $option == --parallel.* ]] || options+=("$option"); done
    "$bin/octet" launch -n "$n" -- train "$config" --run.device="${DEVICE:-cuda}" --data.source="[{path=\"$corpus\"}]" \
      --run.output_dir="$run" --training.steps=20 --training.micro_batch_size=2 --training.global_batch_size=$((2 * gpus)) \
      --evaluation.interval=0 --checkpoint.interval=10 $layout "${options[@]}" >"$out/families-$name-$n.log" 2>&1 ||
      { status=1; tail -n 3 "$out/families-$name-$n.log"; }
    cp "$run/metrics.jsonl" "$out/families-$name-$n.jsonl" || status=1
  done
  python3 -c '
import json, sys
one, all = ([json.loads(line) for line in open(path)][-1] for path in sys.argv[1:])
print("last loss:", one["loss"], "on one GPU,", all["loss"], "on all, after step", all["step"])
sys.exit(one["step"] != 20 or all["step"] != 20 or abs(one["loss"] - all["loss"]) > 0.005 * one["loss"])
' "$out/families-$name-1.jsonl" "$out/families-$name-$gpus.jsonl" || status=1
  return $status
}

# Small runs on the CPU and on a GPU. Their last losses must agree within half a per cent. At a learning rate of 0.01 the mixture's losses
# differ by 2% between meshes of one device, because rounding decides which expert takes a token; at 0.002 they differ by 0.1%.
run_devices() {
  local device run status=0 name train
  prepare_corpus || return
  python3 -c '
import json
for i in range(400):
    turns = [{"role": role, "content": f"{role} says {i} and {turn}. " * (1 + (i + turn) % 5)} for turn in range(3) for role in ("user", "assistant")]
    print(json.dumps({"messages": turns[:2 + 2 * (i % 3)]}))
' >"$out/chats.jsonl"
  [ -e "$out/chats.idx" ] || "$bin/octet" data prepare --input "$out/chats.jsonl" --tokenizer byte --chat chatml --output "$out/chats" >"$out/chats.log" 2>&1 ||
    return
  for device in cpu cuda; do
    run="$out/devices-$device"
    rm -rf "$run"-*
    train="$bin/octet train configs/quickstart.toml --run.device=$device --training.micro_batch_size=2 --training.global_batch_size=8 --metrics.log_freq=1"
    {
      $train --data.source="[{path=\"$out/chats\"}]" --data.packing=documents --training.steps=40 --evaluation.interval=5 --evaluation.keep_best=true \
        --evaluation.patience=3 --run.output_dir="$run-chats" &&
        $train --data.source="[{path=\"$corpus\"}]" --training.steps=10 --run.output_dir="$run-changed" &&
        $train --data.source="[{path=\"$corpus\"}]" --training.steps=20 --run.output_dir="$run-changed" --checkpoint.allow=recipe --precision.recipe=bf16 &&
        $train --data.source="[{path=\"$corpus\"}]" --training.steps=30 --run.output_dir="$run-changed" --checkpoint.allow=recipe,seq_len --training.seq_len=64 &&
        $train --data.source="[{path=\"$corpus\"}]" --training.steps=20 --run.output_dir="$run-experts" $qwen3_moe --lora.rank=8 --optimizer.lr=0.002
    } >"$run.log" 2>&1 || { status=1; tail -n 3 "$run.log"; }
  done
  for name in chats changed experts; do
    python3 -c '
import json, sys
cpu, gpu = ([json.loads(line) for line in open(path)] for path in sys.argv[2:])
print(sys.argv[1], "after", cpu[-1]["step"], "and", gpu[-1]["step"], "steps: loss", cpu[0]["loss"], "to", cpu[-1]["loss"], "on the CPU,", gpu[0]["loss"], "to",
      gpu[-1]["loss"], "on the GPU")
sys.exit(cpu[-1]["step"] != gpu[-1]["step"] or abs(cpu[-1]["loss"] - gpu[-1]["loss"]) > 0.005 * cpu[-1]["loss"])
' $name "$out/devices-cpu-$name/metrics.jsonl" "$out/devices-cuda-$name/metrics.jsonl" || status=1
  done
  return $status
}

run_amx() {
  local run="$out/amx.toml" cpus status=0 round recipe tests
  tests=$(test_program octet_test_kernels)
  "$tests" --gtest_filter='Tile*:*Gemm*:*Attention*' >"$out/amx-tests.log" 2>&1 || status=1
  grep -E '^\[  (FAILED|PASSED|SKIPPED)' "$out/amx-tests.log" | sort -u
  grep -q 'OK.*AmxEqualsEmulation' "$out/amx-tests.log" || { echo "this processor has no AMX"; return 1; }
  "$bin/octet" train configs/quickstart.toml --print-config --model.hidden_size=512 --model.intermediate_size=1408 --model.num_hidden_layers=6 \
    --model.num_attention_heads=8 --model.num_key_value_heads=8 --model.vocab_size=4096 --training.seq_len=512 --training.micro_batch_size=4 \
    --training.global_batch_size=4 >"$run" || return
  cpus="taskset -c 2,3"
  for round in 1 2; do
    for recipe in bf16 fp8_delayed; do
      for amx in on off; do
        OCTET_TILES=$amx $cpus "$bin/octet" bench step "$run" --seconds 5 --precision.recipe=$recipe >"$out/amx-$recipe-$amx-$round.log" 2>&1 || status=1
        grep -m 1 tok/s "$out/amx-$recipe-$amx-$round.log" | cut -d , -f 1 | sed "s/^/$recipe, tiles $amx: /"
      done
    done
    $cpus python3 tools/bench_torch_cpu.py step "$run" --seconds 5 | tail -n 1
  done
  timeout 150 $cpus python3 tools/bench_torch_cpu.py step "$run" --seconds 5 --compile | tail -n 1
  return $status
}

# Installs WHEEL with octet[cuda]. Without a network it uses the NVIDIA libraries of this machine's Python instead. The program must find
# them without LD_LIBRARY_PATH.
run_wheel() (
  unset LD_LIBRARY_PATH
  wheel=${WHEEL:-$(ls -t dist/octet-*.whl | head -n 1)} venv=$out/wheel
  rm -rf "$venv" "$out/wheel-run" "$out/wheel-run-all"
  python3 -m venv "$venv" || return
  if ! "$venv/bin/pip" install --quiet --retries 0 "${wheel}[cuda]" >"$out/wheel-pip.log" 2>&1; then
    "$venv/bin/pip" install --quiet --no-index --no-deps "$wheel" || return
    site=$(echo "$venv"/lib/python3*/site-packages)
    python3 - "$site/nvidia" <<'PYTHON' || return
import os, sys
os.symlink(next(f"{folder}/nvidia" for folder in sys.path if os.path.isdir(f"{folder}/nvidia")), sys.argv[1])
PYTHON
  fi
  octet=$venv/bin/octet
  "$octet" doctor || return
  "$octet" data prepare --input README.md docs --tokenizer byte --output "$out/wheel-run/corpus" >"$out/wheel.log" 2>&1 &&
    "$octet" train "$venv/share/octet/configs/quickstart.toml" --run.device=cuda --training.steps=20 --run.output_dir="$out/wheel-run" \
      --data.source="[{path=\"$out/wheel-run/corpus\"}]" >>"$out/wheel.log" 2>&1 &&
    "$octet" launch -n "$gpus" -- train "$venv/share/octet/configs/quickstart.toml" --run.device=cuda --training.steps=20 \
      --training.micro_batch_size=2 --training.global_batch_size=$((2 * gpus)) --run.output_dir="$out/wheel-run-all" \
      --data.source="[{path=\"$out/wheel-run/corpus\"}]" >>"$out/wheel.log" 2>&1
  status=$?
  tail -n 5 "$out/wheel.log"
  return $status
)

# shellcheck source=tools/gpu_work.sh
source tools/gpu_work.sh

run_part() {
  local name=$1 tool run row recipe family
  case $name in
    doctor) part doctor run_doctor ;;
    tests) part tests run_tests ;;
    sanitize) for tool in memcheck racecheck initcheck; do part "$tool" sanitize "$tool"; done ;;
    memcheck | racecheck | initcheck) part "$name" sanitize "$name" ;;
    checkpoint) part checkpoint run_checkpoint ;;
    gate) part gate run_gate ;;
    recovery) for run in disk memory 8b; do part recovery-$run recovery_$run; done ;;
    recovery-*) part "$name" "recovery_${name#recovery-}" ;;
    snapshots) part snapshots run_snapshots ;;
    replicas) part replicas run_replicas ;;
    kernels) part kernels "$bin/octet" bench kernels --json "$out/kernels.json" ;;
    ranks)
      part ranks run_ranks
      part same-model same_model
      part bench-comm "$bin/octet" bench comm --json "$out/comm.json"
      ;;
    same-model) part same-model same_model ;;
    wheel) part wheel run_wheel ;;
    families) for family in "${families[@]}"; do part "${family%% *}" run_family $family; done ;;
    family:*) for family in "${families[@]}"; do if [ "${family%% *}" = "${name#family:}" ]; then part "${family%% *}" run_family $family; fi; done ;;
    devices) part devices run_devices ;;
    amx) part amx run_amx ;;
    test:*) part "$name" "$(test_program)" --gtest_filter="${name#test:}" ;;
    quality:*) part "$name" run_quality quality "${name#*:}" ;;
    quality-long:*) each_run=--training.steps=3072 part "$name" run_quality quality-long "${name#*:}" ;;
    long:*) for family in "${families[@]}"; do if [ "${family%% *}" = "${name#long:}" ]; then part "$name" run_long $family; fi; done ;;
    long-tiles) part long-tiles run_long_tiles ;;
    stragglers) part stragglers run_stragglers ;;
    torchrun) part torchrun run_torchrun ;;
    interface) part interface run_interface ;;
    gemm-file) part gemm-file run_gemm_file ;;
    work) work_off ;;
    rows) for row in "${rows[@]}"; do part "${row%% *}" run_row $row; done ;;
    row:*) for row in "${rows[@]}"; do if [ "${row%% *}" = "${name#row:}" ]; then part "${row%% *}" run_row $row; fi; done ;;
    mesh:*:*)
      row=${name#mesh:}
      for recipe in fp8_delayed bf16; do part "${row%:*}-${row#*:}-$recipe" run_mesh "${row%:*}" "${row#*:}" "$recipe"; done
      ;;
    *) echo "tools/gpu.sh: unknown part $name" >&2; exit 2 ;;
  esac
}
for name in "$@"; do run_part "$name"; done
printf '\n'
printf '%s\n' "${verdict[@]}"
! printf '%s\n' "${verdict[@]}" | grep -q ^FAIL
