#!/usr/bin/env python3
"""check_python.py FILE: exits with code 0 if this Python has every package in FILE, whose lines are NAME==VERSION, in this version."""

import importlib.metadata
import pathlib
import re
import sys

for line in pathlib.Path(sys.argv[1]).read_text().split():
    name, version = re.sub(r"\[.*\]", "", line).split("==")
    if importlib.metadata.version(name) != version:
        sys.exit(f"{name} is not {version}")
