"""Compares the corpora of `octet data prepare --chat` with Jinja templates in the form of the published ones: every id with that of PyPI's
tokenizers for the text that the template gives, as transformers' apply_chat_template does, and the loss mask with the assistant's turns.
The tokenizers are trained on this machine, and the conversations are made up at random. `octet generate --chat` is compared, too: with
the likeliest tokens behind the ids of such a prompt, which `octet probe` computes one by one."""

import itertools
import json
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import safetensors.numpy
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

import tokenizer_cases as cases
from corpus_oracle import read_documents

JINJA = {
    "llama3": """{%- for message in messages -%}
{{ (bos_token if loop.first else '') + '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content | trim + '<|eot_id|>' }}
{%- endfor -%}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' if add_generation_prompt else '' -}}""",
    "chatml": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
              "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "llama3.1": """{%- set system = messages[0].content | trim if messages[0].role == 'system' else '' -%}
{{ bos_token + '<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n' + system + '<|eot_id|>' }}
{%- for message in (messages[1:] if messages[0].role == 'system' else messages) -%}
{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content | trim + '<|eot_id|>' }}
{%- endfor -%}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' if add_generation_prompt else '' -}}""",
    "qwen3": """{%- set found = namespace(question=messages | length - 1) -%}
{%- for m in messages -%}
{%- if m.role == 'user' and not (m.content.startswith('<tool_response>') and m.content.endswith('</tool_response>')) -%}
{%- set found.question = loop.index0 -%}
{%- endif -%}
{%- endfor -%}
{%- for m in messages -%}
{%- if m.role == 'assistant' -%}
{%- set parts = m.content.split('</think>') -%}
{%- set thought = parts[0].rstrip('\n').split('<think>')[-1].strip('\n') if parts | length > 1 else '' -%}
{%- set said = parts[-1].lstrip('\n') if parts | length > 1 else m.content -%}
{%- set thinks = loop.index0 > found.question and (loop.last or thought) -%}
{{ '<|im_start|>assistant\n' + ('<think>\n' + thought + '\n</think>\n\n' + said.lstrip('\n') if thinks else said) + '<|im_end|>\n' }}
{%- elif m.role == 'tool' -%}
{{ ('' if not loop.first and messages[loop.index0 - 1].role == 'tool' else '<|im_start|>user') + '\n<tool_response>\n' + m.content
   + '\n</tool_response>' + ('' if not loop.last and messages[loop.index0 + 1].role == 'tool' else '<|im_end|>\n') }}
{%- else -%}
{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- endif -%}
{%- endfor -%}
{{- '<|im_start|>assistant\n' if add_generation_prompt else '' -}}""",
    "mistral": """{%- set system = messages[0].content + '\n\n' if messages[0].role == 'system' else '' -%}
{{ bos_token }}
{%- for message in (messages[1:] if system else messages) -%}
{%- if message.role == 'user' -%}{{ ' [INST] ' + (system if loop.first else '') + message.content + ' [/INST]' }}
{%- else -%}{{ ' ' + message.content + eos_token }}{%- endif -%}
{%- endfor -%}""",
    "zephyr": """{% for message in messages %}
{{ '<|' + message.role + '|>\n' + message.content + eos_token }}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}""",
}
TURN = {"llama3": lambda text: text.strip() + "<|eot_id|>", "llama3.1": lambda text: text.strip() + "<|eot_id|>", "chatml": lambda text: text + "<|im_end|>",
        "mistral": lambda text: " " + text + "</s>", "zephyr": lambda text: text + "</s>"}


