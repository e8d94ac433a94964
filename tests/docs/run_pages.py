#!/usr/bin/env python3
"""run_pages.py OCTET PAGE...: checks that pages are true. For each page it

- runs the marked blocks in order, in one shell (`set -eo pipefail`) and one temporary folder, which has the repository's files; OCTET is
  on the PATH;
- compares the output of each block with the output that the page shows after it;
- checks commands that are not run: subcommands, options, keys of a run and their values, names of files;
- checks that links, anchors and the names of pages resolve.

Marks, which readers of the page do not see:
    ```sh run                         runs
    ```text output                    lines that the block before must print; … stands for any text, a line of … for any lines
    ```text output numbers vary       the same, but every number stands for any number, and a rule of dashes for a rule of any length
    ```toml file=run.toml             becomes this file in the folder
    <!-- run: COMMANDS -->            runs, but is not shown; for what a page needs before it begins

docs/getting-started.md and the guides must run something, begin with a question and end with where to go next. docs/README.md must lead to
every page. Prints one line for each mistake and exits with code 1 if there are any.
"""

import pathlib
import re
import secrets
import subprocess
import sys
import tempfile
import time

from commands import Program, call_errors, command_errors, octet_calls
from pages import ROOT, Page, link_errors, mentioned_pages, unreachable_pages

CONTENTS = ROOT / "docs/README.md"
USER_PAGES = [ROOT / "docs/getting-started.md", ROOT / "docs/guides"]
NOT_SHARED = {".git", "build", "out", "data", ".venv"}  # a page writes to out/ and data/
MARK = f"block {secrets.token_hex(16)} "  # begins the output of a block; a model that writes random bytes will not write it
TIMEOUT_S = 300
NUMBER = r"[-+−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?"
DURATION = r"(?:\d+[dhm])*\d[\d,]*(?:\.\d+)?[dhms]\b"  # 4.9s, 1m37s: a slow machine needs other units


def script(page):
    """Returns the page as a shell script. It prints MARK and the block's line before each block."""
    lines = ["set -eo pipefail"]
    for block in page.blocks:
        if block.file():
            lines += [f"mkdir -p \"$(dirname {block.file()})\"", f"cat >{block.file()} <<'END_OF_FILE'", block.text, "END_OF_FILE"]
        elif block.runs():
            lines += [f"printf '%s%d\\n' '{MARK}' {block.line}", block.text]
    return "\n".join(lines) + "\n"


def run_blocks(page, program, folder):
    """Returns the exit code, and the output of each block that started, by its line."""
    for entry in ROOT.iterdir():
        if entry.name not in NOT_SHARED:
            (folder / entry.name).symlink_to(entry)
    (folder / "bin").mkdir()
    (folder / "bin/octet").symlink_to(program)
    environment = {"PATH": f"{folder}/bin:/usr/local/bin:/usr/bin:/bin", "HOME": str(folder), "LC_ALL": "C.UTF-8", "TERM": "dumb"}
    try:
        result = subprocess.run(["bash"], input=script(page), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                errors="replace", cwd=folder, env=environment, timeout=TIMEOUT_S)  # a model may write any byte
        output, code = result.stdout, result.returncode
    except subprocess.TimeoutExpired as expired:
        output, code = (expired.stdout or b"").decode(), f"timeout after {TIMEOUT_S} s"
    output = re.sub(r"^(\[\d+\] )?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", r"\1", output, flags=re.MULTILINE)  # lines of a run begin with their time
    outputs = {}
    for part in output.split(MARK)[1:]:
        line, _, text = part.partition("\n")
        outputs[int(line)] = text
    return code, outputs


def line_pattern(line, numbers_vary):
    pattern = ""
    for part in re.split(rf"(…|\s+|-{{4,}}|{DURATION}|{NUMBER})" if numbers_vary else r"(…|\s+)", line.strip()):
        if part == "…":
            pattern += ".*"
        elif part and not part.strip():
            pattern += r"\s+"
        elif numbers_vary and re.fullmatch(DURATION, part):
            pattern += DURATION
        elif numbers_vary and re.fullmatch(NUMBER, part):
            pattern += NUMBER
        elif numbers_vary and re.fullmatch("-{4,}", part):  # a rule is as wide as the numbers below it
            pattern += "-+"
        else:
            pattern += re.escape(part)
    return re.compile(r"\s*" + pattern + r"\s*")


