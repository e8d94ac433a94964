"""Reads /metrics of a run and of a supervisor with prometheus_client's parser of the OpenMetrics text format, which refuses what the
standard forbids, and compares the figures with metrics.jsonl, with checkpoints and with a rank that is killed."""

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
         "octet_lost_seconds": "counter"}


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


def start(octet, folder, *arguments):
    started.append(subprocess.Popen([octet, *arguments], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
    return started[-1]


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

        run = start(octet, folder, "launch", "-n", "2", "--supervise", "--", *train, "--run.output_dir=kept")
        both = wait_for(port, lambda found: found.get(("octet_step", ("rank", "1")), 0) >= 5, run)
        assert abs(both["octet_step", ("rank", "0")] - both["octet_step", ("rank", "1")]) <= 1, both
        children = pathlib.Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
        os.kill(int(children[-1]), signal.SIGKILL)
        after = wait_for(port, lambda found: found.get(("octet_restarts_total", ("code", "137"))) == 1, run)
        assert after["octet_lost_seconds_total", ("part", "start")] > 0, after
        wait_for(port, lambda found: ("octet_loss",) in found, run)
        run.send_signal(signal.SIGTERM)
        run.communicate()
        assert run.returncode == 75, run.returncode


if __name__ == "__main__":
    try:
        main()
    finally:
        for process in started:  # after a failure
            process.kill()
