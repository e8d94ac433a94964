#!/usr/bin/env bash
# Puts the headers of nvidia-cudnn-frontend (MIT, PyPI) into build/cudnn-frontend/include, and its licence beside them. Does nothing when
# they are there.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
folder=build/cudnn-frontend
[ ! -e "$folder/LICENSE.txt" ] || exit 0
mkdir -p "$folder"
"${PYTHON:-python3}" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: -d "$folder" "nvidia-cudnn-frontend==1.23.0" >/dev/null
"${PYTHON:-python3}" - "$folder" <<'PYTHON'
import pathlib, sys, zipfile
folder = pathlib.Path(sys.argv[1])
with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
    licence = next(name for name in wheel.namelist() if name.endswith("/LICENSE.txt"))
    for name in wheel.namelist():
        at = name.find("include/cudnn_")
        if at >= 0 and not name.endswith("/"):
            target = folder / name[at:]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(wheel.read(name))
    (folder / "LICENSE.txt").write_bytes(wheel.read(licence))
PYTHON
rm "$folder"/*.whl
[ -e "$folder/include/cudnn_backend_base.h" ]
