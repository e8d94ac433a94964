"""Reads the corpus of `octet data prepare` with numpy, by Megatron's layout, and compares it with the input."""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile

import numpy as np

TYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}


def read_index(path):
    """Reads an index as class _IndexReader in Megatron-LM's megatron/core/datasets/indexed_dataset.py does."""
    data = path.read_bytes()
    assert data[:9] == b"MMIDIDX\x00\x00", data[:9]
    version, code, sequences, documents = struct.unpack_from("<QBQQ", data, 9)
    assert version == 1, version
    offset = 34
    lengths = np.frombuffer(data, np.int32, sequences, offset)
    offset += lengths.nbytes
    pointers = np.frombuffer(data, np.int64, sequences, offset)
    offset += pointers.nbytes
    firsts = np.frombuffer(data, np.int64, documents, offset)
    assert offset + firsts.nbytes == len(data), (offset, firsts.nbytes, len(data))
    return TYPES[code], lengths, pointers, firsts


def read_documents(prefix):
    dtype, lengths, pointers, firsts = read_index(prefix.with_suffix(".idx"))
    stream = prefix.with_suffix(".bin").read_bytes()
    assert lengths.astype(np.int64).sum() * np.dtype(dtype).itemsize == len(stream)
    documents = []
    for begin, end in zip(firsts[:-1], firsts[1:]):
        tokens = [np.frombuffer(stream, dtype, lengths[s], pointers[s]) for s in range(begin, end)]
        documents.append(np.concatenate(tokens))
    return dtype, documents


def run(octet, *arguments, expect=0):
    done = subprocess.run([octet, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == expect, (arguments, done.returncode, done.stdout, done.stderr)
    return done


# The peak memory of a child includes what its parent held at the fork. This script is a parent that holds little.
MEASURE = """
import os, subprocess, sys
child = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
status, usage = os.wait4(child.pid, 0)[1:]
print(usage.ru_maxrss * 1024)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def peak_bytes(octet, source, prefix):
    """Returns the peak memory of `octet data prepare` for this file."""
    command = [octet, "data", "prepare", "--input", source, "--tokenizer", "byte", "--output", prefix, "--workers", "1",
               "--duplicates", "ignore", "--json"]
    done = subprocess.run([sys.executable, "-c", MEASURE, *map(str, command)], capture_output=True, text=True)
    assert done.returncode == 0, (command, done.stderr)
    return int(done.stdout)


def check_memory(octet, folder):
    """Memory must grow neither with the number of documents (80 MB of .idx) nor with the size of one document."""
    for name, piece, few, many in [
        ("documents.jsonl", '{"text": "a"}\n', 500_000, 4_000_000),
        ("document.txt", "a text that can be cut\n", 1_000_000, 5_000_000),
    ]:
        peaks = []
        for count in (few, many):
            path = folder / name
            path.write_text(piece * count)
            peaks.append(peak_bytes(octet, path, folder / "peak"))
        grown = peaks[1] - peaks[0]
        print(f"peak of {count:,} lines of {name}: {peaks[1] >> 20} MB, {grown >> 20} MB more than of {few:,}")
        assert grown < 40 << 20, (name, peaks)


def main():
    octet = sys.argv[1]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        random = np.random.default_rng(7)
        texts = ["first\n", "schön, 日本語, 😀\r\n\ttabs", "x" * 3_000_000]
        texts += ["".join(map(chr, random.integers(32, 0x2FFF, random.integers(1, 4000)))) for _ in range(200)]
        inputs = []
        for i, text in enumerate(texts):
            path = folder / "texts" / f"{i % 9}" / f"{i:05}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
            inputs.append(path)
        (folder / "texts" / "image.png").write_bytes(b"\x89PNG\x00\xff")
        lines = folder / "lines.jsonl"
        with lines.open("w") as out:
            for i, text in enumerate(texts):
                json.dump({"id": i, "meta": {"text": None}, "text": text}, out, ensure_ascii=i % 2 == 0)
                out.write("\n")

        for source, expected in [
            (inputs, texts),
            ([folder / "texts"], [path.read_bytes().decode() for path in sorted(inputs, key=lambda p: str(p).encode())]),
            ([lines], texts),
        ]:
            written = []
            for workers in (1, 4):
                prefix = folder / f"corpus-{workers}"
                run(octet, "data", "prepare", "--input", *source, "--tokenizer", "byte", "--output", prefix, "--workers", workers)
                written.append([prefix.with_suffix(suffix).read_bytes() for suffix in (".bin", ".idx", ".json")])
            assert written[0] == written[1], "the output depends on the number of workers"
            dtype, documents = read_documents(prefix)
            assert dtype == np.uint16, dtype
            assert len(documents) == len(expected), (len(documents), len(expected))
            for i, (document, text) in enumerate(zip(documents, expected)):
                assert bytes(document.astype(np.uint8)) == text.encode(), f"document {i} differs"
            description = json.loads(prefix.with_suffix(".json").read_text())
            tokens = sum(len(document) for document in documents)
            assert description["documents"] == len(documents) and description["tokens"] == tokens, description
            assert description["tokenizer"] == "byte" and description["vocab_size"] == 256, description
            report = json.loads(run(octet, "data", "inspect", prefix, "--json").stdout)
            assert report["documents"] == len(documents) and report["tokens"] == tokens, report
            assert sum(bucket["documents"] for bucket in report["histogram"]) == len(documents), report["histogram"]

        bad = folder / "bad.jsonl"
        bad.write_text('{"text": "a"}\n{"text": }\n')
        for source, words in [(folder / "none", "none"), (bad, "bad.jsonl:2: ")]:
            done = run(octet, "data", "prepare", "--input", source, "--tokenizer", "byte", "--output", folder / "new", expect=76)
            assert words in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
        assert not list(folder.glob("new*"))
        run(octet, "data", "inspect", folder / "none", expect=76)
        check_memory(octet, folder)
    print("corpus oracle: all documents agree")


if __name__ == "__main__":
    main()
