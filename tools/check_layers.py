#!/usr/bin/env python3
"""Checks the sources against the tables of docs/layers.md, which lists the checks. Prints a line for each finding and exits with code 1 if
there are any. With --write it first writes the size of the core into the page."""

import argparse
import pathlib
import re
import sys

LONGEST_FILE = 600
CODE = {".h", ".cpp", ".cu", ".cuh"}
SOURCES = CODE | {".py", ".sh", ".cmake", ".txt", ""}


def read_layers(page):
    """Returns {room: layer}, from the indented lines of the page, such as `9 app`."""
    layers = {}
    for line in page.read_text().splitlines():
        match = re.fullmatch(r"    (\d+) ((?:\w+ *\|? *)+)", line)
        if not match:
            continue
        for room in re.split(r"[ |]+", match[2].strip()):
            if room in layers:
                sys.exit(f"{page}: {room} occurs twice in the table")
            layers[room] = int(match[1])
    if not layers:
        sys.exit(f"{page}: no table of layers")
    return layers


def read_links(cmake):
    """Returns {room: (line number, rooms that it links)}, from octet_room(...) and target_link_libraries(octet_...)."""
    links = {}
    text = cmake.read_text()
    for match in re.finditer(r"^\s*octet_room\(([^)]*)\)", text, re.MULTILINE):
        room, *lower = match[1].split()
        links[room] = (text.count("\n", 0, match.start(1)) + 1, lower)
    for match in re.finditer(r"\btarget_link_libraries\(octet_(\w+)([^)]*)\)", text):
        if match[1] in links:
            links[match[1]][1].extend(other for other in re.findall(r"\boctet_(\w+)", match[2]) if other in links)
    return links


def reachable(room, links):
    seen, todo = set(), [room]
    while todo:
        for lower in links.get(todo.pop(), (0, []))[1]:
            if lower not in seen:
                seen.add(lower)
                todo.append(lower)
    return seen


def check_links(cmake, links, layers, findings):
    for room, (line, lower) in links.items():
        if room not in layers:
            findings.append(f"{cmake}:{line}: room {room} is not in the table")
            continue
        for other in lower:
            if other not in layers:
                findings.append(f"{cmake}:{line}: {room} links {other}, which is not in the table")
            elif layers[other] >= layers[room]:
                findings.append(f"{cmake}:{line}: {room} (layer {layers[room]}) links {other} (layer {layers[other]})")


def check_includes(root, links, layers, findings):
    for path in sorted(root.glob("*/**/*")):
        if path.is_file() and path.suffix not in CODE | {".md"}:
            findings.append(f"{path}: sources are called .h, .cpp, .cu or .cuh; no check reads others")
        if path.suffix not in CODE:
            continue
        room = path.relative_to(root).parts[0]
        if room not in layers:
            findings.append(f"{path}: room {room} is not in the table")
            continue
        linked = reachable(room, links)
        for number, line in enumerate(path.read_text().splitlines(), 1):
            declared = re.match(r"\s*namespace octet::(\w+)", line)
            if declared and declared[1] in layers and declared[1] != room and declared[1] not in linked:
                findings.append(f"{path}:{number}: {room} declares names of {declared[1]} without linking it")
            match = re.match(r'\s*#\s*include\s*[<"](?:\.\.?/)*(octet/)?(\w+)/', line)
            if not match or (not match[1] and match[2] not in layers):
                continue
            other = match[2]
            if other == room:
                continue
            if other not in layers:
                findings.append(f"{path}:{number}: includes octet/{other}, which is not in the table")
            elif layers[other] >= layers[room]:
                findings.append(f"{path}:{number}: {room} (layer {layers[room]}) includes {other} (layer {layers[other]})")
            elif other not in linked:
                findings.append(f"{path}:{number}: {room} includes {other} without linking it")


# Calls that only some files may make, and what the other files use instead.
GUARDED = [
    (re.compile(r"\b(?:\w*[Jj]son|basic_json<\w*>)::(?:parse|sax_parse|accept|from_\w+)\s*\("), {"base/json.cpp"},
     "parses JSON without a limit; call octet/base/json.h"),
    (re.compile(r"\btoml::parse(?:_file)?\s*\("), {"base/toml.cpp"}, "parses TOML without a limit; call octet/base/toml.h"),
    (re.compile(r"[<\"](?:nlohmann|toml\+\+)/"), {"base/json.h", "base/toml.cpp"}, "includes a parser; include octet/base/json.h or toml.h"),
    (re.compile(r"\bstd::(?:jthread|async)\b|\bpthread_create\b|\bstd::thread(?:\s+\w+)?\s*[({]\s*[^)}\s]|<std::thread>\s*\(|\bthreads?\w*\.emplace_back\("),
     {"base/start_thread.h"}, "starts a thread that may fail to start; call octet/base/start_thread.h"),
]


