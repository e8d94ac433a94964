"""Trains tokenizers for the oracles on text from this machine, and makes documents to try them on. Both are repeatable."""

import base64
import functools
import json
import pathlib
import random
import sysconfig
import unicodedata

import sentencepiece
import tiktoken
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from tokenizers import normalizers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
SPECIALS = ["<|begin_of_text|>", "<|end_of_text|>"] + [f"<|reserved_special_token_{i}|>" for i in range(254)]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
LINE = "\u2581"


@functools.cache
def found_paths():
    """Returns the paths of Python sources, documentation and messages in many languages on this machine."""
    folders = [pathlib.Path(sysconfig.get_path(name)) for name in ("purelib", "stdlib")]
    folders += [pathlib.Path("/usr/share/locale"), pathlib.Path("/usr/share/doc"), pathlib.Path("/usr/include")]
    kinds = {".py", ".txt", ".md", ".mo", ".h", ".hpp", ".json", ".html", ".rst"}
    return [path for folder in folders for path in sorted(folder.rglob("*")) if path.suffix in kinds and path.is_file()]


def found_texts(paths):
    for path in paths:
        text = path.read_bytes().decode(errors="replace" if path.suffix != ".mo" else "ignore")
        if text:
            yield text[:400_000]


def joining_text(rng, count):
    """Makes text that NFC changes: marks in any order, jamo, characters without a composed form, marks of recent versions of Unicode."""
    parts = [lambda: chr(rng.randrange(0x300, 0x370)), lambda: rng.choice("aeoOA\u00e9\u1ea5\u0915\u09c7\u0f40 "),
             lambda: chr(rng.randrange(0x1100, 0x1200)), lambda: chr(0xAC00 + 28 * rng.randrange(399)), lambda: chr(rng.randrange(0xAC00, 0xD7A4)),
             lambda: rng.choice("\ufb1d\u0958\u2126\u212b\u0344\u0f43\u0f71\u0f72\u0f74\u0f80\u09be\u3099\u302a\u05b0\uf900\U0002f800\U0001d15e"),
             lambda: rng.choice("\u07fd\u0898\u1abf\u1ace\u1dfa\u11a7\u0c3c\U00011930\U00011935\U0001133b\U0001e136\U0001e2ec\u0897\U00016d67\U000113c2"),
             lambda: unicodedata.normalize("NFD", chr(rng.randrange(0xC0, 0x2000))), lambda: rng.choice("\n \t")]
    return "".join(rng.choice(parts)() for _ in range(3 * count))


