"""Reads /metrics of a run and of a supervisor with prometheus_client's parser of the OpenMetrics text format, which refuses what the
standard forbids, and compares the figures with metrics.jsonl, with checkpoints, with a rank that is killed and with the GPUs of a library
that stands in for NVML."""

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from prometheus_client.openmetrics.parser import text_string_to_metric_families

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TYPES = {"octet_step": "gauge", "octet_loss": "gauge", "octet_step_seconds": "gauge", "octet_tokens": "counter",
         "octet_checkpoint_step": "gauge", "octet_checkpoint_age_seconds": "gauge", "octet_restarts": "counter",
         "octet_lost_seconds": "counter", "octet_rank_compute_seconds": "gauge", "octet_gpu_clock_hertz": "gauge",
         "octet_gpu_power_watts": "gauge", "octet_gpu_energy_joules": "counter", "octet_gpu_temperature_celsius": "gauge", "octet_gpu_xid": "counter"}

# Two GPUs. The second one does not know its power, and the driver reports three Xids of it. The functions and numbers are those of NVML's
# public interface.
NVML = r"""
struct event { void *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; };
static int gpus[2];
static int number(void *device) { return (int *)device - gpus; }
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = &gpus[index]; return 0; }
int nvmlDeviceGetClockInfo(void *device, int clock, unsigned *mhz) { *mhz = clock == 1 ? 1755 - 540 * number(device) : 9; return 0; }
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) { *milliwatts = 612500; return number(device) == 0 ? 0 : 3; }
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
  *millijoules = 5000000250ull;
  return number(device) == 0 ? 0 : 3;
}
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *degrees) { *degrees = sensor == 0 ? 61 + number(device) : 9; return 0; }
int nvmlEventSetCreate(void **set) { *set = gpus; return 0; }
int nvmlEventSetFree(void *set) { return 0; }
int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set) { return types == 8 && set == gpus ? 0 : 2; }
int nvmlEventSetWait_v2(void *set, struct event *event, unsigned ms) {
  static int left = 3;
  if (left == 0 || ms != 0) return 10;
  --left;
  event->device = &gpus[1];
  event->type = 8;
  event->data = 79;
  return 0;
}
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, "", error.read().decode()


def samples(port):
    """Returns the values by name and labels."""
    status, kind, text = get(port, "/metrics")
    assert status == 200 and kind == "application/openmetrics-text; version=1.0.0; charset=utf-8", (status, kind)
    found = {}
    for family in text_string_to_metric_families(text):
        assert TYPES[family.name] == family.type, family
        assert family.documentation, family
        for sample in family.samples:
            found[sample.name, *sorted(sample.labels.items())] = sample.value
    return found


def wait_for(port, condition, process):
    """Waits until the figures satisfy the condition, and returns them."""
    for _ in range(1200):
        try:
            found = samples(port)
            if condition(found):
                return found
        except (ConnectionError, urllib.error.URLError):
            pass
        assert process.poll() is None, "it ended: " + process.stderr.read()
        time.sleep(0.05)
    raise AssertionError(f"not within a minute: {found}")


started = []


def start(octet, folder, *arguments, libraries=None):
    environment = dict(os.environ, LD_LIBRARY_PATH=str(libraries)) if libraries else None
    started.append(subprocess.Popen([octet, *arguments], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                    env=environment))
    return started[-1]


def stand_in_for_nvml(folder):
    (folder / "nvml.c").write_text(NVML)
    compiler = os.environ.get("CC") or "cc"
    subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", "libnvidia-ml.so.1", "nvml.c"], cwd=folder, check=True)
    return folder


def main():
    octet = sys.argv[1]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "texts.txt").write_text(" ".join(re.findall(r"\w+", (ROOT / "README.md").read_text())) * 20)
        subprocess.run([octet, "data", "prepare", "--input", "texts.txt", "--tokenizer", "byte", "--output", "corpus"], cwd=folder,
                       check=True, capture_output=True)
        port = free_port()
        train = ["train", str(ROOT / "configs" / "quickstart.toml"), '--data.source=[{path="corpus"}]', f"--metrics.port={port}",
                 "--training.steps=100000", "--checkpoint.interval=4", "--metrics.log_freq=1", "--training.micro_batch_size=1",
                 "--training.global_batch_size=2", "--training.seq_len=64", "--run.threads=1", "--evaluation.interval=0"]

        run = start(octet, folder, *train, "--run.output_dir=alone")
        saved = wait_for(port, lambda found: ("octet_checkpoint_step",) in found, run)
        assert saved["octet_checkpoint_step",] % 4 == 0 and saved["octet_checkpoint_age_seconds", ("place", "storage")] < 60
        assert saved["octet_tokens_total",] % 128 == 0 and 0 < saved["octet_step_seconds",] < 60
        assert get(port, "/healthz")[0] == 200
        losses = [json.loads(line)["loss"] for line in (folder / "alone" / "metrics.jsonl").read_text().splitlines() if line.endswith("}")]
        assert any(abs(saved["octet_loss",] - loss) < 1e-9 for loss in losses), (saved, losses)
        run.send_signal(signal.SIGTERM)
        run.communicate()
        assert run.returncode == 75, run.returncode

        run = start(octet, folder, "compare", *train[1:], "--recipes", "fp32,bf16", "--run.output_dir=compared")
        wait_for(port, lambda found: found.get(("octet_step", ("rank", "0")), 0) >= 5, run)
        run.send_signal(signal.SIGTERM)
        run.communicate()
        assert run.returncode == 75, run.returncode

        run = start(octet, folder, "launch", "-n", "2", "--supervise", "--", *train, "--run.output_dir=kept",
                    libraries=stand_in_for_nvml(folder))
        both = wait_for(port, lambda found: found.get(("octet_step", ("rank", "1")), 0) >= 5, run)
        gpus = {key: value for key, value in both.items() if key[0].startswith("octet_gpu")}
        assert gpus == {("octet_gpu_clock_hertz", ("gpu", "0")): 1755e6, ("octet_gpu_clock_hertz", ("gpu", "1")): 1215e6,
                        ("octet_gpu_power_watts", ("gpu", "0")): 612.5, ("octet_gpu_energy_joules_total", ("gpu", "0")): 5000000.25,
                        ("octet_gpu_temperature_celsius", ("gpu", "0")): 61,
                        ("octet_gpu_temperature_celsius", ("gpu", "1")): 62, ("octet_gpu_xid_total", ("gpu", "0")): 0,
                        ("octet_gpu_xid_total", ("gpu", "1")): 3}, gpus
        memory = wait_for(port, lambda found: ("octet_checkpoint_age_seconds", ("place", "memory")) in found, run)
        assert memory["octet_checkpoint_age_seconds", ("place", "memory")] < 60, memory
        for rank in "01":
            assert 0 < memory["octet_rank_compute_seconds", ("rank", rank)] < 60, memory
        assert abs(both["octet_step", ("rank", "0")] - both["octet_step", ("rank", "1")]) <= 1, both
        children = pathlib.Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
        os.kill(int(children[-1]), signal.SIGKILL)
        after = wait_for(port, lambda found: found.get(("octet_restarts_total", ("code", "137"))) == 1, run)
        assert after["octet_lost_seconds_total", ("part", "start")] > 0, after
        # The figures of the attempt before may still have been there.
        step = max(after.get(("octet_step", ("rank", rank)), 0) for rank in "01")
        wait_for(port, lambda found: all(found.get(("octet_step", ("rank", rank)), 0) > step + 1 for rank in "01"), run)
        run.send_signal(signal.SIGTERM)
        run.communicate()
        assert run.returncode == 75, run.returncode


if __name__ == "__main__":
    try:
        main()
    finally:
        for process in started:  # after a failure
            process.kill()
