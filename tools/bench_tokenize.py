#!/usr/bin/env python3
"""bench_tokenize.py OCTET [MEGABYTES]: compares the speed of `octet bench tokenize` with the Python package tokenizers
(encode_batch_fast), on one core and on all cores, with the same tokenizers and the same documents. The script trains four
tokenizers on text from this machine: like Llama 3's, Qwen 3's, GPT-NeoX's and Llama 2's. Needs the packages of tests/requirements.txt."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "data"))


def time_theirs(path, lines):
    """Times the package. Runs in its own process, because the package reads RAYON_NUM_THREADS only once."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(path)
    texts = [json.loads(line)["text"] for line in open(lines)]
    best, begin = 1e9, time.perf_counter()
    while time.perf_counter() - begin < 1 or best == 1e9:
        start = time.perf_counter()
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        best = min(best, time.perf_counter() - start)
    print(json.dumps({"seconds": best, "tokens": sum(len(encoding) for encoding in encodings)}))


def theirs(tokenizer, lines, cores):
    environment = dict(os.environ, RAYON_NUM_THREADS=str(cores), TOKENIZERS_PARALLELISM="true" if cores > 1 else "false")
    done = subprocess.run([sys.executable, __file__, "--theirs", tokenizer, lines], env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def main():
    import tokenizer_cases as cases

    octet, megabytes = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 20
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        texts, size = [], 0
        for text in cases.found_texts(cases.found_paths()):
            texts.append(text)
            size += len(text.encode())
            if size > megabytes * 1e6:
                break
        lines = folder / "documents.jsonl"
        lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        training = cases.training_text(20_000_000)
        for tokenizer in (cases.byte_level(folder / "b", training, 64_000)[0], *cases.normalizing(folder / "n", training, 64_000),
                          cases.metaspace(folder / "m", training, 32_000, cases.SCRIPTS)[0]):
            path = str(tokenizer / "tokenizer.json")
            subprocess.run([octet, "bench", "tokenize", "--tokenizer", path, "--input", lines, "--json", folder / "out.json"], check=True,
                           stdout=subprocess.DEVNULL)
            for ours in json.loads((folder / "out.json").read_text()):
                them = theirs(path, str(lines), ours["cores"])
                assert them["tokens"] == ours["tokens"], (them, ours)
                print(f"{tokenizer.name:8} {size / 1e6:.1f} MB, {ours['cores']:3} cores: octet {ours['mb_per_s']:8.1f} MB/s, tokenizers "
                      f"{size / them['seconds'] / 1e6:7.1f} MB/s: {them['seconds'] / ours['seconds']:.1f} times", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--theirs"]:
        time_theirs(*sys.argv[2:])
    else:
        main()
