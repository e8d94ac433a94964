"""python3 audit.py WHEEL: prints auditwheel's verdict on a wheel of tools/wheel.sh. Exits with code 1 if the wheel needs more than it says.

The wheel's tag must match the versions of its symbols. auditwheel does not know extras, so it counts every library of another package as
missing and ends with the tag linux_x86_64. Only libraries of octet[cuda], octet[parquet] and octet[s3] may be on its list.
"""

import json
import subprocess
import sys

BROUGHT_BY_EXTRAS = ("libarrow.", "libarrow_s3.", "libparquet.", "libcublasLt.", "libcublas.", "libcudnn.", "libnvrtc.", "libnccl.")


def main(wheel: str) -> int:
    command = [sys.executable, "-m", "auditwheel", "show", wheel]
    print(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    verdict = json.loads(subprocess.run([*command, "--json"], check=True, stdout=subprocess.PIPE).stdout)
    print("Libraries that neither the wheel nor every Linux has:", *sorted(verdict["external_libs"]))
    missing = [name for name in verdict["external_libs"] if not name.startswith(BROUGHT_BY_EXTRAS)]
    if missing:
        print("Of these no extra brings:", *missing)
    tag = wheel.removesuffix(".whl").split("-")[-1]
    if verdict["sym_tag"] != tag:
        print(f"The wheel's tag is {tag}, but its symbols ask for {verdict['sym_tag']}")
    return 1 if missing or verdict["sym_tag"] != tag else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
