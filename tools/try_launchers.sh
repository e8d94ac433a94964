#!/usr/bin/env bash
# tools/try_launchers.sh OCTET: trains with two ranks on this machine's CPUs under several launchers, and checks that the losses equal those
# of `octet launch`. The launchers are Open MPI's mpirun; torchrun, if $PYTHON (default python3) has torch; and, for root, Slurm's srun and
# sbatch with examples/slurm.sbatch. Slurm's daemons run from a temporary folder and end with this script. For root, two agents of torchrun
# and a slurmd on each of two hosts follow; the hosts are namespaces of this machine with networks of their own. If nothing fails, the last
# line lists what ran. Packages: openmpi-bin slurmctld slurmd slurm-client munge iproute2
set -euo pipefail
octet=$(realpath "$1")
work=$(mktemp -d)
started=()
ran=()
skipped=()
finish() {
  for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait
  rm -rf "$work"
}
trap finish EXIT

cd "$(dirname "$(realpath "$0")")/.."
"$octet" data prepare --input docs README.md --tokenizer byte --output "$work/corpus" >/dev/null 2>&1
train=("$octet" train configs/quickstart.toml "--data.source=[{path=\"$work/corpus\"}]" --parallel.replicate=2 --training.micro_batch_size=8
  --training.steps=40 --evaluation.interval=0)
losses() { sed -nE 's/.*"step":([0-9]+),"loss":([0-9.e-]+).*/\1 \2/p' "$work/$1/metrics.jsonl"; }
try() {
  local name=$1
  shift
  "$@" "--run.output_dir=$work/$name" >"$work/$name.log" 2>&1 || { tail -n 20 "$work/$name.log"; echo "FAIL $name"; exit 1; }
  [ "$(losses "$name")" = "$(losses launch)" ] || { echo "FAIL $name: other losses than octet launch"; exit 1; }
  [ -n "$(losses "$name")" ] || { echo "FAIL $name: no losses"; exit 1; }
  echo "PASS $name"
  ran+=("$name")
}
skip() {
  echo "SKIP $1: $2"
  skipped+=("$1")
}
say_what_ran() { echo "ran: ${ran[*]}; skipped: ${skipped[*]:-none}"; }

try launch "$octet" launch -n 2 -- "${train[@]:1}"
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 try mpirun mpirun --oversubscribe -n 2 "${train[@]}"

python=${PYTHON:-python3}
torchrun=("$python" -m torch.distributed.run --no-python)  # the module that the program torchrun runs
if "$python" -c 'import torch.distributed.run' 2>/dev/null; then
  try torchrun "${torchrun[@]}" --nproc-per-node=2 "${train[@]}"
  try torchrun-standalone "${torchrun[@]}" --standalone --nproc-per-node=2 "${train[@]}"
  try torchrun-c10d "${torchrun[@]}" --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:0 --nproc-per-node=2 "${train[@]}"
else
  skip torchrun "$python has no torch; set PYTHON to a Python that has it"
fi

if [ "$(id -u)" -ne 0 ]; then
  skip srun "Slurm's daemons need root"
  skip sbatch "Slurm's daemons need root"
  skip hosts "namespaces need root"
  say_what_ran
  exit 0
fi
host=$(hostname -s)
mkdir -p "$work/munge" "$work/state"
head -c 1024 /dev/urandom >"$work/munge/key"
chmod 700 "$work/munge"
chmod 400 "$work/munge/key"
chmod 755 "$work"
munged --foreground --force --key-file="$work/munge/key" --socket="$work/munge.socket" --pid-file="$work/munge/pid" \
  --seed-file="$work/munge/seed" --log-file="$work/munge/log" >/dev/null 2>&1 &
started+=($!)
# slurm_conf FOLDER: what both clusters of this script have in common. Their daemons write into FOLDER.
slurm_conf() {
  cat <<TEXT
SlurmUser=root
SlurmctldPort=16817
SlurmdPort=16818
AuthType=auth/munge
AuthInfo=socket=$work/munge.socket,cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
MpiDefault=none
ReturnToService=2
StateSaveLocation=$1/state
SlurmdSpoolDir=$1/spool-%n
SlurmctldPidFile=$1/slurmctld.pid
SlurmdPidFile=$1/slurmd-%n.pid
TEXT
}
{
  slurm_conf "$work"
  cat <<TEXT
ClusterName=here
SlurmctldHost=$host(127.0.0.1)
GresTypes=gpu
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) Gres=gpu:2 State=UNKNOWN
PartitionName=all Nodes=$host Default=YES State=UP OverSubscribe=FORCE:4
TEXT
} >"$work/slurm.conf"
printf 'Name=gpu File=%s\n' /dev/null /dev/zero >"$work/gres.conf"  # fake GPUs, only for Slurm's accounting
export SLURM_CONF=$work/slurm.conf
sleep 1
slurmctld -D >"$work/slurmctld.log" 2>&1 &
started+=($!)
slurmd -D >"$work/slurmd.log" 2>&1 &
started+=($!)
for ((i = 0; i < 30; ++i)); do
  ! sinfo -h -o %T 2>/dev/null | grep -q idle || break
  sleep 1
