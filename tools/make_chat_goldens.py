"""Makes tests/golden/chat/: conversations in the text of the chat templates that `--chat auto` knows, as transformers renders it.

    pip install transformers jinja2 xxhash
    python tools/make_chat_goldens.py FOLDER

FOLDER holds the published templates as *.jinja, in files of any name. They are known by the XXH3 of their text, as
src/octet/data/chat/template.cpp lists it, and the repository has no copy of them. Each golden has the sum of its template and,
for each conversation, the messages and the text.
"""
import json
import pathlib
import re
import sys

import xxhash
from transformers.utils.chat_template_utils import render_jinja_template

ROOT = pathlib.Path(__file__).resolve().parent.parent
KNOWN = re.findall(r'\{+"([0-9a-f]{16})", "([^"]+)"[^/]*// *(\S+)', (ROOT / "src/octet/data/chat/template.cpp").read_text())
TOKENS = {"llama3": ("<|begin_of_text|>", "<|end_of_text|>"), "llama3.1": ("<|begin_of_text|>", "<|eot_id|>"),
          "chatml": ("<|endoftext|>", "<|im_end|>"), "qwen3": ("<|endoftext|>", "<|im_end|>"),
          "mistral": ("<s>", "</s>"), "zephyr": ("<s>", "</s>")}


def talk(*messages):
    return [dict(role=role, content=content) for role, content in messages]


TURNS = [("user", "Name a river.\n"), ("assistant", " The Ob,  or\nthe Po. "), ("user", "\u00a0And a lake? \u6e56"),
         ("assistant", "Como \u2013 <b>deep</b>")]
ALL = [talk(*TURNS), talk(*TURNS[:2]), talk(("system", "Answer\n in one line. "), *TURNS),
       talk(("system", "s"), ("user", ""), ("assistant", "x\n"))]
TOOLS = [talk(TURNS[0], ("assistant", "One moment."), ("tool", "Ob\n"), ("assistant", "The Ob.")),
         talk(("system", "s"), TURNS[0], ("assistant", "?"), ("tool", '{"a": 1}'), ("tool", "2"), ("assistant", "Both."),
              ("user", "Why?"), ("assistant", "So."))]
THOUGHTS = [talk(*TURNS[:3], ("assistant", "<think>\nComo or Garda?\n</think>\n\nComo.")),
            talk(TURNS[0], ("assistant", "<think>\n\n</think>\n\nThe Ob.")),
            talk(TURNS[0], ("assistant", "two rivers\n</think>The Po"))]


def conversations(name, published):
    chosen = list(ALL)
    wraps_tools = published.startswith("Qwen2.5")  # what they say is then no turn of its own, and Octet refuses it
    if name in ("llama3", "qwen3") or (name == "chatml" and not wraps_tools):
        chosen += TOOLS
    return chosen + (THOUGHTS if name == "qwen3" else [])


def main():
    out = ROOT / "tests/golden/chat"
    out.mkdir(parents=True, exist_ok=True)
    files = sorted(pathlib.Path(sys.argv[1]).glob("*.jinja"))
    texts = {xxhash.xxh3_64_hexdigest(path.read_bytes()): path.read_text() for path in files}
    for number, (xxh3, name, published) in enumerate(KNOWN):
        assert xxh3 in texts, f"no template with the XXH3 {xxh3} ({name}, {published}) in {sys.argv[1]}"
        bos, eos = TOKENS[name]
        chosen = conversations(name, published)
        rendered, _ = render_jinja_template(conversations=chosen, chat_template=texts[xxh3], bos_token=bos,
                                            eos_token=eos)
        talks = [{"messages": messages, "text": text} for messages, text in zip(chosen, rendered, strict=True)]
        golden = {"xxh3": xxh3, "template": name, "conversations": talks}
        (out / f"{number}-{name}.json").write_text(json.dumps(golden, indent=1) + "\n")
        print(f"{name} ({published}): {len(chosen)} conversations")


if __name__ == "__main__":
    main()
