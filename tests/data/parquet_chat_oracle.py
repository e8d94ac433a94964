"""Writes conversations with pyarrow as lists of structures, and compares the corpora of `octet data prepare --chat` with those of the same
conversations in JSONL: every token and every bit of the mask."""

import decimal
import json
import pathlib
import random
import subprocess
import sys
import tempfile

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError:
    print("skipped: this Python has no pyarrow")
    sys.exit(77)


def prepare(octet, source, prefix, *more):
    command = [octet, "data", "prepare", "--input", source, "--tokenizer", "byte", "--chat", "chatml", "--duplicates", "ignore",
               "--output", prefix, "--workers", 2, *more]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True)


def files(prefix):
    return [pathlib.Path(f"{prefix}{suffix}").read_bytes() for suffix in (".bin", ".idx", ".loss.bin", ".loss.idx")]


def conversations(rng, count):
    letters = [chr(c) for c in range(1, 0x300)] + ["日", "😀", '"', "\\", "\n"] * 20
    talks = []
    for _ in range(count):
        talk = [{"role": "system", "content": "Be brief."}] if rng.random() < 0.3 else []
        for _ in range(rng.choice([1, 1, 2, 3, 40])):
            for role in ("user", "assistant"):
                talk.append({"role": role, "content": "".join(rng.choices(letters, k=rng.choice([0, 1, 7, 300])))})
        talks.append(talk)
    return talks


def refusal(octet, folder, values, kind, expected, *more):
    path = folder / "wrong.parquet"
    pq.write_table(pa.table({"messages": pa.array(values, kind)}), path)
    done = prepare(octet, path, folder / "wrong", *more)
    assert done.returncode == 76 and len(done.stderr.splitlines()) == 1 and expected in done.stderr and "wrong.parquet" in done.stderr, done


