#!/usr/bin/env python3
"""check_python.py FILE: exit code 0 when this Python has every package that FILE (NAME==VERSION lines) names, in that version."""

import importlib.metadata
import pathlib
import sys

for line in pathlib.Path(sys.argv[1]).read_text().split():
    name, version = line.split("==")
    if importlib.metadata.version(name) != version:
        sys.exit(f"{name} is not {version}")