done
try srun timeout 120 srun -n 2 --overcommit "${train[@]}"

# Asks the job to stop after its first steps, as Slurm does before the time limit. The job must be requeued and continue.
submit() {
  local job metrics=$work/sbatch/metrics.jsonl options=(--nodes=1 --gpus-per-node=2 --cpus-per-task=1 --overcommit --time=10)
  job=$(RANKS=2 SPARES=0 PATH=$(dirname "$octet"):$PATH sbatch --parsable "${options[@]}" --output="$work/job.log" \
    examples/slurm.sbatch "${train[@]:2}" --checkpoint.resume=auto "$@") || return
  for ((i = 0; i < 600; ++i)); do
    ! [ -s "$metrics" ] || break
    sleep 0.1
  done
  scancel --signal=TERM "$job"
  for ((i = 0; i < 300; ++i)); do
    [ -n "$(squeue -h -j "$job")" ] || break
    sleep 1
  done
  cat "$work/job.log"
  scontrol show job -o "$job"
  [[ $(scontrol show job -o "$job") == *" JobState=COMPLETED "*" Restarts=1 "* ]]
}
try sbatch submit

# Two hosts. Each has a network, a host name and an /etc/hosts of its own; a bridge, which no network of this machine sees, joins them.
host_pids=()
become_on() {  # become_on HOST COMMAND...: the process that calls this becomes the command
  local pid=${host_pids[$1]}
  shift
  exec nsenter --target "$pid" --net --uts --mount --wd="$PWD" "$@"
}
on() { (become_on "$@"); }
make_hosts() {
  printf '%s\n' '127.0.0.1 localhost' '10.92.0.1 host0' '10.92.0.2 host1' >"$work/hosts"
  unshare --net sleep 3600 &
  local bridge=$! i
  started+=("$bridge")
  for i in 0 1; do
    unshare --net --uts --mount sh -c 'hostname "$1" && mount --bind "$2" /etc/hosts && exec sleep 3600' - "host$i" "$work/hosts" &
    host_pids[i]=$!
    started+=($!)
  done
  sleep 1
  nsenter --target "$bridge" --net ip link add bridge type bridge &&
    nsenter --target "$bridge" --net ip link set bridge up || return
  for i in 0 1; do
    nsenter --target "$bridge" --net ip link add "port$i" type veth peer name cable netns "${host_pids[i]}" &&
      nsenter --target "$bridge" --net ip link set "port$i" master bridge up &&
      on $i ip address add "10.92.0.$((i + 1))/24" dev cable &&
      on $i ip link set cable up && on $i ip link set lo up || return
  done
}
if ! make_hosts >"$work/hosts.log" 2>&1; then
  skip hosts "no namespaces here: $(tail -n 1 "$work/hosts.log")"
  say_what_ran
  exit 0
fi
OCTET_TOKEN=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
export OCTET_TOKEN

agents() {  # two agents of torchrun, one on each host
  local one status=0
  agent() { on "$1" timeout 120 "${torchrun[@]}" --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=host0:29400 --nproc-per-node=1 "${@:2}"; }
  agent 1 "$@" &
  one=$!
  agent 0 "$@" || status=$?
  wait $one || status=$?
  return $status
}
if "$python" -c 'import torch.distributed.run' 2>/dev/null; then
  try torchrun-two-hosts agents "${train[@]}"
else
  skip torchrun-two-hosts "$python has no torch"
fi

mkdir -p "$work/two/state"
{
  slurm_conf "$work/two"
  cat <<TEXT
ClusterName=two
SlurmctldHost=host0(10.92.0.1)
NodeName=host0 NodeAddr=10.92.0.1 CPUs=1 State=UNKNOWN
NodeName=host1 NodeAddr=10.92.0.2 CPUs=1 State=UNKNOWN
PartitionName=all Nodes=host[0-1] Default=YES State=UP OverSubscribe=FORCE:4
TEXT
} >"$work/two/slurm.conf"
export SLURM_CONF=$work/two/slurm.conf
become_on 0 slurmctld -D >"$work/two/slurmctld.log" 2>&1 &
started+=($!)
for i in 0 1; do
  become_on $i slurmd -D >"$work/two/slurmd$i.log" 2>&1 &
  started+=($!)
done
for ((i = 0; i < 30; ++i)); do
  [ "$(on 0 sinfo -h -N -o %T 2>/dev/null | grep -c idle)" -ne 2 ] || break
  sleep 1
done
try srun-two-hosts on 0 timeout 120 srun --nodes=2 --ntasks-per-node=1 "${train[@]}"
# One `octet launch` on each host, which finds the other one in Slurm's variables.
try srun-launch-two-hosts on 0 timeout 120 srun --nodes=2 --ntasks-per-node=1 "$octet" launch --hosts auto -n 1 --supervise -- "${train[@]:1}"
say_what_ran
