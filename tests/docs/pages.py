"""Reads a Markdown page for run_pages.py: its code blocks with their marks, its links, and the anchors of its headings."""

import pathlib
import re
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parents[2]

FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})\s*(.*)$")
HIDDEN = re.compile(r"<!-- run:(.*?)-->", re.DOTALL)
SPAN = re.compile(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)")


@dataclass
class Block:
    line: int  # counted from 1; the line of the fence, the comment or the first indented line
    info: str  # what follows the fence; "hidden" for a comment, "" for an indented block
    text: str

    def words(self):
        return self.info.split()

    def language(self):
        return self.words()[0] if self.info else ""

    def runs(self):
        return self.info == "hidden" or self.words()[:2] == ["sh", "run"]

    def file(self):
        """Returns the name of the file that the block becomes, as in ```toml file=run.toml, or None."""
        return next((word[5:] for word in self.words() if word.startswith("file=")), None)


class Page:
    def __init__(self, path):
        self.path = pathlib.Path(path).resolve()
        self.name = str(self.path.relative_to(ROOT)) if self.path.is_relative_to(ROOT) else self.path.name
        self.blocks = []
        self.prose = []  # (line, text) outside of code blocks
        self._read(self.path.read_text().split("\n"))

    def _read(self, lines):
        at = 0
        while at < len(lines):
            line, start = lines[at], at
            fence = FENCE.match(line)
            if fence:
                at += 1
                while at < len(lines) and not re.match(r"^ {0,3}" + fence[1] + r"\s*$", lines[at]):
                    at += 1
                if at == len(lines):
                    raise ValueError(f"{self.name}:{start + 1}: this code block has no end")
                self.blocks.append(Block(start + 1, fence[2].strip(), "\n".join(lines[start + 1 : at])))
            elif line.startswith("<!-- run:"):
                while "-->" not in lines[at]:
                    at += 1
                    if at == len(lines):
                        raise ValueError(f"{self.name}:{start + 1}: this comment has no end")
                self.blocks.append(Block(start + 1, "hidden", HIDDEN.match("\n".join(lines[start : at + 1]))[1].strip()))
            elif line.startswith("    ") and line.strip() and (at == 0 or not lines[at - 1].strip()):
                while at + 1 < len(lines) and (lines[at + 1].startswith("    ") or not lines[at + 1].strip()):
                    at += 1
                self.blocks.append(Block(start + 1, "", "\n".join(text[4:] for text in lines[start : at + 1])))
            else:
                self.prose.append((start + 1, line))
            at += 1

    def links(self):
        """Yields (line, target) of every link, picture and HTML reference outside of code."""
        for line, text in self.prose:
            text = SPAN.sub("", text)
            for target in re.findall(r"\]\(<?([^)\s>]+)[^)]*\)", text) + re.findall(r'\b(?:src|srcset|href)="([^"\s]+)', text):
                yield line, target

    def code_spans(self):
        for line, text in self.prose:
            for span in SPAN.finditer(text):
                yield line, span[2].strip()

    def anchors(self):
        """Returns the anchors that GitHub gives to headings, and those that the page defines itself."""
        seen, anchors = {}, set()
        for _, text in self.prose:
            anchors.update(re.findall(r'<a (?:id|name)="([^"]+)"', text))
            heading = re.match(r"^#{1,6}\s+(.*?)\s*#*$", text)
            if heading:
                title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1])
                slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
                count = seen.get(slug, 0)
                seen[slug] = count + 1
                anchors.add(f"{slug}-{count}" if count else slug)
        return anchors


def link_errors(page):
    """Yields a sentence for every relative link that does not resolve, and for every page or file named in the text that does not exist."""
    for line, target in page.links():
        if re.match(r"^[a-z][a-z+.-]*:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.path.parent / path).resolve() if path else page.path
        if not file.exists():
            yield f"{page.name}:{line}: {target}: no such file"
        elif anchor and file.suffix == ".md" and anchor not in Page(file).anchors():
            yield f"{page.name}:{line}: {target}: the page has no such heading"
    for line, text in page.prose:
        for path in mentioned_pages(text):
            if not (ROOT / path).exists():
                yield f"{page.name}:{line}: {path}: no such file"
        for path in mentioned_files(text):
            if not (ROOT / path).exists() and not (ROOT / "src/octet" / path).exists():
                yield f"{page.name}:{line}: {path}: no such file"


def mentioned_files(text):
    """Returns the sources, tests and configurations that the text names, from the repository's root or from src/octet. `x` and capitals
    stand for a name that the reader chooses."""
    folders = [*(ROOT / "src/octet").iterdir(), *(ROOT / name for name in ("cmake", "configs", "examples", "src", "tests", "tools"))]
    names = "|".join(folder.name for folder in folders if folder.is_dir())
    paths = re.findall(rf"(?<![\w./-])(?:{names})/[\w./-]*\.(?:h|cpp|cu|cuh|toml|py|sh|cmake|tsv)\b", text)
    return [path for path in paths if not re.search(r"/(?:x|x_\w+|[A-Z]+)\.", path)]


def mentioned_pages(text):
    return re.findall(r"(?<![\w./-])docs/[\w./-]*\.(?:md|svg|png)\b", text)


def unreachable_pages(contents):
    """Returns the pages in and below the folder of the table of contents that no chain of links from it reaches."""
    reached, waiting = set(), [contents.resolve()]
    while waiting:
        path = waiting.pop()
        if path in reached:
            continue
        reached.add(path)
        for _, target in Page(path).links():
            file = (path.parent / target.partition("#")[0]).resolve()
            if file.suffix == ".md" and file.is_file() and file.is_relative_to(contents.parent.resolve()):
                waiting.append(file)
    return sorted(set(path.resolve() for path in contents.parent.rglob("*.md")) - reached)
