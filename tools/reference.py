#!/usr/bin/env python3
"""Compares docs/reference with the program. A page is prose with blocks between `<!-- octet manual ... -->` and `<!-- end -->`. Each block
must be the output of that command, and every row of `octet manual TOPIC` must be in TOPIC.md. Prints a diff and exits with code 1 if a page
differs. --write updates the pages instead."""

import argparse
import difflib
import pathlib
import re
import subprocess
import sys

PAGES = pathlib.Path(__file__).resolve().parent.parent / "docs" / "reference"
BLOCK = re.compile(r"(<!-- octet (manual[^\n]*) -->\n)(.*?)(<!-- end -->\n)", re.DOTALL)


def printed(program, arguments):
    return subprocess.run([program, *arguments], check=True, capture_output=True, text=True).stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", help="the octet whose reference this is")
    parser.add_argument("--write", action="store_true", help="write the pages instead of comparing them")
    options = parser.parse_args()
    findings = []
    for page in sorted(PAGES.glob("*.md")):
        old = page.read_text()
        new = BLOCK.sub(lambda m: f"{m[1]}\n{printed(options.program, m[2].split())}{m[4]}", old)
        if options.write:
            page.write_text(new)
        else:
            name = str(page.relative_to(PAGES.parent.parent))
            findings += difflib.unified_diff(old.splitlines(), new.splitlines(), name, "octet manual", lineterm="", n=0)
        for row in printed(options.program, ["manual", page.stem]).splitlines():
            if row.startswith("| ") and row not in new:
                findings.append(f"{page}: `octet manual {page.stem}` has a row that no block of this page shows: {row}")
    if findings:
        print("\n".join(findings))
        sys.exit("docs/reference differs from the program: call `python3 tools/reference.py build/release/octet --write`")


main()
