"""write_files.py FOLDER: writes Parquet files for the tests of this folder, and texts.jsonl with the texts of the files same-*.
The exit code is 77 if this Python has no pyarrow."""

import json
import pathlib
import sys

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError:
    sys.exit(77)

folder = pathlib.Path(sys.argv[1])
TEXTS = [f"text {i} schön 日本語 " + "wörd " * (i % 37) + str(i % 11) for i in range(3000)]
for empty in (0, 999, 1000, 2999):
    TEXTS[empty] = ""


def write(name, columns, **options):
    pq.write_table(pa.table(columns), folder / f"{name}.parquet", **options)


with (folder / "texts.jsonl").open("w") as out:
    for text in TEXTS:
        out.write(json.dumps({"text": text}) + "\n")

for compression in ("none", "snappy", "gzip", "zstd", "brotli", "lz4"):
    write(f"same-{compression}", {"text": TEXTS}, compression=compression, row_group_size=1000)
for kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
    write(f"same-{kind}", {"text": pa.array(TEXTS, kind)}, row_group_size=700)
write("same-dictionary", {"text": pa.array(TEXTS).dictionary_encode()}, row_group_size=700)
write("same-plain", {"text": TEXTS}, use_dictionary=False, data_page_size=500, write_batch_size=10)
write("same-pages", {"text": TEXTS}, data_page_size=500, write_batch_size=10, dictionary_pagesize_limit=4000)
write("same-pages-v2", {"text": TEXTS}, data_page_version="2.0", data_page_size=3000, write_batch_size=100)
for encoding in ("DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"):
    write(f"same-{encoding}", {"text": TEXTS}, use_dictionary=False, column_encoding=encoding, row_group_size=1100)
required = pa.schema([pa.field("text", pa.string(), nullable=False)])
pq.write_table(pa.table({"text": TEXTS}, schema=required), folder / "same-required.parquet", row_group_size=1)
# The column has different numbers among the leaves and among the fields.
meta = [{"text": "wrong", "parts": ["a", "b"]}] * len(TEXTS)
write("same-behind-structures", {"meta": meta, "id": range(len(TEXTS)), "text": TEXTS}, row_group_size=1700)
twice = pa.table([pa.array(["wrong"] * len(TEXTS)), pa.array(TEXTS)], names=["text", "text"])
pq.write_table(twice, folder / "same-last-of-two.parquet")
write("same-large-pages", {"text": TEXTS}, use_dictionary=False, data_page_size=1 << 20, write_batch_size=5000, compression="zstd")

chats = [[{"role": "user", "content": TEXTS[i]}, {"role": "assistant", "content": f"{i} " + "answer " * 60}] for i in range(3000)] * 4
write("chats", {"messages": chats}, row_group_size=2500)

calls = [[{"id": "f", "args": [1, 2]}], [], None]
talks = [[{"role": "user", "content": TEXTS[i], "weight": i % 2, "tool_calls": calls[(i + k) % 3]} for k in range(i % 5)]
         for i in range(900)]
write("calls", {"messages": talks, "tools": [calls[i % 3] for i in range(900)]}, row_group_size=500, data_page_size=500,
      write_batch_size=10)

nulls = list(TEXTS)
nulls[1233] = None
write("null", {"text": nulls}, row_group_size=1000)
write("kinds", {"ints": [1], "lists": [["a"]], "structures": [{"text": "a"}], "fixed": pa.array([b"abc"], pa.binary(3)),
                "nothing": pa.array([None], pa.null()), "decimal": pa.array([1], pa.decimal128(5))})
write("not-utf8", {"text": [b"good", b"good \xc3\xa4 \xff bad"]})
write("no-rows", {"text": pa.array([], pa.string())})
write("checksums", {"text": TEXTS}, write_page_checksum=True, compression="none", use_dictionary=False)
write("three", {"text": ["first", "second\0\n", "schön"]})
# 8 MB, so that several tasks read it.
write("large", {"text": [f"{i} " + "large text " * 60 for i in range(12000)]}, row_group_size=2500)
