"""Runs examples/slurm.sbatch with programs in place of srun and scontrol, which write down how they are called, and with an `octet status`
that answers what the test wants. Needs no Slurm."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "examples" / "slurm.sbatch"
REQUEUED = {75, 78, 79, 80, *range(129, 193)} - {130}
FAILED = {1, 2, 3, 76, 77, 130}

SRUN = """#!/bin/bash
printf '%s\\n' "$OCTET_TOKEN" "$@" >srun.txt
if [ "$BEGINS" ]; then
  mkdir -p "$BEGINS/attempts"
  printf '{\n  "code": %s,\n}\n' "${ATTEMPT_CODE:-0}" >"$BEGINS/attempts/$(printf %08d $(($(ls "$BEGINS/attempts" | wc -l) + 1))).json"
fi
if [ "$SAVES" ]; then mkdir -p "$BEGINS/checkpoints/step-00000010"; fi
exit "$SRUN_CODE"
"""
SCONTROL = """#!/bin/bash
echo "$@" >>scontrol.txt
"""
OCTET = """#!/bin/bash
if [ "$1" != status ]; then exec "$REAL_OCTET" "$@"; fi
echo "$@" >>status.txt
[ "$2" = "$BEGINS" ] || exit 99
if [ "$3" = --code ]; then exit "$STATUS_CODE"; fi
echo "$2: $STATE"
"""


class Job:
    def __init__(self, octet: str, folder: pathlib.Path):
        self.folder = folder
        self.octet = octet
        for name, text in {"srun": SRUN, "scontrol": SCONTROL, "octet": OCTET}.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)

    def run(self, *arguments: str, begins: str = "out/kept run", srun: int = 0, status: int = 0, state: str = "done", **more: str) -> int:
        """Runs the script and returns its exit code. `begins` is the run's folder, "" if no rank is started."""
        for name in ("srun.txt", "scontrol.txt", "status.txt"):
            (self.folder / name).unlink(missing_ok=True)
        variables = {"PATH": f"{self.folder}:{os.environ['PATH']}", "REAL_OCTET": self.octet, "SLURM_JOB_ID": "17", "BEGINS": begins,
                     "SRUN_CODE": str(srun), "STATUS_CODE": str(status), "STATE": state, **more}
        arguments = arguments or ("--run.output_dir=out/kept run",)
        result = subprocess.run(["bash", SCRIPT, ROOT / "configs" / "quickstart.toml", *arguments], cwd=self.folder, env=variables,
                                capture_output=True, text=True)
        self.error = result.stderr
        return result.returncode

    def text(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def requeued(self) -> bool:
        assert self.text("scontrol.txt") in ("", "requeue 17\n")
        return self.text("scontrol.txt") != ""


def check_codes(job: Job) -> None:
    """The run's folder decides, whatever srun says."""
    for code in sorted(FAILED | {75, 78, 79, 80, 129, 131, 137, 139, 143, 160, 192}):
        ended = job.run(status=code, state=f"ended with code {code}")
        assert ended == code, (ended, code, job.error)
        assert job.requeued() == (code in REQUEUED), code
    for srun in (0, 1, 75, 78, 137):
        assert job.run(srun=srun) == 0 and not job.requeued(), srun


def check_a_fault_that_comes_again(job: Job) -> None:
    """After three requeues without a new checkpoint the job ends."""
    folder = job.folder / "out" / "kept run"
    for code, count, saves, again in ((139, 2, False, True), (139, 3, False, False), (139, 3, True, True), (75, 9, False, True)):
        assert job.run(status=code, state=f"ended with code {code}", SLURM_RESTART_COUNT=str(count), SAVES="yes" if saves else "") == code
        assert job.requeued() == again, (code, count, saves)
    assert len(list((folder / "checkpoints").iterdir())) == 1


def check_supervisors_that_vanished(job: Job) -> None:
    for state in ("held by another machine", "running", "about to start again"):
        assert job.run(status=0, state=state) == 137 and job.requeued(), state


def check_supervisors_that_started_nothing(job: Job) -> None:
    """Only srun knows why; the folder may tell of an older run, which was asked to stop."""
    for code in (2, 3, 76):
        assert job.run(begins="", srun=code, status=75) == code and not job.requeued(), code
        assert job.text("status.txt") == ""
    assert job.run(begins="", srun=78, status=2) == 78 and job.requeued()


def check_a_refused_start(job: Job) -> None:
    """The run before it was asked to stop, and its status still says so."""
    for status in (0, 75):
        assert job.run(srun=2, status=status, ATTEMPT_CODE="2") == 2 and not job.requeued(), status


def check_command(job: Job) -> None:
    job.run("--training.steps=7", "--run.output_dir=out/kept run", SLURM_CPUS_PER_TASK="5", SPARES="2", RANKS="4")
    token, *words = job.text("srun.txt").splitlines()
    assert re.fullmatch("[0-9a-f]{64}", token), token
    mark = words.index("octet")
    assert words[:mark] == ["--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--cpus-per-task=5"], words
    assert words[mark:] == ["octet", "launch", "--hosts", "auto", "-n", "4", "--spares", "2", "--supervise", "--", "train",
                            str(ROOT / "configs" / "quickstart.toml"), "--training.steps=7", "--run.output_dir=out/kept run"], words
    job.run()
    second, *words = job.text("srun.txt").splitlines()
    assert second != token and words[words.index("-n") + 1] == "auto" and words[words.index("--spares") + 1] == "1", words
    # The real program understands the line: it counts the GPUs, or refuses because this machine has one host and no Slurm.
    arguments = words[words.index("octet") + 1:]
    real = subprocess.run([job.octet, *arguments], cwd=job.folder, capture_output=True, text=True)
    assert real.returncode == 2 and re.search("has none that Octet can use|no scheduler tells the hosts", real.stderr), real
    arguments[arguments.index("-n") + 1] = "1"
    slurm = {**os.environ, "SLURM_NODEID": "3", "SLURM_JOB_NODELIST": "node[1-3]", "OCTET_TOKEN": token}
    real = subprocess.run([job.octet, *arguments], cwd=job.folder, env=slurm, capture_output=True, text=True)
    assert "--hosts auto: this is host 3 of 3" in real.stderr, real


def check_mistakes(job: Job) -> None:
    """A configuration that is refused costs no allocation of many nodes."""
    assert job.run("--training.stepz=7") == 2 and "stepz" in job.error
    assert job.text("srun.txt") == "" and not job.requeued()


def check_options() -> None:
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)(?:=(\S+))?", SCRIPT.read_text(), re.MULTILINE))
    assert "no-kill" in options and "requeue" in options and options["signal"].startswith("TERM@"), options
    assert options["ntasks-per-node"] == "1" and int(options["nodes"]) >= 2, options


def main() -> None:
    subprocess.run(["bash", "-n", SCRIPT], check=True)
    check_options()
    with tempfile.TemporaryDirectory() as name:
        job = Job(sys.argv[1], pathlib.Path(name))
        check_command(job)
        check_codes(job)
        check_a_fault_that_comes_again(job)
        check_supervisors_that_vanished(job)
        check_supervisors_that_started_nothing(job)
        check_a_refused_start(job)
        check_mistakes(job)


if __name__ == "__main__":
    main()
