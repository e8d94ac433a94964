#!/usr/bin/env python3
"""tools/try_container.py: follows the Dockerfile's steps up to the stage `cpu` on a machine that cannot build containers, then runs it.

Each stage is a bare Debian 12 in a folder (tools/bare_root.sh). RUN runs a command there, and COPY copies what .dockerignore leaves. Layers
are not kept, and packages of a Debian image that a bare root lacks are missing. Prints PASS, FAIL or SKIP for each part. The roots stay in
build/try-container. Package: debootstrap
"""

import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parent.parent
WORK = SOURCE / "build/try-container"
BARE_ROOT = SOURCE / "tools/bare_root.sh"


class Stage:
    """One root, and the settings of its instructions."""

    def __init__(self, name: str):
        self.root = WORK / name
        self.directory = "/"
        self.user = "0"
        self.environment: dict[str, str] = {}
        self.entrypoint: list[str] = []

    def command(self, words: list[str]) -> list[str]:
        settings = [f"{name}={value}" for name, value in self.environment.items()]
        place = [f"--user={self.user}", f"--in={self.directory}"]
        return [str(BARE_ROOT), "run", *place, str(self.root), "env", *settings, *words]


def instructions(text: str) -> list[tuple[str, str]]:
    """Returns (instruction, its argument) in order. Lines that end in a backslash are joined with the next."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def copy(stage: Stage, argument: str, stages: dict[str, Stage]) -> None:
    words = argument.split()
    origin = SOURCE
    ignored: list[str] = []
    if words[0].startswith("--from="):
        origin = stages[words.pop(0).removeprefix("--from=")].root
    else:
        ignored = [f"--exclude=./{line}" for line in (SOURCE / ".dockerignore").read_text().split()]
    source, target = words
    place = stage.root / (pathlib.PurePosixPath(stage.directory) / target).relative_to("/")
    source = origin / source.lstrip("/")
    if source.is_file():
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, place)
        return
    place.mkdir(parents=True, exist_ok=True)
    packed = subprocess.Popen(["tar", "-C", source, "--anchored", *ignored, "-cf", "-", "."], stdout=subprocess.PIPE)
    subprocess.run(["tar", "-C", place, "--no-same-owner", "-xf", "-"], stdin=packed.stdout, check=True)
    if packed.wait() != 0:
        raise RuntimeError(f"COPY {argument}: tar failed")


def follow(wanted: str, log) -> Stage:
    """Executes the Dockerfile's instructions up to the end of the wanted stage."""
    stages: dict[str, Stage] = {}
    stage = Stage("none")
    for name, argument in instructions((SOURCE / "Dockerfile").read_text()):
        print(f"{name} {argument}", file=log, flush=True)
        if name == "FROM":
            if wanted in stages:
                break
            image, title = re.fullmatch(r"(\S+) AS (\S+)", argument).groups()
            if image not in ("debian:12", "debian:12-slim"):
                raise RuntimeError(f"{image} is not a bare Debian 12")
            stages[title] = stage = Stage(title)
            subprocess.run([BARE_ROOT, "new", stage.root], check=True)
        elif name == "RUN":
            subprocess.run(stage.command(["sh", "-c", argument]), check=True, stdout=log, stderr=log)
        elif name == "COPY":
            copy(stage, argument, stages)
        elif name in ("ENV", "ARG"):
            key, value = argument.split("=", 1)
            path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
            stage.environment[key] = value.replace("$PATH", stage.environment.get("PATH", path))
        elif name == "WORKDIR":
            stage.directory = argument
            (stage.root / argument.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif name == "USER":
            stage.user = argument.split(":")[0]
        elif name == "ENTRYPOINT":
            stage.entrypoint = json.loads(argument)
        elif name != "CMD":
            raise RuntimeError(f"tools/try_container.py does not know the instruction {name}")
    return stages[wanted]


def use(stage: Stage, log) -> None:
    """Trains in the container. /work is a folder of the user, as with `docker run -v`."""
    work = stage.root / "work"
    shutil.copy(SOURCE / "README.md", work)
    shutil.copy(SOURCE / "configs/quickstart.toml", work)
    work.chmod(0o777)
    train = "train quickstart.toml --data.source=[{path=\"corpus\"}] --training.steps=20 --run.output_dir=run --evaluation.interval=0"
    for line in ("doctor", "data prepare --input README.md --tokenizer byte --output corpus", train, "report run"):
        words = shlex.split(line.replace('"', '\\"'))
        subprocess.run(stage.command([*stage.entrypoint, *words]), check=True, stdout=log, stderr=log)
    if (work / "run/metrics.jsonl").stat().st_uid != 1000:
        raise RuntimeError("the run does not belong to user 1000")
    if "</html>" not in (work / "run/report.html").read_text():
        raise RuntimeError("no report")


def main() -> int:
    WORK.mkdir(parents=True, exist_ok=True)
    probe = subprocess.run([BARE_ROOT, "new", WORK / "probe"], stdout=subprocess.PIPE, text=True)
    if probe.returncode != 0:
        print(f"SKIP container: {probe.stdout.strip()}")
        return 0
    shutil.rmtree(WORK / "probe")
    part = "container-build"
    with (WORK / "log").open("w") as log:
        try:
            stage = follow("cpu", log)
            print(f"PASS {part}", flush=True)
            part = "container-run"
            use(stage, log)
            print(f"PASS {part}")
        except (subprocess.CalledProcessError, RuntimeError, OSError) as error:
            print(*(WORK / "log").read_text().splitlines()[-20:], sep="\n")
            print(f"FAIL {part}: {error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