def main():
    octet, rng = sys.argv[1], random.Random(11)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        talks = conversations(rng, 3000)
        lines = folder / "talks.jsonl"
        lines.write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
        done = prepare(octet, lines, folder / "lines")
        assert done.returncode == 0, done
        message = [pa.field("role", pa.string()), pa.field("content", pa.string())]
        other = [pa.field("id", pa.int64()), pa.field("weights", pa.list_(pa.float32()))]
        required = [pa.field("role", pa.string(), nullable=False), pa.field("content", pa.large_string(), nullable=False)]
        share_gpt = [pa.field("from", pa.string()), pa.field("value", pa.string())]
        both = message + share_gpt + other
        named = [[{"from": m["role"], "value": m["content"]} for m in talk] for talk in talks]
        mixed = [named[i] if i % 3 == 0 else talk for i, talk in enumerate(talks)]
        cases = [("plain", talks, pa.list_(pa.struct(message)), {}),
                 ("groups", talks, pa.list_(pa.struct(other + message)), {"row_group_size": 170, "compression": "zstd"}),
                 ("required", talks, pa.list_(pa.field("element", pa.struct(required), nullable=False)), {"data_page_size": 500}),
                 ("large", talks, pa.large_list(pa.struct(message)), {"use_dictionary": False, "data_page_version": "2.0"}),
                 ("share_gpt", named, pa.list_(pa.struct(share_gpt)), {"use_compliant_nested_type": False}),
                 ("both", mixed, pa.list_(pa.struct(both)), {"write_batch_size": 100})]
        for case, values, kind, options in cases:
            for nullable in (True, False):
                path = folder / f"{case}.parquet"
                schema = pa.schema([pa.field("before", pa.list_(pa.string())), pa.field("messages", kind, nullable=nullable)])
                pq.write_table(pa.table({"before": [["a", "b"]] * len(values), "messages": pa.array(values, kind)}, schema=schema), path, **options)
                done = prepare(octet, path, folder / "corpus")
                if "read by a plugin" in done.stderr:
                    print("skipped: octet has no Parquet plugin here (OCTET_ARROW)")
                    sys.exit(77)
                assert done.returncode == 0, (case, done)
                assert files(folder / "corpus") == files(folder / "lines"), case

        # What a message and a row have beside the text: the same as in JSON. Rows of a joined table have nulls in many places.
        calls = pa.list_(pa.struct([("id", pa.string()), ("args", pa.list_(pa.int64()))]))
        full = [pa.field("thinking", pa.string()), pa.field("tool_calls", calls), pa.field("function_call", pa.struct([("name", pa.string())]))]
        rows = []
        for talk in talks:
            row = {"messages": [m | {"weight": rng.choice([0, 1, None])} if m["role"] == "assistant" else m for m in talk]}
            if talk[0]["role"] != "system" and rng.random() < 0.4:
                row["system"] = rng.choice(["Be brief.", "", 'A "quote"'])
            rows.append(row)
        lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
        done = prepare(octet, lines, folder / "lines")
        assert done.returncode == 0, done
        tables = [("list", [row["messages"] for row in rows], pa.list_(pa.struct(full + message + [pa.field("weight", number)])), number)
                  for number in (pa.int32(), pa.int64(), pa.float32(), pa.float64())]
        tables.append(("text", [json.dumps(row["messages"]) for row in rows], pa.string(), "json"))
        for case, values, kind, number in tables:
            schema = pa.schema([("system", pa.string()), ("messages", kind), ("tools", calls), ("functions", pa.string())])
            columns = {"system": [row.get("system") for row in rows], "messages": values, "tools": [None, []] * (len(rows) // 2),
                       "functions": ["[]"] * len(rows)}
            path = folder / "beside.parquet"
            pq.write_table(pa.table(columns, schema=schema), path, row_group_size=170, write_batch_size=7)
            done = prepare(octet, path, folder / "corpus")
            assert done.returncode == 0, (case, number, done)
            assert files(folder / "corpus") == files(folder / "lines"), (case, number)

        kind = pa.list_(pa.struct(message))
        good = talks[0]
        refusal(octet, folder, [good, [], good], kind, ":2: a conversation without messages")
        refusal(octet, folder, [good, good, None], kind, ":3: column \"messages\" is null, not a list of messages")
        refusal(octet, folder, [good + [None]], kind, ":1: a message is null, not an object")
        refusal(octet, folder, [[{"role": "user", "content": None}]], kind, ":1: \"content\" is missing")
        parts = pa.list_(pa.struct([("type", pa.string()), ("text", pa.string())]))
        refusal(octet, folder, [[{"role": "user", "content": [{"type": "text", "text": "q"}]}]],
                pa.list_(pa.struct([("role", pa.string()), ("content", parts)])), ':1: "content" is ["a list or structure"], not a string')
        for number, value, told in [(pa.decimal128(2, 1), decimal.Decimal("0.1"), "a decimal number"), (pa.float16(), 1.0, "FIXED_LEN_BYTE_ARRAY")]:
            refusal(octet, folder, [[dict(m, weight=value) for m in good]], pa.list_(pa.struct(message + [pa.field("weight", number)])),
                    f':1: "weight" is ["{told}"], and Octet knows the weights 0 and 1')
        refusal(octet, folder, [[{"role": "robot", "content": "a"}]], kind, ":1: role \"robot\" is not known")
        refusal(octet, folder, [["a"]], pa.list_(pa.string()), "holds lists of values, not of messages")
        refusal(octet, folder, [{"role": "user"}], pa.struct(message), "holds structures, not lists of messages")
        for name, of, value in [("tool_calls", pa.list_(pa.struct([("id", pa.string()), ("args", pa.list_(pa.int64()))])), [{"id": "f", "args": [1, 2]}]),
                                ("function_call", pa.struct([("name", pa.string())]), {"name": "f"}),
                                ("thinking", pa.string(), "hm"), ("reasoning_content", pa.string(), "hm"), ("weight", pa.float64(), 0.5)]:
            told = [[dict(m, **{name: value}) if m["role"] == "assistant" else m for m in good]]
            refusal(octet, folder, [good] + told, pa.list_(pa.struct(message + [pa.field(name, of)])), f":2: \"{name}\" ")
        pq.write_table(pa.table({"messages": pa.array([good, good], kind), "tools": pa.array([[], [{"id": "f"}]], calls)}), folder / "tools.parquet")
        done = prepare(octet, folder / "tools.parquet", folder / "wrong")
        assert done.returncode == 76 and 'tools.parquet:2: "tools" would be lost' in done.stderr, done
        refusal(octet, folder, [good], kind, "no column \"talk\" (there are: messages)", "--field", "talk")
        # Without --chat a list is not text.
        path = folder / "groups.parquet"
        done = subprocess.run([octet, "data", "prepare", "--input", path, "--tokenizer", "byte", "--field", "messages", "--output", folder / "text"],
                              capture_output=True, text=True)
        assert done.returncode == 76 and "holds lists or structures, not strings" in done.stderr, done
    print(f"Parquet of conversations: {len(talks)} in {2 * len(cases)} forms, the same as JSONL")


if __name__ == "__main__":
    main()