def odd_text(rng):
    """Makes text that tokenizers get wrong: rare characters, all kinds of white space, contractions, special tokens, joined emoji."""
    pieces = []
    for _ in range(rng.randrange(1, 60)):
        kind = rng.randrange(15)
        count = rng.randrange(1, 12)
        if kind == 0:
            pieces += [chr(rng.choice([rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)])) for _ in range(count)]
        elif kind == 1:
            start = rng.choice([0x80, 0x370, 0x400, 0x590, 0x600, 0x900, 0xE00, 0x1100, 0x1C80, 0x3040, 0x4E00, 0xA7C0, 0xAC00,
                                0x105C0, 0x10D40, 0x11380, 0x16D40, 0x1E030, 0x31350])
            pieces += [chr(start + rng.randrange(120)) for _ in range(count)]
        elif kind == 2:
            pieces.append(rng.choice([" ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "\u180e", "\u0085", "\u2028", LINE, "\v"]) * count)
        elif kind == 3:
            pieces.append(rng.choice([" ", "  ", "\n "]) * rng.choice([1, 7, 80, 700]))
        elif kind == 4:
            pieces.append("we" + rng.choice(["'", "\u2019"]) + rng.choice(["re", "LL", "\u017f", "S", "ve", "M", "x", "\u212a", "d"]))
        elif kind == 5:
            pieces.append(rng.choice(SPECIALS[:4] + ["<s>", "</s>", "<unk>", "<keep me>", "<two\u2581lines>", "<|", "<0x41>", "</s"]))
        elif kind == 6:
            pieces.append("\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466\U0001f1e9\U0001f1ea\U0001f44b\U0001f3fd" * (count % 3))
        elif kind == 7:
            pieces.append(str(rng.randrange(10**rng.randrange(1, 15))))
        elif kind == 8:
            pieces.append("".join(rng.choice("e\u0301a\u0308\u0e33\u0939\u093f\ufb01\u00df\u0130") for _ in range(count)))
        elif kind == 13:
            pieces.append(joining_text(rng, count))
        elif kind == 14:
            pieces.append(rng.choice(FAMILY_TOKENS))
        elif kind == 9:
            pieces.append(rng.choice("ab=-*/.#") * rng.choice([1, 3, 60, 500]))
        elif kind == 10:
            pieces.append("".join(chr(rng.randrange(0x4E00, 0x9FFF)) for _ in range(20 * count)))
        else:
            pieces.append(" " + "".join(rng.choice("etaoinshrdlu") for _ in range(count)))
    return "".join(pieces)


def every_join():
    """Returns texts in which every character below U+20000 stands between marks and jamo, and every decomposition."""
    points = [chr(c) for c in [*range(1, 0x3400), *range(0xA000, 0xAC40), *range(0xD7A0, 0xD800), *range(0xF900, 0x12000), *range(0x16000, 0x20000)]]
    texts = ["".join(f"a{c}\u0327\u0334{c}\u0301{c} \u1100{c}\uac00{c}\u0345" for c in points[begin:begin + 4000])
             for begin in range(0, len(points), 4000)]
    apart = [unicodedata.normalize("NFD", chr(c)) for c in [*range(0xC0, 0xAC00), *range(0xF900, 0x30000)]]
    return texts + ["\n".join(text for text in apart if len(text) > 1)]


def every_character():
    every = "".join(chr(c) + (" " if c % 3 else "a") for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000)
    return [every[begin:begin + 50_000] for begin in range(0, len(every), 50_000)]


def documents(target_bytes, seed=7):
    """Makes documents of every length except 0, of at least `target_bytes` bytes of UTF-8 in all."""
    rng = random.Random(seed)
    paths = rng.sample(found_paths(), len(found_paths()))
    result = [" ", "\n", "a", LINE, " " * 5000, "\n" * 5000, "x" * 70_000, "the " * 20_000]
    result += [odd_text(rng)[:60].strip() or "b" for _ in range(300)]
    result += [rng.randbytes(rng.randrange(1, 2000)).decode(errors="replace") for _ in range(100)]  # from invalid bytes
    total = round_ = 0
    while total < target_bytes:
        for text in found_texts(paths):
            if round_ > 0:  # repeated texts get another order, with odd text in between
                lines = text.splitlines(keepends=True)
                rng.shuffle(lines)
                text = "".join(line if rng.random() < 0.7 else line.rstrip("\n") + odd_text(rng) for line in lines)
            start = rng.randrange(len(text)) if rng.random() < 0.3 else 0
            for new in (text[start:], odd_text(rng)):
                if new:
                    result.append(new)
                    total += len(new.encode())
            if total >= target_bytes:
                break
        round_ += 1
    return result


def training_text(size):
    text = []
    for document in found_texts(found_paths()):
        text.append(document[:20_000])
        size -= len(text[-1])
        if size < 0:
            break
    return text


def write(folder, definition, eos=None):
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text(json.dumps(definition, ensure_ascii=False))
    if eos:
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": eos, "special": True}}))
    return folder


def byte_level(folder, texts, vocabulary=6000):
    """Makes three tokenizers: one like Llama 3's, one with Qwen 2's pattern and merges in arrays, and one like GPT-2's."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(LLAMA3), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False)])
    base = json.loads(tokenizer.to_str())
    vocab = base["model"]["vocab"]
    # No merges make these words. With ignore_merges they are found, without it they never are.
    for word in ("\u0120unreachable", "\u0120xyzzy", "\u00c3\u0142berraschung"):
        vocab.setdefault(word, len(vocab))
    base["added_tokens"] = [
        {"id": len(vocab) + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": text == "<keep me>", "special": text != "<keep me>"} for i, text in enumerate(SPECIALS + ["<keep me>"])]
    begin = {"id": SPECIALS[0], "ids": [len(vocab)], "tokens": [SPECIALS[0]]}
    base["post_processor"]["processors"].append(
        {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": SPECIALS[0], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
         "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": {SPECIALS[0]: begin}})
    result = [write(folder / "llama3", base, SPECIALS[1])]

    qwen = json.loads(json.dumps(base))
    qwen["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = QWEN2
    qwen["model"]["ignore_merges"] = False
    qwen["model"]["merges"] = [merge if isinstance(merge, list) else merge.split(" ") for merge in base["model"]["merges"]]
    result.append(write(folder / "qwen2", qwen, SPECIALS[1]))

    gpt = json.loads(json.dumps(base))
    gpt["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    gpt["post_processor"] = None
    gpt["model"]["ignore_merges"] = False
    gpt["model"]["merges"] = [merge if isinstance(merge, str) else " ".join(merge) for merge in base["model"]["merges"]]
    result.append(write(folder / "gpt2", gpt))
    return result


QWEN_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|fim_prefix|>", "<tool_call>", "</tool_call>", "<think>", "</think>"]
NEOX_TOKENS = ["<|endoftext|>", "<|padding|>"]
FAMILY_TOKENS = QWEN_TOKENS + NEOX_TOKENS + [" " * count for count in range(2, 60)] + ["<caf\u00e9>", "<cafe\u0301>"]
NEVER_IN_UTF8 = [0xC0, 0xC1, *range(0xF5, 0x100)]


def added(number, content, special, normalized):
    return {"id": number, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": normalized,
            "special": special}


def normalizing(folder, texts, vocabulary=6000):
    """Makes tokenizers in the form of Qwen's and of GPT-NeoX's, which normalize to NFC and have no template."""
    tokenizer = Tokenizer(models.BPE(continuing_subword_prefix="", end_of_word_suffix=""))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(QWEN2), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False))
    qwen = json.loads(tokenizer.to_str())
    size = len(qwen["model"]["vocab"])
    qwen["added_tokens"] = [added(size + i, text, text.startswith("<|"), False) for i, text in enumerate(QWEN_TOKENS)]
    result = [write(folder / "qwen3", qwen, "<|im_end|>")]

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel()
    # As in the published file, there are no tokens for the bytes that UTF-8 never has.
    written = bytes_as_characters()
    alphabet = [character for character, byte in written.items() if byte not in NEVER_IN_UTF8]
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=alphabet, special_tokens=NEOX_TOKENS,
                                                             show_progress=False))
    neox = json.loads(tokenizer.to_str())
    assert len([token for token in neox["model"]["vocab"] if len(token) == 1]) == 256 - len(NEVER_IN_UTF8)
    size = len(neox["model"]["vocab"])
    neox["added_tokens"] += [added(size + i, " " * (24 - i), False, True) for i in range(23)]
    neox["added_tokens"].append(added(size + 23, "<cafe\u0301>", False, True))  # is found where the text has its normalized form
    result.append(write(folder / "neox", neox, "<|endoftext|>"))
    return result


def edges(folder, byte_level_folder):
    """Makes a tokenizer whose ids show where words begin, and documents to check that. "a", "1" and a space join with the first byte of
    the next character if it belongs to the same word. The documents have every character after each of the three."""
    definition = json.loads((byte_level_folder / "tokenizer.json").read_text())
    characters = [token for token in definition["model"]["vocab"] if len(token) == 1]
    merges = [[left, right] for left in ("a", "1", "\u0120") for right in characters if not right.isascii()]
    vocabulary = characters + ["".join(merge) for merge in merges]
    definition["model"].update(vocab={token: i for i, token in enumerate(vocabulary)}, merges=merges, ignore_merges=False)
    definition["added_tokens"], definition["post_processor"] = [], None
    points = [chr(c) for c in [*range(1, 0x32400), *range(0xE0000, 0xE0200)] if not 0xD800 <= c < 0xE000]
    texts = ["".join(f"a{c}1{c} {c}" for c in points[begin:begin + 4000]) for begin in range(0, len(points), 4000)]
    return write(folder / f"edges-{byte_level_folder.name}", definition), texts


WHOLE = f"{LINE}*[^{LINE}]*"
SCRIPTS = f"{LINE}*([\\p{{L}}]+|\\p{{N}}|[^\\p{{L}}\\p{{N}}{LINE}]+|$)"


def metaspace(folder, texts, vocabulary=6000, words=WHOLE):
    """Makes tokenizers like Llama 2's in the old form, and with every form of the Metaspace pre-tokenizer. Merges stay within `words`:
    SCRIPTS is close to what SentencePiece trains, WHOLE is harder."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(LINE), normalizers.Replace(" ", LINE)])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(words), "isolated")
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=["<unk>", "<s>", "</s>"] + BYTES, limit_alphabet=700,
                                  show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(LINE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    base = json.loads(tokenizer.to_str())
    base["added_tokens"] = [token for token in base["added_tokens"] if token["content"] not in BYTES]
    base["pre_tokenizer"] = None
    base["post_processor"] = {
        "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
    result = [write(folder / "llama2", base, "</s>")]

    normalized = json.loads(json.dumps(base))  # added tokens that are normalized like other text
    size = len(base["model"]["vocab"])
    for token in normalized["added_tokens"]:
        token["normalized"] = True
    normalized["added_tokens"] += [
        {"id": size + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
        for i, text in enumerate(["<keep me>", f"<two{LINE}lines>"])]
    result.append(write(folder / "normalized", normalized, "</s>"))

    for scheme, split in (("first", False), ("always", True), ("never", False), ("first", True)):
        newer = json.loads(json.dumps(base))
        newer["normalizer"] = None
        newer["pre_tokenizer"] = {"type": "Metaspace", "replacement": LINE, "prepend_scheme": scheme, "split": split}
        if scheme == "never":
            newer["decoder"]["decoders"].pop()  # without its space before the text, Strip would take another one
        result.append(write(folder / f"{scheme}-{split}", newer, "</s>"))
    return result


def sentence_piece(folder, texts, vocabulary=6000):
    folder.mkdir(parents=True)
    lines = [line for text in texts for line in text.splitlines() if 0 < len(line.encode()) < 4000]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=str(folder / "tokenizer"), vocab_size=vocabulary, model_type="bpe",
        byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=True,
        split_digits=True, allow_whitespace_only_pieces=True, character_coverage=0.999, user_defined_symbols=["<keep me>"],
        num_threads=1, minloglevel=2)
    return folder / "tokenizer.model"


def bytes_as_characters():
    characters = {}
    for byte in range(256):
        printable = 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174
        characters[chr(byte) if printable else chr(256 + len([c for c in characters if ord(c) >= 256]))] = byte
    return characters


def tiktoken_ranks(folder, hugging_face):
    """Writes a byte-level tokenizer's tokens in the order of its merges as tiktoken's ranks. Also returns tiktoken's encoding."""
    model = json.loads((hugging_face / "tokenizer.json").read_text())["model"]
    characters = bytes_as_characters()
    ranks = {bytes([byte]): byte for byte in range(256)}
    for merge in model["merges"]:
        token = bytes(characters[c] for c in "".join(merge if isinstance(merge, list) else merge.split(" ")))
        ranks.setdefault(token, len(ranks))
    folder.mkdir(parents=True)
    lines = [base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items()]
    (folder / "tokenizer.model").write_bytes(b"".join(lines))
    return folder / "tokenizer.model", tiktoken.Encoding("here", pat_str=LLAMA3, mergeable_ranks=ranks, special_tokens={})
