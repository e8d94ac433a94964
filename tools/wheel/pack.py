"""python3 pack.py TREE VERSION TAG DIST PYARROW: packs TREE, a wheel's files in their places, into DIST/octet-VERSION-TAG.whl.

PYARROW is the release of pyarrow that the plugins for Parquet and S3 are linked to. Writes METADATA, WHEEL and RECORD. pip uses RECORD to check what it
installs and to uninstall it. The same files give the same wheel, byte for byte. Needs only Python's standard library.
"""

import base64
import hashlib
import pathlib
import sys
import zipfile

# The extra `cuda` accepts the releases that Octet's CUDA backend was measured with, and their bug fixes.
METADATA = """Metadata-Version: 2.1
Name: octet
Version: {version}
Summary: FP8 training of Llama-family language models on CPUs and NVIDIA Hopper GPUs
License: Apache-2.0
Provides-Extra: cuda
Requires-Dist: nvidia-cublas~=13.1.0; extra == "cuda"
Requires-Dist: nvidia-cuda-nvrtc~=13.0.48; extra == "cuda"
Requires-Dist: nvidia-cudnn-cu13~=9.19.0; extra == "cuda"
Requires-Dist: nvidia-nccl-cu13~=2.28.9; extra == "cuda"
Provides-Extra: parquet
Requires-Dist: pyarrow=={pyarrow}.*; extra == "parquet"
Provides-Extra: s3
Requires-Dist: pyarrow=={pyarrow}.*; extra == "s3"
"""

WHEEL = """Wheel-Version: 1.0
Generator: octet tools/wheel.sh
Root-Is-Purelib: false
Tag: {tag}
"""


def record_line(name: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}\n"


def main(tree: pathlib.Path, version: str, tag: str, dist: pathlib.Path, pyarrow: str) -> None:
    information = f"octet-{version}.dist-info"
    (tree / information / "METADATA").write_text(METADATA.format(version=version, pyarrow=pyarrow))
    (tree / information / "WHEEL").write_text(WHEEL.format(tag=tag))
    record = ""
    target = dist / f"octet-{version}-{tag}.whl"
    unfinished = target.with_suffix(".part")
    with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:

        def add(name: str, content: bytes, mode: int) -> None:
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100000 | mode) << 16
            archive.writestr(entry, content)

        files = sorted(path for path in tree.rglob("*") if path.is_file())
        for path in sorted(files, key=lambda path: information in path.parts):  # dist-info last, as the format advises
            name, content = path.relative_to(tree).as_posix(), path.read_bytes()
            add(name, content, 0o755 if path.stat().st_mode & 0o100 else 0o644)
            record += record_line(name, content)
        add(f"{information}/RECORD", f"{record}{information}/RECORD,,\n".encode(), 0o644)
    unfinished.replace(target)
    print(target)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3], pathlib.Path(sys.argv[4]), sys.argv[5])
