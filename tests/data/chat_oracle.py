"""Compares the corpora of `octet data prepare --chat` with Jinja templates in the form of the published ones: every id with that of PyPI's
tokenizers for the text that the template gives, as transformers' apply_chat_template does, and the loss mask with the assistant's turns.
The tokenizers are trained on this machine, and the conversations are made up at random."""

import json
import pathlib
import random
import subprocess
import sys
import tempfile

import numpy as np
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

import tokenizer_cases as cases
from corpus_oracle import read_documents

JINJA = {
    "llama3": """{%- for message in messages -%}
{{ (bos_token if loop.first else '') + '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content | trim + '<|eot_id|>' }}
{%- endfor -%}""",
    "chatml": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
              "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "mistral": """{%- set system = messages[0].content + '\n\n' if messages[0].role == 'system' else '' -%}
{{ bos_token }}
{%- for message in (messages[1:] if system else messages) -%}
{%- if message.role == 'user' -%}{{ ' [INST] ' + (system if loop.first else '') + message.content + ' [/INST]' }}
{%- else -%}{{ ' ' + message.content + eos_token }}{%- endif -%}
{%- endfor -%}""",
    "zephyr": """{% for message in messages %}
{{ '<|' + message.role + '|>\n' + message.content + eos_token }}
{% endfor %}""",
}
TURN = {"llama3": lambda text: text.strip() + "<|eot_id|>", "chatml": lambda text: text + "<|im_end|>",
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
        return rng.choice(["", " ", "\n", "\u00a0 "]) * (rng.random() < 0.3) + cases.odd_text(rng)[:rng.choice([3, 40, 400])]

    messages = [{"role": "system", "content": text() or "s"}] if rng.random() < 0.5 else []
    for turn in range(rng.randrange(1, 9)):
        if name in ("llama3", "chatml") and rng.random() < 0.2:
            messages.append({"role": "tool", "content": text()})
        messages.append({"role": ("user", "assistant")[turn % 2], "content": text()})
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
        if shown == got:
            continue
        assert shown.endswith(got), (name, turn, got)
        missing = shown[:len(shown) - len(got)]
        # The token before holds what is missing, behind something that belongs to the template.
        last = text_of(before[-1:])
        assert missing and last.endswith(missing) and len(last) > len(missing), (name, turn, got, last)


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
        turns = [TURN[name](m["content"]) for m in talk if m["role"] == "assistant"]
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


def main():
    octet, rng = sys.argv[1], random.Random(5)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        made = tokenizers(folder)
        for template, paths in made.items():
            for i, path in enumerate(paths):
                for train_on in ("assistant", "last", "all") if i == 0 else ("assistant",):
                    compare(octet, folder, template, path, rng, train_on)
        check_auto(octet, folder, made["chatml"][0])


if __name__ == "__main__":
    main()