def missing_line(expected, output, numbers_vary):
    """Returns the first expected line that the output lacks at its place, or None."""
    lines, at, may_skip = output.split("\n"), 0, True
    for line in expected.split("\n"):
        if line.strip() in ("…", ""):
            may_skip = may_skip or line.strip() == "…"
            continue
        pattern = line_pattern(line, numbers_vary)
        while at < len(lines) and not pattern.fullmatch(lines[at]):
            if lines[at].strip() and not may_skip:
                return line
            at += 1
        if at == len(lines):
            return line
        at += 1
        may_skip = False
    return None


def shown_runs(page):
    return [block for block in page.blocks if block.runs() and block.info != "hidden"]


def form_errors(page):
    text = [line for _, line in page.prose if line.strip()]
    headings = [line for line in text if line.startswith("## ")]
    if not shown_runs(page):
        yield f"{page.name}: no block of this page runs; mark one with ```sh run"
    if not any("?" in line for line in text[:2]):
        yield f"{page.name}: the first paragraph asks no question"
    if not headings or not headings[-1].startswith("## Where"):
        yield f"{page.name}: the last section does not say where to go next"


def run_errors(page, program):
    if not shown_runs(page):
        return
    with tempfile.TemporaryDirectory(prefix="octet-page-") as folder:
        code, outputs = run_blocks(page, program, pathlib.Path(folder))
    if code:
        line = max(outputs, default=0)
        said = "\n".join(outputs.get(line, "").rstrip().split("\n")[-20:])
        yield f"{page.name}:{line}: this block ended with {code}:\n{said}"
        return
    before = None
    for block in page.blocks:
        if block.words()[:2] == ["text", "output"]:
            if before is None:
                yield f"{page.name}:{block.line}: output without a block that runs before it"
                continue
            line = missing_line(block.text, outputs[before.line], "numbers vary" in block.info)
            if line is not None:
                yield (f"{page.name}:{block.line}: the block of line {before.line} did not print `{line.strip()}` here, but\n"
                       f"{outputs[before.line]}")
        if block.runs() and block.info != "hidden":
            before = block


def errors(page, program):
    if any(page.path == path or page.path.is_relative_to(path) for path in USER_PAGES):
        yield from form_errors(page)
    yield from link_errors(page)
    yield from command_errors(Program(program), page)
    yield from run_errors(page, program)
    if page.path == CONTENTS:
        for path in unreachable_pages(CONTENTS):
            yield f"{path.relative_to(ROOT)}: no link leads here from docs/README.md"
        yield from source_errors()
        yield from example_errors(Program(program))


def example_errors(program):
    """Yields the mistakes in the commands in comments of configurations and examples."""
    for path in sorted([*(ROOT / "configs").rglob("*.toml"), *(ROOT / "examples").rglob("*.toml")]):
        for at, line in enumerate(path.read_text().split("\n"), 1):
            if line.startswith("#     octet "):
                for words in octet_calls(line[1:]):
                    for error in call_errors(program, words):
                        yield f"{path.relative_to(ROOT)}:{at}: {error}"


def source_errors():
    """Yields a sentence for each page that sources, tests, configurations or examples name and that does not exist."""
    for folder in ("src", "configs", "examples", "tools", "cmake", "tests"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_relative_to(ROOT / "tests/docs"):  # the runner's tests name pages that do not exist
                continue
            if path.suffix in (".h", ".cpp", ".cu", ".cuh", ".toml", ".sh", ".py", ".cmake", ".in", ".md") and path.is_file():
                for page in mentioned_pages(path.read_text(errors="replace")):
                    if not (ROOT / page).exists():
                        yield f"{path.relative_to(ROOT)}: names {page}, which does not exist"


def main(program, paths):
    found = 0
    for path in paths:
        began = time.monotonic()
        page = Page(path)
        for error in errors(page, pathlib.Path(program).resolve()):
            print(error)
            found += 1
        print(f"{page.name}: {len(shown_runs(page))} of {len(page.blocks)} blocks run, {time.monotonic() - began:.1f} s")
    return 1 if found else 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2:]))