def run(octet, *arguments, expect=0):
    done = subprocess.run([octet, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == expect, (arguments, done.returncode, done.stdout[-500:], done.stderr[-500:])
    return done


def tokenizers(folder):
    """Makes tokenizers for each template."""
    texts = cases.training_text(1_500_000)
    llama3 = json.loads((cases.byte_level(folder / "byte_level", texts)[0] / "tokenizer.json").read_text())
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    size = len(llama3["model"]["vocab"])
    llama3["added_tokens"] = [cases.added(size + i, name, True, False) for i, name in enumerate(names)]
    result = {"llama3": [cases.write(folder / "llama3", llama3, "<|end_of_text|>")],
              "chatml": cases.normalizing(folder / "normalizing", texts)[:1]}
    result["llama3.1"], result["qwen3"] = result["llama3"], result["chatml"]
    result["mistral"] = result["zephyr"] = cases.metaspace(folder / "metaspace", texts)
    for paths in result.values():
        for path in paths:  # transformers takes these names from here
            bos = "<|begin_of_text|>" if path.name == "llama3" else "<s>"
            config = json.loads((path / "tokenizer_config.json").read_text())
            (path / "tokenizer_config.json").write_text(json.dumps(config | {"bos_token": bos}))
    return result


def conversation(rng, name):
    """Makes a conversation that the template accepts."""
    def text():
        odd = cases.odd_text(rng)[:rng.choice([3, 40, 400])]
        if name == "qwen3":  # text beside a thought would be lost, and is refused
            odd = odd.replace("<think>", "").replace("</think>", "")
        return rng.choice(["", " ", "\n", "\u00a0 "]) * (rng.random() < 0.3) + odd

    messages = [{"role": "system", "content": text() or "s"}] if rng.random() < 0.5 else []
    for turn in range(rng.randrange(1, 9)):
        if name in ("llama3", "chatml", "qwen3") and rng.random() < 0.2:
            messages.append({"role": "tool", "content": text()})
        messages.append({"role": ("user", "assistant")[turn % 2], "content": text()})
    if name == "qwen3" and messages[-1]["role"] == "assistant" and rng.random() < 0.5:  # with a thought, which may be empty
        messages[-1]["content"] = rng.choice(["<think>", "<think>\n", ""]) + text() + "\n</think>" + rng.choice(["", "\n\n"]) + text()
    return messages


def in_form(rng, messages):
    """Writes the same conversation in a form that says so."""
    roles = [message["role"] for message in messages]
    if roles == ["user", "assistant"] and rng.random() < 0.8:
        return {"instruction": messages[0]["content"], "input": "", "output": messages[1]["content"]}
    if rng.random() < 0.5:
        names = {"user": "human", "assistant": "gpt", "tool": "observation"}
        return {"id": 7, "conversations": [{"from": names.get(m["role"], m["role"]), "value": m["content"]} for m in messages]}
    return {"messages": messages, "source": "made up"}


def trained_runs(ids, mask):
    """Returns the stretches of ids that are trained on, each with the ids before it."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask, [0]])))
    return [(ids[:begin], ids[begin:end]) for begin, end in zip(edges[::2], edges[1::2])]


def check_mask(name, tokenizer, ids, mask, turns):
    """Checks that the trained ids are the turns. A token that begins before a turn and ends in it is not trained on."""
    spaced = name in ("mistral", "zephyr")  # the library's decoder of metaspace tokenizers adds and drops spaces around added tokens

    def compared(text):
        if spaced:
            return text.replace(cases.LINE, "").replace(" ", "")
        return tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text

    def text_of(part):
        return compared(tokenizer.decode(list(part), skip_special_tokens=False))

    runs = trained_runs(ids, mask)
    assert len(runs) == len(turns), (name, len(runs), turns)
    for (before, run_ids), turn in zip(runs, turns):
        shown, got = compared(turn), text_of(run_ids)
        if not shown.endswith(got):  # the last token begins in the turn and ends behind it, like ">\n" of "</s>\n"
            beyond = next((n for n in range(1, len(text_of(run_ids[-1:]))) if shown.endswith(got[:-n])), 0)
            got = got[:len(got) - beyond]
        if shown == got:
            continue
        assert shown.endswith(got), (name, turn, got)
        missing = shown[:len(shown) - len(got)]
        # The token before holds what is missing, behind something that belongs to the template.
        last = text_of(before[-1:])
        assert missing and last.endswith(missing) and len(last) > len(missing), (name, turn, got, last)


def turns_of(name, talk):
    """Returns the assistant's turns."""
    if name != "qwen3":
        return [TURN[name](m["content"]) for m in talk if m["role"] == "assistant"]
    turns = []
    for i, message in enumerate(talk):
        if message["role"] == "assistant":
            thought, _, said = message["content"].rpartition("</think>")
            if i == len(talk) - 1:  # a question stands before it
                said = "<think>\n" + thought.removeprefix("<think>").strip("\n") + "\n</think>\n\n" + said.lstrip("\n")
            turns.append(said + "<|im_end|>")
    return turns


def compare(octet, folder, name, path, rng, train_on):
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    config = json.loads((path / "tokenizer_config.json").read_text())
    template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(JINJA[name])
    talks = [conversation(rng, name) for _ in range(200)]
    lines = folder / "talks.jsonl"
    lines.write_text("".join(json.dumps(in_form(rng, talk)) + "\n" for talk in talks))
    run(octet, "data", "prepare", "--input", lines, "--tokenizer", path, "--chat", name, "--train-on", train_on, "--duplicates", "ignore",
        "--output", folder / "corpus")
    answered = [talk for talk in talks if train_on == "all" or any(m["role"] == "assistant" for m in talk)]
    documents, masks = read_documents(folder / "corpus")[1], read_documents(folder / "corpus.loss.bin")[1]
    assert len(documents) == len(masks) == len(answered) > 100, (name, len(documents), len(answered))
    tokens = trained = 0
    for talk, ids, mask in zip(answered, documents, masks, strict=True):
        text = template.render(messages=talk, bos_token=config["bos_token"], eos_token=config["eos_token"]["content"])
        expected = tokenizer.encode(text, add_special_tokens=False).ids
        assert np.array_equal(ids, expected), (name, path.name, text, list(ids), expected)
        turns = turns_of(name, talk)
        if train_on == "all":
            assert mask.all() and len(mask) == len(ids)
        else:
            check_mask(name, tokenizer, ids, mask, turns[-1:] if train_on == "last" else turns)
        tokens, trained = tokens + len(ids), trained + int(mask.sum())
    info = json.loads((folder / "corpus.json").read_text())
    assert info["trained_tokens"] == trained and info["chat"]["no_answer"] == len(talks) - len(answered), info
    print(f"{name} with {path.name}, {train_on}: {len(answered)} conversations, {tokens} tokens, {trained} trained, the same", flush=True)


def check_auto(octet, folder, path):
    """Checks that --chat auto knows a template by its text, wherever transformers looks for it."""
    config = json.loads((path / "tokenizer_config.json").read_text())
    talk = folder / "talk.jsonl"
    talk.write_text(json.dumps({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}) + "\n")

    def prepare(chat, expect=0):
        return run(octet, "data", "prepare", "--input", talk, "--tokenizer", path, "--chat", chat, "--output", folder / "auto", expect=expect)

    prepare("auto", expect=2)  # there is no template
    (path / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": JINJA["chatml"]}))
    prepare("auto")
    assert json.loads((folder / "auto.json").read_text())["chat"]["template"] == "chatml"
    (path / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": [{"name": "default", "template": JINJA["chatml"]}]}))
    prepare("auto")
    (path / "chat_template.jinja").write_text(JINJA["chatml"] + " ")  # goes before the other file
    error = prepare("auto", expect=2).stderr
    assert "chat_template.jinja: its chat template" in error and "--chat with one of" in error, error
    prepare("chatml")


END = {"llama3": "<|eot_id|>", "llama3.1": "<|eot_id|>", "qwen3": "<|im_end|>", "chatml": "<|im_end|>", "mistral": "</s>", "zephyr": "</s>"}
DIM, FFN, LAYERS = 64, 128, 2
# `probe` and `generate` add in different orders, so their logits differ by roundings to BF16, each by up to 2**-9 of a value: here two
# layers with four of them, in either program. Between two logits that are closer than their sum, as a part of the spread, chance decides.
NEAR_TIE = 2 * LAYERS * 4 * 2**-9


def write_model(folder, path, embedding, head, block_std, rng):
    """Writes a Llama with these embeddings beside the tokenizer's files. With a block_std of 0 its blocks add nothing."""
    folder.mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(path / file, folder / file)
    config = {"model_type": "llama", "hidden_size": DIM, "intermediate_size": FFN, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
              "num_key_value_heads": 2, "vocab_size": len(head), "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
              "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    weights = {"model.embed_tokens.weight": embedding, "lm_head.weight": head, "model.norm.weight": np.ones(DIM)}
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{name}.{norm}.weight"] = np.ones(DIM)
        for linear, shape in (("self_attn.q_proj", (DIM, DIM)), ("self_attn.k_proj", (DIM // 2, DIM)), ("self_attn.v_proj", (DIM // 2, DIM)),
                              ("self_attn.o_proj", (DIM, DIM)), ("mlp.gate_proj", (FFN, DIM)), ("mlp.up_proj", (FFN, DIM)),
                              ("mlp.down_proj", (DIM, FFN))):
            weights[f"{name}.{linear}.weight"] = block_std * rng.standard_normal(shape)
    safetensors.numpy.save_file({key: value.astype(np.float32) for key, value in weights.items()}, folder / "model.safetensors")
    return folder


def rendered(name, path, talk, tokenizer):
    """Returns the ids that a model reads to answer."""
    config = json.loads((path / "tokenizer_config.json").read_text())
    template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(JINJA[name])
    text = template.render(messages=talk, bos_token=config["bos_token"], eos_token=config["eos_token"]["content"], add_generation_prompt=True)
    return tokenizer.encode(text, add_special_tokens=False).ids


def answers(octet, model, name, messages, *more):
    """Returns what a conversation with these messages prints."""
    command = [octet, "generate", "--model", model, "--chat", name, "--temperature", "0", *more]
    done = subprocess.run(list(map(str, command)), input="\n".join(messages).encode() + b"\n", capture_output=True)
    assert done.returncode == 0, done
    return done.stdout, done.stderr.decode()


def decoded(tokenizer, ids):
    """What tokenizer.decode returns, but a byte that is no UTF-8 does not spoil the bytes beside it: decode replaces all of them."""
    is_byte = lambda token: re.fullmatch("<0x[0-9A-F]{2}>", tokenizer.id_to_token(token)) is not None
    text = ""
    for bytes_alone, run in itertools.groupby(ids, is_byte):
        run = list(run)
        if bytes_alone:
            text += bytes(int(tokenizer.id_to_token(token)[3:5], 16) for token in run).decode(errors="replace")
        else:
            text += tokenizer.decode(run, skip_special_tokens=False)
    return text


def check_prompts(octet, folder, name, path):
    """Every turn of a conversation continues the ids of the template, with all earlier turns. Returns how many ids were compared."""
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    numbers = np.random.default_rng(3)
    vocab = tokenizer.get_vocab_size()
    model = write_model(folder / f"random-{path.name}-{name}", path, numbers.standard_normal((vocab, DIM)), numbers.standard_normal((vocab, DIM)),
                        0.2, numbers)
    messages = ["Hello there", "wörld  \tof 日本", "<|im_end|> and </s>"]
    system = [] if name == "mistral" else ["--system", " Be brief. "]
    talk, before, most = [{"role": "system", "content": system[1]}] if system else [], b"", 5
    ends = {tokenizer.token_to_id(END[name]), tokenizer.token_to_id(json.loads((path / "tokenizer_config.json").read_text())["eos_token"]["content"])}
    compared = 0
    for turn, message in enumerate(messages):
        talk.append({"role": "user", "content": message})
        ids, new, tie = rendered(name, path, talk, tokenizer), [], False
        for _ in range(most):
            tokens = np.array([ids + new], np.int64)
            safetensors.numpy.save_file({"tokens": tokens}, folder / "tokens.safetensors")
            run(octet, "probe", "--model", model, "--tokens", folder / "tokens.safetensors", "--recipe", "bf16", "--output", folder / "out.safetensors")
            logits = safetensors.numpy.load_file(folder / "out.safetensors")["logits"][0, -1]
            likeliest = int(logits.argmax())
            tie = logits[likeliest] - np.partition(logits, -2)[-2] < NEAR_TIE * logits.std()
            if tie or likeliest in ends:
                break
            new.append(likeliest)
        said, _ = answers(octet, model, name, messages[:turn + 1], "--max-tokens", most, *system)
        assert said.startswith(before) and said.endswith(b"\n"), (name, said, before)
        answer = said[len(before):-1].decode(errors="replace")
        expected = decoded(tokenizer, new)
        plain = [text.replace(" ", "").replace("\ufffd", "") for text in (answer, expected)]  # libraries add spaces around added tokens
        assert plain[0].startswith(plain[1]) if tie else plain[0] == plain[1], (name, path.name, turn, answer, expected)
        compared += len(new)
        talk.append({"role": "assistant", "content": answer})
        before = said
    print(f"{name} with {path.name}: {len(messages)} answers continue the template's ids, {compared} tokens", flush=True)
    return compared


def check_end(octet, folder, name, path):
    """A model in which every token has one successor says what it must, and stops at the end of its turn."""
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    numbers = np.random.default_rng(4)
    vocab = tokenizer.get_vocab_size()
    embedding, head = numbers.standard_normal((vocab, DIM)), np.zeros((vocab, DIM))
    first = rendered(name, path, [{"role": "user", "content": "a"}], tokenizer)[-1]
    said = tokenizer.encode("yes", add_special_tokens=False).ids
    chain = [first, *said, tokenizer.token_to_id(END[name])]
    assert len(set(chain)) == len(chain), chain
    for token, successor in zip(chain, chain[1:]):
        head[successor] = embedding[token]
    model = write_model(folder / f"chain-{path.name}-{name}", path, embedding, head, 0.0, numbers)
    out, error = answers(octet, model, name, ["a", "b", "", "/quit", "c"])
    assert out.decode().split() == ["yes", "yes"] and not error, (name, out, error)
    one = run(octet, "generate", "--model", model, "--chat", name, "--prompt", "a", "--temperature", "0")
    assert one.stdout.strip() == "yes", one


def check_long(octet, folder, name, path):
    """A conversation that outgrows the context of 512 tokens forgets its oldest messages, and says so in one line."""
    model = folder / f"chain-{path.name}-{name}"
    out, error = answers(octet, model, name, ["a b c d e f g h " * 10] * 20)
    assert out.decode().split() == ["yes"] * 20, out
    assert error.splitlines()[0].startswith("the conversation no longer fits into the model's context of 512 tokens: its oldest 2 messages"), error
    command = [octet, "generate", "--model", model, "--chat", name]
    done = subprocess.run(list(map(str, command)), input="a b c d " * 2000, capture_output=True, text=True)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and "tokens, and the model's context has 512" in done.stderr, done
    command += ["--system", "a b c d " * 2000]
    done = subprocess.run(list(map(str, command)), input="a", capture_output=True, text=True)
    assert done.returncode == 2 and "the system message and the message alone make" in done.stderr, done


def main():
    octet, rng = sys.argv[1], random.Random(5)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        made, compared = tokenizers(folder), 0
        for template, paths in made.items():
            for i, path in enumerate(paths):
                for train_on in ("assistant", "last", "all") if i == 0 else ("assistant",):
                    compare(octet, folder, template, path, rng, train_on)
                compared += check_prompts(octet, folder, template, path)
                check_end(octet, folder, template, path)
        assert compared >= 60, compared  # of about 160
        check_long(octet, folder, "chatml", made["chatml"][0])
        check_auto(octet, folder, made["chatml"][0])


if __name__ == "__main__":
    main()
