"""Checks the commands of pages without running them: subcommands, options, keys of a run and their values, and names of files."""

import functools
import pathlib
import re
import shlex
import subprocess
import tempfile

from pages import ROOT

PLACEHOLDER = re.compile(r"^(\.\.\.|…|[A-Z_]+)$")


class Program:
    """The subcommands and options of `octet`, from its help."""

    def __init__(self, path):
        self.path = str(path)

    def _call(self, *arguments):
        return subprocess.run([self.path, *arguments], capture_output=True, text=True, timeout=60, cwd=ROOT)

    @functools.lru_cache(maxsize=None)
    def _help(self, command):
        return self._call(*command, "--help").stdout

    def subcommands(self, command):
        after = re.split(r"\n(?:Subcommands|Commands):\n", self._help(command))
        return re.findall(r"^  ([a-z][\w-]*)", after[1].partition("\n\n")[0], re.MULTILINE) if len(after) > 1 else []

    def options(self, command):
        spellings = re.findall(r"^  (-.*?)(?:  |$)", self._help(command), re.MULTILINE)
        return {name for spelling in spellings for name in re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", spelling)}

    def takes_keys(self, command):
        return command == ("bench", "step") or "--section.key=value" in self._help(command)

    def key_error(self, key, value, config):
        """Returns the program's error for --key=value, or None. If the value is None or a placeholder, checks only the key."""
        alone = value is None or PLACEHOLDER.match(value)
        error = self.refuses(config, f"--{key}={'1' if alone else value.split('|')[0]}")
        return None if alone and error and "unknown key" not in error else error

    @functools.lru_cache(maxsize=None)
    def refuses(self, config, *settings):
        """Returns the program's error for a configuration, or None."""
        result = self._call("train", config, "--print-config", *settings)
        return result.stderr.strip() if result.returncode else None


def joined_lines(block):
    """Yields (line of the page, text), with continued lines joined."""
    pending, start = "", 0
    for at, line in enumerate(block.text.split("\n"), block.line + (1 if block.info else 0)):
        start = start if pending else at
        pending += line
        if pending.endswith("\\"):
            pending = pending[:-1].rstrip() + " "
            continue
        yield start, pending
        pending = ""


def octet_calls(line):
    """Yields the words after `octet` for each call of it in a line of shell or of a synopsis."""
    line = re.sub(r"(^|\s)#.*$", "", line)
    for part in re.split(r"\s(?:\|\|?|&&|;|>)(?=\s)|\$\(|\)", line):
        try:
            words = shlex.split(part)
        except ValueError:
            words = part.split()
        for at, word in enumerate(words):
            if pathlib.PurePosixPath(word).name == "octet" and "=" not in word and words[at - 1 : at] != ["--target"]:
                yield words[at + 1 :]
                break


def call_errors(program, words):
    """Yields the mistakes of a call. `words` follow `octet`."""
    command, words = (), list(words)
    if words[:1] == ["help"]:  # `octet help COMMAND`
        words.pop(0)
    while words and program.subcommands(command):
        names = words[0].split("|")
        if PLACEHOLDER.match(words[0]) or names[0].startswith(("-", "[")):
            return
        for name in names:
            if name not in program.subcommands(command):
                yield f"octet {' '.join(command + (name,))}: no such command"
                return
        command += (names[0],)
        words.pop(0)
        if len(names) > 1:
            return
    if "--" in words:
        yield from call_errors(program, words[words.index("--") + 1 :])
        words = words[: words.index("--")]
    config = next((word for word in words if word.endswith(".toml") and (ROOT / word).is_file()), "configs/quickstart.toml")
    for word in words:
        if word.startswith("["):  # optional, in a synopsis
            word = word.strip("[]")
        if not re.match(r"^--?[A-Za-z]", word):
            continue
        name, _, value = word.partition("=")
        if "." not in name:
            if name not in program.options(command):
                yield f"octet {' '.join(command)} {name}: no such option"
        elif not program.takes_keys(command):
            yield f"octet {' '.join(command)} {name}: this command takes no keys of a run"
        elif name != "--section.key":
            error = program.key_error(name[2:], value if "=" in word else None, config)
            if error:
                yield error


def missing_files(text):
    for path in re.findall(r"(?<![\w./-])(?:configs|examples|tools|tests|docs)/[\w./-]*\w", text):
        if not (ROOT / path).exists():
            yield f"{path}: no such file in the repository"


def command_errors(program, page):
    """Yields a sentence for each mistake in the commands and configurations of a page."""
    for block in page.blocks:
        if block.language() == "toml" and not block.file() and re.search(r"^\[", block.text, re.MULTILINE):
            with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
                file.write(block.text + "\n")
                file.flush()
                error = program.refuses(file.name)
            if error:
                yield f"{page.name}:{block.line}: {error}"
        if block.language() not in ("", "sh", "bash", "console"):
            continue
        for line, text in joined_lines(block):
            if re.search(r"\boctet( \w+)?: ", text):  # a message of the program, not a call
                continue
            for words in octet_calls(text):
                for error in call_errors(program, words):
                    yield f"{page.name}:{line}: {error}"
            for error in missing_files(re.sub(r"(^|\s)#.*$", "", text)):
                yield f"{page.name}:{line}: {error}"
    for line, span in page.code_spans():
        if re.match(r"octet [a-z]", span):
            for words in octet_calls(span):
                for error in call_errors(program, words):
                    yield f"{page.name}:{line}: {error}"