def check_guards(root, findings):
    for path in sorted(root.glob("*/**/*")):
        if path.suffix not in CODE:
            continue
        name = path.relative_to(root).as_posix()
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for pattern, allowed, finding in GUARDED:
                if name not in allowed and pattern.search(line.split("//")[0]):
                    findings.append(f"{path}:{number}: {finding}")


def check_lengths(repository, findings):
    for folder in ("src", "tests", "bench", "tools", "cmake"):
        for path in sorted((repository / folder).rglob("*")):
            if path.is_file() and path.suffix in SOURCES and "golden" not in path.parts and "seeds" not in path.parts:
                lines = len(path.read_text(errors="replace").splitlines())
                if lines > LONGEST_FILE:
                    findings.append(f"{path}: {lines} lines, more than {LONGEST_FILE}")


# The files of the core.
CORE = ("nn/*", "parallel/*", "models/**/*", "train/engine*")


def files_of(root, patterns):
    """Returns the sources that glob patterns match, in which {a,b} stands for a or b."""
    found = []
    for pattern in patterns:
        before, brace, rest = pattern.partition("{")
        names, _, after = rest.partition("}")
        for name in names.split(","):
            found.extend(path for path in root.glob(before + name + after) if path.suffix in CODE)
    return found


def check_core(page, root, write, findings):
    """Compares the lines of the core, by capability, with the table of the page: | capability | `files` ... | lines |. A row may be 3% off, so
    that not every change has to touch the page."""
    text = page.read_text()
    rows = re.findall(r"^\| (.+?) \| (`.+`) \| ([\d,]+) \|$", text, re.MULTILINE)
    total = re.search(r"^\| all \| \| ([\d,]+) \|$", text, re.MULTILINE)
    most = re.search(r"at most ([\d,]+) lines", text)
    if not rows or not total or not most:
        sys.exit(f"{page}: no table of the core's lines, or no limit")
    counted = {}
    sums = []
    for capability, files, _ in rows:
        of_row = files_of(root, re.findall(r"`(.+?)`", files))
        sums.append(sum(len(path.read_text().splitlines()) for path in of_row))
        for path in of_row:
            counted.setdefault(path, []).append(capability)
    for path in sorted(set(files_of(root, CORE)) | set(counted)):
        if len(counted.get(path, [])) != 1:
            findings.append(f"{page}: {path} counts for {len(counted.get(path, []))} capabilities, not one")
    sums.append(sum(sums))
    shown = [match[1:] for match in rows] + [("", total[1])]
    for (files, lines), now in zip(shown, sums):
        row = f"| {files} | {lines} |" if files else total[0]
        if write:
            text = text.replace(row, row.replace(f" {lines} |", f" {now:,} |"))
        elif abs(int(lines.replace(",", "")) - now) > 0.03 * now:
            findings.append(f"{page}: {row} should say {now:,}. Run `tools/check_layers.py --write`")
    if sums[-1] > int(most[1].replace(",", "")):
        findings.append(f"{page}: the core has {sums[-1]:,} lines, and may have {most[0]}")
    if write:
        page.write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repository", nargs="?", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--write", action="store_true", help="write the size of the core into docs/layers.md")
    args = parser.parse_args()
    repository = args.repository
    page = repository / "docs" / "layers.md"
    layers = read_layers(page)
    cmake = repository / "src" / "octet" / "CMakeLists.txt"
    links = read_links(cmake)
    findings = []
    check_links(cmake, links, layers, findings)
    check_includes(repository / "src" / "octet", links, layers, findings)
    check_guards(repository / "src" / "octet", findings)
    check_lengths(repository, findings)
    check_core(page, repository / "src" / "octet", args.write, findings)
    for finding in findings:
        print(finding)
    if findings:
        return 1
    print(f"{len(layers)} rooms in {max(layers.values()) + 1} layers, nothing looks up or sideways")
    return 0


if __name__ == "__main__":
    sys.exit(main())
