"""Compares the ids of `octet data prepare` with those of PyPI's tokenizers, sentencepiece and tiktoken, for tokenizers trained on this
machine. The argument after the program is the number of megabytes of text."""

import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import sentencepiece
from tokenizers import Tokenizer

import tokenizer_cases as cases
from corpus_oracle import read_documents


def run(octet, *arguments, expect=0):
    done = subprocess.run([octet, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == expect, (arguments, done.returncode, done.stdout[-500:], done.stderr[-500:])
    return done


def prepare(octet, folder, texts, tokenizer, *options):
    lines = folder / "documents.jsonl"
    if not lines.exists():
        with lines.open("w") as out:
            for text in texts:
                out.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    run(octet, "data", "prepare", "--input", lines, "--tokenizer", tokenizer, "--output", folder / "corpus", *options)
    return read_documents(folder / "corpus")[1]


def compare(name, texts, documents, expected):
    assert len(documents) == len(texts), (name, len(documents), len(texts))
    tokens = 0
    for i, (document, ids) in enumerate(zip(documents, expected, strict=True)):
        tokens += len(ids)
        if np.array_equal(document, ids):
            continue
        at = next((k for k, (a, b) in enumerate(zip(document, ids)) if a != b), min(len(document), len(ids)))
        sys.exit(f"{name}: document {i} differs from token {at} on: {document[at:at + 8]} and {ids[at:at + 8]} in {texts[i][:80]!r}")
    size = sum(len(text.encode()) for text in texts)
    print(f"{name}: {len(texts)} documents, {size / 1e6:.1f} MB, {tokens} tokens, the same ids", flush=True)


def check_samples(octet, folder, texts, before, after):
    """Checks that the program decodes documents that fit into a sample to their exact text. "\u2581" and space have the same ids in
    metaspace tokenizers, and are decoded to a space."""
    report = json.loads(run(octet, "data", "inspect", folder / "corpus", "--samples", 10_000, "--json").stdout)
    whole = [sample for sample in report["samples"] if sample["tokens"] == len(sample["ids"])]
    assert len(whole) > 200, len(whole)
    for sample in whole:
        text = texts[sample["document"]]
        assert sample["text"] == before + text + after, (sample["document"], sample["text"], text)


def check_cuts(octet, folder, texts, tokenizer_folder, tokenizer, end):
    """Checks a text file that `data prepare` cuts into tasks: the ids must not depend on where."""
    folder.mkdir()
    text = "".join(text.replace("\0", "") for text in texts)
    (folder / "long.txt").write_text(text, newline="")
    run(octet, "data", "prepare", "--input", folder / "long.txt", "--tokenizer", tokenizer_folder, "--output", folder / "corpus")
    compare(f"{tokenizer_folder.name}, one text", [text], read_documents(folder / "corpus")[1], [tokenizer.encode(text).ids + [end]])


def main():
    octet, megabytes = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 1.5
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        some = cases.documents(int(megabytes * 1e6))
        every = cases.every_character() + some
        joining = every + cases.every_join()
        for part in ("some", "every", "joining"):
            (folder / part).mkdir()
        training = cases.training_text(3_000_000)
        folders = cases.byte_level(folder / "byte_level", training)
        llama3 = folders[0]
        for tokenizer_folder in folders + cases.metaspace(folder / "metaspace", training):
            tokenizer = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
            # One tokenizer of each kind gets every character. The others of its kind differ only in how they cut and join.
            part, texts = ("every", every) if tokenizer_folder.name in ("llama3", "llama2") else ("some", some)
            documents = prepare(octet, folder / part, texts, tokenizer_folder, "--workers", 4)
            config = tokenizer_folder / "tokenizer_config.json"
            end = [tokenizer.token_to_id(json.loads(config.read_text())["eos_token"]["content"])] if config.exists() else []
            expected = (encoding.ids + end for encoding in tokenizer.encode_batch_fast(texts))
            compare(tokenizer_folder.name, texts, documents, expected)
            if tokenizer_folder.name in ("llama3", "llama2"):
                before, after = ("<|begin_of_text|>", "<|end_of_text|>") if tokenizer_folder.name == "llama3" else ("<s>", "</s>")
                there = texts if tokenizer_folder.name == "llama3" else [text.replace(cases.LINE, " ") for text in texts]
                check_samples(octet, folder / part, there, before, after)

        for tokenizer_folder in cases.normalizing(folder / "normalizing", training):
            tokenizer = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
            end = tokenizer.token_to_id(json.loads((tokenizer_folder / "tokenizer_config.json").read_text())["eos_token"]["content"])
            documents = prepare(octet, folder / "joining", joining, tokenizer_folder, "--workers", 4)
            compare(tokenizer_folder.name, joining, documents, (encoding.ids + [end] for encoding in tokenizer.encode_batch_fast(joining)))
            normalized = [tokenizer.normalizer.normalize_str(text) for text in joining]
            if tokenizer_folder.name == "neox":  # a token is decoded to its text in the file
                normalized = [text.replace("<caf\u00e9>", "<cafe\u0301>") for text in normalized]
            check_samples(octet, folder / "joining", normalized, "", tokenizer.id_to_token(end))
            check_cuts(octet, folder / tokenizer_folder.name, joining, tokenizer_folder, tokenizer, end)

        for byte_level in folders:
            tokenizer_folder, edge_texts = cases.edges(folder / "edges", byte_level)
            (folder / byte_level.name).mkdir()
            tokenizer = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
            compare(tokenizer_folder.name, edge_texts, prepare(octet, folder / byte_level.name, edge_texts, tokenizer_folder),
                    (encoding.ids for encoding in tokenizer.encode_batch_fast(edge_texts)))

        # An option decides whether a token ends each document. The template decides which tokens begin it.
        few = folder / "few"
        few.mkdir()
        tokenizer = Tokenizer.from_file(str(llama3 / "tokenizer.json"))
        compare("--no-append-eod", every[:20], prepare(octet, few, every[:20], llama3 / "tokenizer.json", "--no-append-eod"),
                [tokenizer.encode(text).ids for text in every[:20]])

        model = cases.sentence_piece(folder / "sentencepiece", training)
        processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
        begin, end = processor.bos_id(), processor.eos_id()
        compare("sentencepiece", every, prepare(octet, folder / "every", every, model),
                ([begin, *ids, end] for ids in map(processor.encode, every)))

        model, encoding = cases.tiktoken_ranks(folder / "tiktoken", llama3)
        begin = encoding.n_vocab
        compare("tiktoken", every, prepare(octet, folder / "every", every, model),
                ([begin, *encoding.encode_ordinary(text), begin + 1] for text in every))


if __name__ == "__main__":
    main()
