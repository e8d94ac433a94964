"""Compares Octet's token ids with those of the reference Python packages, for your tokenizer and your texts:

    check_tokenizer.py build/release/octet TOKENIZER DOCUMENTS.jsonl

TOKENIZER is a folder with tokenizer.json, such a file, a SentencePiece model or Llama 3's tiktoken ranks. Each line of DOCUMENTS.jsonl
has a "text". Needs numpy and the package tokenizers, sentencepiece or tiktoken (see tests/requirements.txt)."""

import base64
import itertools
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests" / "data"))
from corpus_oracle import read_documents

# Source: github.com/meta-llama/llama-models.
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")


def with_tokenizers(path, texts):
    from tokenizers import Tokenizer

    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the package has no class of its own
        sys.exit(f"{file}: the package tokenizers cannot read this file: {error}")
    for first in range(0, len(texts), 2000):
        for encoding in tokenizer.encode_batch_fast(texts[first : first + 2000]):
            yield encoding.ids


def with_sentencepiece(path, texts):
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return ([processor.bos_id(), *processor.encode(text)] for text in texts)


def with_tiktoken(path, texts):
    import tiktoken

    pairs = (line.split() for line in path.read_bytes().splitlines())
    ranks = {base64.b64decode(token): int(rank) for token, rank in pairs}
    encoding = tiktoken.Encoding("llama3", pat_str=LLAMA3, mergeable_ranks=ranks, special_tokens={})
    return ([len(ranks), *encoding.encode_ordinary(text)] for text in texts)


def library_ids(path, texts):
    if path.is_dir() or path.suffix == ".json":
        return with_tokenizers(path, texts)
    ranked = re.match(rb"[A-Za-z0-9+/=]+ [0-9]+\r?\n", path.read_bytes())
    return (with_tiktoken if ranked else with_sentencepiece)(path, texts)


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    octet, tokenizer, documents = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
    with open(documents) as lines:
        texts = [text for text in (json.loads(line)["text"] for line in lines) if text]
    with tempfile.TemporaryDirectory() as folder:
        corpus = pathlib.Path(folder) / "corpus"
        command = [octet, "data", "prepare", "--input", documents, "--tokenizer", tokenizer, "--output", corpus, "--no-append-eod"]
        if subprocess.run(command, stdout=subprocess.DEVNULL).returncode != 0:
            sys.exit(1)  # octet has printed the reason
        ours = read_documents(corpus)[1]
        if len(ours) != len(texts):
            sys.exit(f"{len(ours)} documents, not {len(texts)}")
        different = tokens = 0
        for i, (mine, theirs) in enumerate(zip(ours, library_ids(tokenizer, texts), strict=True)):
            tokens += len(theirs)
            if np.array_equal(mine, theirs):
                continue
            different += 1
            if different <= 5:
                at = next((k for k, (a, b) in enumerate(itertools.zip_longest(mine, theirs)) if a != b), 0)
                print(f"document {i}, token {at}: octet {list(mine[at : at + 5])}, library {list(theirs[at : at + 5])}: {texts[i][:60]!r}")
    size = sum(len(text.encode()) for text in texts) / 1e6
    print(f"{tokenizer}: {len(texts)} documents, {size:.1f} MB, {tokens} tokens, {different} documents differ")
    sys.exit(different > 0)


main()
