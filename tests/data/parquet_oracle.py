"""Writes Parquet with pyarrow, and compares the corpus of `octet data prepare` with the texts, token for token."""

import pathlib
import subprocess
import sys
import tempfile

import numpy as np

from corpus_oracle import peak_bytes, read_index, run

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError:
    print("skipped: this Python has no pyarrow")
    sys.exit(77)


def prepare(octet, source, prefix, *more):
    run(octet, "data", "prepare", "--input", source, "--tokenizer", "byte", "--output", prefix, "--workers", 2, *more)


def compare(octet, folder, name, column, texts, more=(), **options):
    """`column` is an Arrow column of any type that holds `texts`."""
    path = folder / f"{name}.parquet"
    field = more[1] if more else "text"
    pq.write_table(pa.table({"id": range(len(texts)), field: column}), path, **options)
    prepare(octet, path, folder / name, *more)
    dtype, lengths, _, firsts = read_index(folder / f"{name}.idx")
    expected = [text.encode() for text in texts if text]
    assert (lengths == [len(text) for text in expected]).all(), f"{name}: the documents have other lengths"
    assert (firsts == np.arange(len(expected) + 1)).all(), f"{name}: the documents begin elsewhere"
    tokens = np.fromfile(folder / f"{name}.bin", dtype)
    assert tokens.astype(np.uint8).tobytes() == b"".join(expected), f"{name}: the documents have other tokens"


def compare_damaged(octet, folder):
    """Changes one byte. If pyarrow still reads the file, Octet must read the same texts. Otherwise Octet must refuse it in one line."""
    whole, wrong = folder / "whole.parquet", folder / "wrong.parquet"
    texts = [f"text {i} schön " + "wörd " * (i % 7) for i in range(400)]
    pq.write_table(pa.table({"text": texts}), whole, row_group_size=150, compression="none")
    data = whole.read_bytes()
    random = np.random.default_rng(4)
    read, refused = 0, 0
    for at in random.integers(0, len(data), 60):
        wrong.write_bytes(data[:at] + bytes([data[at] ^ int(random.integers(1, 256))]) + data[at + 1:])
        try:
            column = pq.read_table(wrong, columns=["text"])["text"]
            column.validate(full=True)
            expected = None if column.null_count else column.cast(pa.binary()).to_pylist()
        except (pa.ArrowException, OSError, KeyError):
            expected = None
        command = [octet, "data", "prepare", "--input", wrong, "--tokenizer", "byte", "--output", folder / "wrong"]
        done = subprocess.run(command, capture_output=True, text=True)
        if expected is None:
            refused += 1
            assert done.returncode == 76 and len(done.stderr.splitlines()) == 1 and f"{wrong}:" in done.stderr, (at, done)
        else:
            read += 1
            assert done.returncode == 0, (at, done)
            tokens = np.fromfile(folder / "wrong.bin", np.uint16)
            assert tokens.astype(np.uint8).tobytes() == b"".join(expected), at
    print(f"of files with one wrong byte {read} are read as pyarrow reads them, {refused} are refused by both")


def main():
    octet = sys.argv[1]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        noise = folder / "noise.parquet"
        noise.write_bytes(b"PAR1")
        done = subprocess.run([octet, "data", "prepare", "--input", noise, "--tokenizer", "byte", "--output", folder / "noise"],
                              capture_output=True, text=True)
        if "read by a plugin" in done.stderr:
            print("skipped: octet has no Parquet plugin here (OCTET_ARROW)")
            sys.exit(77)
        assert done.returncode == 76 and len(done.stderr.splitlines()) == 1, done

        three = ["one", "two\0\n", "schön 日本語 😀"]
        compare(octet, folder, "three", three, three)
        compare(octet, folder, "field", three, three, ("--field", "body"))
        random = np.random.default_rng(9)
        letters = np.array([chr(c) for c in random.integers(32, 0x2FFF, 5000)])
        texts = ["".join(letters[random.integers(0, 5000, n)]) for n in random.integers(0, 120, 30_000)]
        array = pa.array(texts)
        for compression, column in [
            ("snappy", array),
            ("zstd", array.cast(pa.large_string())),
            ("gzip", array.dictionary_encode()),
        ]:
            compare(octet, folder, compression, column, texts, compression=compression, row_group_size=int(random.integers(2_000, 12_000)))

        compare_damaged(octet, folder)

        # The file has one row group. Memory must not grow with its size.
        peaks, sizes = [], (12_000, 96_000)
        for rows in sizes:
            path = folder / f"rows-{rows}.parquet"
            table = pa.table({"text": [f"{i} " + "a text without end " * 60 for i in range(rows)]})
            pq.write_table(table, path, use_dictionary=False, compression="none", row_group_size=rows)
            peaks.append(peak_bytes(octet, path, folder / "rows"))
            size = path.stat().st_size
        grown = peaks[1] - peaks[0]
        print(f"peak of {size >> 20} MB in one row group: {peaks[1] >> 20} MB, {grown >> 20} MB more than of an eighth of it")
        assert grown < size / 4, (peaks, size)
    print("Parquet oracle: all documents agree")


if __name__ == "__main__":
    main()
