#!/usr/bin/env python3
"""tools/pictures.py [--check]: draws the pictures in docs/pictures/. With --check, writes nothing and fails if a picture differs from what
this script draws. `octet plan --picture` draws memory.svg and pipeline.svg, which tests/end_to_end/plan_picture_test.cpp compares."""

import argparse
import pathlib
import re
import sys
import textwrap
from html import escape

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from check_layers import read_layers  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
COLOURS = {  # class: (light page, dark page); the tints follow the strong colours
    "a": ("#2b6cd9", "#6ea2ff"),
    "b": ("#d8622a", "#ff9a5e"),
    "c": ("#12886a", "#43c79d"),
    "d": ("#8449cf", "#b68cfa"),
    "e": ("#7a756c", "#a9a59d"),
    "ta": ("#cfe0fa", "#22365c"),
    "tb": ("#fadfd1", "#55301b"),
    "tc": ("#cdeae1", "#123f33"),
    "td": ("#e4d6f6", "#3a2757"),
    "te": ("#ece8e0", "#2c2d31"),
}


def style():
    light = "".join(f".{name} {{ fill: {fill}; }} .s{name} {{ stroke: {fill}; }}\n" for name, (fill, _) in COLOURS.items())
    dark = "".join(f".{name} {{ fill: {fill}; }} .s{name} {{ stroke: {fill}; }}\n" for name, (_, fill) in COLOURS.items())
    return f"""text {{ font-family: Inter, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; font-size: 14px; fill: #1d1c1a; }}
.mono {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; }}
.title {{ font-size: 18px; font-weight: 600; }} .bold {{ font-weight: 600; }} .soft {{ fill: #5f5b54; }} .fine {{ font-size: 12.5px; fill: #5f5b54; }}
.tiny {{ font-size: 11px; fill: #5f5b54; }} .line {{ fill: none; stroke-width: 2; }} .dash {{ stroke-dasharray: 4 4; }}
.rule {{ fill: none; stroke: #d8d3c8; }} .edge {{ fill: none; stroke: #8b857a; }} .strong {{ fill: none; stroke: #1d1c1a; stroke-width: 2; }} .on {{ fill: #ffffff; }}
{light}@media (prefers-color-scheme: dark) {{
text {{ fill: #eceae5; }} .soft, .fine, .tiny {{ fill: #a9a59d; }} .rule {{ stroke: #3a3c41; }} .edge {{ stroke: #75726b; }} .strong {{ stroke: #eceae5; }}
.on {{ fill: #131417; }}
{dark}}}
"""


class Svg:
    """Collects the elements of a picture. The size is given at the end."""

    def __init__(self, label):
        self.label, self.parts = label, []

    def text(self, x, y, text, css="", anchor="start"):
        at = "" if anchor == "start" else f' text-anchor="{anchor}"'
        kind = f' class="{css}"' if css else ""
        self.parts.append(f'<text{kind}{at} x="{x:.1f}" y="{y:.1f}">{escape(str(text))}</text>')

    def rect(self, x, y, width, height, css, radius=0, tip=""):
        inner = f"><title>{escape(tip)}</title></rect>" if tip else "/>"
        round_corners = f' rx="{radius}"' if radius else ""
        self.parts.append(f'<rect class="{css}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"{round_corners}{inner}')

    def line(self, points, css):
        self.parts.append(f'<polyline class="{css}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>')

    def dot(self, x, y, css):
        self.parts.append(f'<circle class="{css}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>')

    def done(self, width, height):
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
                f'aria-label="{escape(self.label)}">\n<style>\n{style()}</style>\n' + "\n".join(self.parts) + "\n</svg>\n")


def rooms():
    """Draws the table of docs/layers.md, with the first words of each room's description from the second table."""
    page = ROOT / "docs/layers.md"
    layers = read_layers(page)
    holds = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", page.read_text(), re.MULTILINE))
    svg = Svg("The rooms of Octet in ten layers; each includes only rooms of lower layers")
    width, left, row, gap = 920, 56, 62, 10
    for place, layer in enumerate(sorted(set(layers.values()), reverse=True)):
        y = 10 + place * (row + gap)
        names = [name for name in layers if layers[name] == layer]
        box = (width - left - 10 - gap * (len(names) - 1)) / len(names)
        svg.text(left - 18, y + row / 2 + 5, layer, "soft", "end")
        for i, name in enumerate(names):
            x = left + i * (box + gap)
            svg.rect(x, y, box, row, ("ta", "tc", "td", "tb")[layer % 4], 6)
            svg.text(x + 12, y + 20, name, "bold")
            if name not in holds:
                sys.exit(f"{page}: the second table does not say what {name} holds")
            words = re.sub(r"[`*]", "", re.split(r"[;:.]", holds[name])[0])
            lines = textwrap.wrap(words, int((box - 24) / 6.3))
            if len(lines) > 2:
                lines = [lines[0], lines[1][: lines[1].rfind(",")] if "," in lines[1] else lines[1] + " ..."]
            for k, line in enumerate(lines):
                svg.text(x + 12, y + 37 + 16 * k, line, "fine")
    bottom = 10 + len(set(layers.values())) * (row + gap)
    svg.text(left, bottom + 14, "A room includes only rooms of lower layers. Rooms of one layer do not see each other.", "fine")
    return svg.done(width, bottom + 26)


def mesh():
    """Draws which rank holds which part of a weight with replicate 2 x shard 2 x tensor 2."""
    sizes = {"replicate": 2, "shard": 2, "tensor": 2}
    rows = 8  # rows of the weight in the picture; each rank holds rows / (tensor x shard)
    svg = Svg("A mesh of 8 ranks and the pieces of one weight that each holds")
    card, gap, high = 208, 12, 168
    svg.text(16, 26, "8 ranks = replicate 2 x shard 2 x tensor 2", "title")
    svg.text(16, 48, "Filled: the shard of the weight that a rank stores, updates and saves. Outlined: the rows that it gathers and multiplies.", "fine")
    for rank in range(8):
        replicate, rest = divmod(rank, sizes["shard"] * sizes["tensor"])
        shard, tensor = divmod(rest, sizes["tensor"])
        x = 16 + replicate * (2 * card + 2 * gap + 20) + tensor * (card + gap)
        y = 92 + shard * (high + gap)
        if rest == 0:
            svg.text(x, y - 14, f"replica {replicate}", "bold")
        svg.rect(x, y, card, high, "te", 6)
        svg.text(x + 12, y + 24, f"rank {rank}", "bold")
        svg.text(x + card - 12, y + 24, f"shard {shard}, tensor {tensor}", "fine", "end")
        per_tensor = rows // sizes["tensor"]
        per_rank = per_tensor // sizes["shard"]
        for r in range(rows):
            mine = r // per_tensor == tensor and r % per_tensor // per_rank == shard
            svg.rect(x + 12, y + 36 + 11 * r, 100, 10, "abcd"[r // per_rank] if mine else "t" + "abcd"[r // per_rank])
        svg.rect(x + 10, y + 34 + 11 * per_tensor * tensor, 104, 11 * per_tensor + 2, "strong")
        first = tensor * per_tensor + shard * per_rank
        svg.text(x + 122, y + 52, "stores", "fine")
        svg.text(x + 122, y + 68, f"rows {first}-{first + per_rank - 1}", "fine")
        svg.text(x + 122, y + 92, "multiplies", "fine")
        svg.text(x + 122, y + 108, f"rows {tensor * per_tensor}-{(tensor + 1) * per_tensor - 1}", "fine")
        svg.text(x + 12, y + high - 14, f"sequences of data rank {replicate * sizes['shard'] + shard}", "fine")
    bottom = 92 + 2 * (high + gap)
    notes = ("A weight of 8 rows. The tensor axis gives each of two ranks four rows, and all ranks of one tensor group see the same sequences.",
             "The shard axis cuts these rows flat into two shards, all-gathers them before use and reduce-scatters their gradients.",
             "The replicate axis repeats everything on other sequences and all-reduces the gradients once per step.")
    for i, note in enumerate(notes):
        svg.text(16, bottom + 12 + 19 * i, note, "fine")
    return svg.done(920, bottom + 12 + 19 * len(notes))


FORMATS = (  # name, bits of sign, exponent and mantissa, use
    ("BF16", 1, 8, 7, "the source of every quantisation"),
    ("E4M3", 1, 4, 3, "weights, activations, many gradients"),
    ("E5M2", 1, 5, 2, "output gradients in per-tensor recipes"),
    ("E8M0", 0, 8, 0, "scales of MX blocks"),
)


def largest(name, exponent, mantissa):
    """Returns the largest finite value. E4M3 has no infinity; NaN takes one code of its top exponent. In E8M0, NaN takes the last code."""
    if name == "E8M0":
        return 2.0 ** (2**exponent - 2 - 127)
    bias = 2 ** (exponent - 1) - 1
    if name == "E4M3":
        return 2.0 ** (2**exponent - 1 - bias) * (2 - 2.0 ** (1 - mantissa))
    return 2.0 ** (2**exponent - 2 - bias) * (2 - 2.0**-mantissa)


def formats():
    svg = Svg("The bits of BF16, E4M3, E5M2 and E8M0")
    bit = 26
    for i, (name, sign, exponent, mantissa, use) in enumerate(FORMATS):
        y = 16 + 58 * i
        svg.text(16, y + 24, name, "bold mono")
        x = 84
        for css, letter, count in (("e", "S", sign), ("a", "E", exponent), ("b", "M", mantissa)):
            for _ in range(count):
                svg.rect(x, y, bit - 2, 36, css, 3)
                svg.text(x + bit / 2 - 1, y + 23, letter, "on bold mono", "middle")
                x += bit
        top = largest(name, exponent, mantissa)
        svg.text(524, y + 16, f"largest {top:g}" if top < 1e6 else f"largest {top:.3g}")
        svg.text(524, y + 34, use, "fine")
    y = 16 + 58 * len(FORMATS) + 12
    for x, css, word in ((84, "e", "sign"), (170, "a", "exponent"), (290, "b", "mantissa")):
        svg.rect(x, y - 11, 13, 13, css, 2)
        svg.text(x + 20, y, word, "fine")
    return svg.done(860, y + 16)


SCALES = (  # title, recipe, tile (0: the whole dim), rows and columns in the picture
    ("per tensor", "fp8_delayed, fp8_current", (0, 0), (256, 512)),
    ("per row", "fp8_rowwise", (1, 0), (8, 512)),
    ("1 x 128", "fp8_block: X and G", (1, 128), (8, 512)),
    ("128 x 128", "fp8_block: W", (128, 128), (256, 512)),
    ("1 x 32", "mxfp8", (1, 32), (8, 512)),
)


def scales():
    svg = Svg("Which elements of an operand share a scale")
    box, high, gap = 166, 96, 14
    svg.text(16, 26, "Elements of one shade share a scale", "title")
    out, inner = 14336, 4096
    for i, (title, recipe, (tile_rows, tile_columns), (rows, columns)) in enumerate(SCALES):
        x, y = 16 + i * (box + gap), 66
        svg.text(x, y - 10, title, "bold")
        tall, wide = tile_rows or rows, tile_columns or columns
        for r in range(rows // tall):
            for c in range(columns // wide):
                left, top = x + c * wide * box / columns, y + r * tall * high / rows
                svg.rect(left, top, wide * box / columns - 0.8, tall * high / rows - 0.8, ("a", "ta")[(r + c) % 2])
        count = (out // (tile_rows or out)) * (inner // (tile_columns or inner))
        svg.text(x, y + high + 20, recipe, "fine")
        svg.text(x, y + high + 38, f"drawn: {rows} x {columns} elements", "tiny")
        svg.text(x, y + high + 54, f"[{out:,}, {inner:,}]: {count:,}", "tiny")
    for i, note in enumerate((
            "Rows run along the dim that the product sums over. The last line of each drawing counts the scales of an operand of that shape.",
            "A product that sums over the other dim reads a second version of the operand: for whole tensors and 128 x 128 tiles the transpose",
            "of the first, for the finer tiles quantised again. Scales are FP32; those of 1 x 32 tiles are E8M0.")):
        svg.text(16, 250 + 18 * i, note, "fine")
    return svg.done(920, 300)


def read_table(path):
    """Returns the rows of a tab-separated file as dictionaries. Lines that begin with # are comments."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    names = lines[0].split("\t")
    return [dict(zip(names, line.split("\t"))) for line in lines[1:]]


def scaling():
    """Draws the total tokens/s on 1, 2 and 4 GPUs and the line of perfect scaling."""
    rows = read_table(ROOT / "docs/pictures/scaling.tsv")
    models = list(dict.fromkeys(row["model"] for row in rows))
    svg = Svg("Tokens per second on one, two and four H200")
    panel, high, top = 400, 236, 84
    svg.text(16, 26, "Measured: tokens per second of all GPUs together", "title")
    svg.text(16, 46, "H200 over NVLink, 8 x 8,192 tokens for each GPU and step. Percent: what each GPU keeps of the rate of one.", "fine")
    for i, model in enumerate(models):
        left = 70 + i * (panel + 50)
        most = max(float(r["tokens_per_s_per_gpu"]) * int(r["gpus"]) for r in rows if r["model"] == model)
        step = 10.0 ** (len(str(int(most))) - 1)
        step = step if most / step >= 4 else step / 2
        up = lambda value: top + high - high * value / (1.15 * most)  # noqa: E731
        over = lambda gpus: left + panel * 0.80 * gpus / 4  # noqa: E731
        svg.text(left, top - 12, model, "bold")
        value = 0.0
        while value <= 1.15 * most:
            svg.line([(left, up(value)), (left + panel - 30, up(value))], "rule")
            svg.text(left - 8, up(value) + 4, f"{value / 1000:,.0f} K" if value else "0", "fine", "end")
            value += step
        for gpus in (1, 2, 4):
            svg.text(over(gpus), top + high + 20, f"{gpus} GPU{'s' if gpus > 1 else ''}", "fine", "middle")
        for recipe, css in (("fp8_delayed", "a"), ("bf16", "b")):
            points = {int(r["gpus"]): float(r["tokens_per_s_per_gpu"]) for r in rows if r["model"] == model and r["recipe"] == recipe}
            svg.line([(over(g), up(g * points[1])) for g in (0, 4)], "line dash s" + css)
            svg.line([(over(g), up(g * points[g])) for g in sorted(points)], "line s" + css)
            for gpus, each in points.items():
                svg.dot(over(gpus), up(gpus * each), css)
                kept = f"{100 * each / points[1]:.1f}%"
                if gpus > 1 and css == "a":
                    svg.text(over(gpus) - 10, up(gpus * each) - 7, kept, "fine", "end")
                elif gpus > 1:
                    svg.text(over(gpus) + 10, up(gpus * each) + 16, kept, "fine")
    y = top + high + 46
    for x, css, word in ((70, "a", "FP8, delayed scaling"), (260, "b", "BF16")):
        svg.line([(x, y - 4), (x + 26, y - 4)], "line s" + css)
        svg.text(x + 34, y, word, "fine")
    svg.line([(350, y - 4), (376, y - 4)], "line dash se")
    svg.text(384, y, "one GPU's rate times their number", "fine")
    return svg.done(920, y + 16)


def timeline():
    """Draws a step on its streams, from the output of `octet plan --schedule`, which tests/end_to_end/plan_test.cpp compares with the
    program."""
    path = ROOT / "tests/golden/plan/schedule.txt"
    lines = path.read_text().splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("stream "))
    ranges = []
    for line in lines[head + 1:]:
        if not line:
            break
        stream, begin, end, name = line.split(None, 3)
        ranges.append((stream, float(begin), float(end), name))
    names = ["compute", *sorted({r[0] for r in ranges} - {"compute"})]
    last = max(end for _, _, end, _ in ranges)
    svg = Svg("What each stream of a GPU does during one step, as predicted")
    left, right, top, high = 130, 904, 76, 58
    at = lambda ms: left + (right - left) * max(0.0, ms) / last  # noqa: E731
    layers = sum(name.endswith(" forward") for _, _, _, name in ranges)
    svg.text(16, 26, f"One step of {layers} layers on the streams of a GPU: predicted, not measured", "title")
    svg.text(16, 47, "; ".join(line.split(";")[0] if i == 0 else line for i, line in enumerate(lines[:head])), "fine")

    def kind(name):
        for word, css, label in (("gather", "c", "g"), ("reduce", "d", "r"), ("forward", "a", "f"), ("backward", "b", "b")):
            if word in name.split():
                number = re.search(r"\d+", name)
                return css, f"{label}{number[0]}" if number else f"{label} {name.split()[-1]}"
        return "e", {"squares": "norm", "update": "AdamW", "optimizer": "", "head": "head and loss"}.get(name.split()[0], name)

    inside = {name for _, _, _, name in ranges}
    for row, stream in enumerate(names):
        y = top + row * (high + 16)
        svg.text(left - 12, y + 34, stream, "bold", "end")
        svg.line([(left, y + high), (right, y + high)], "rule")
        for owner, begin, end, name in ranges:
            if owner != stream or (name == "optimizer" and any(n.startswith("update") for n in inside)):
                continue
            css, label = kind(name)
            width = at(end) - at(begin)
            svg.rect(at(begin), y + 6, max(1.0, width - 1), high - 12, css, 2, f"{name}: {begin:.2f} to {end:.2f} ms")
            if width > 8.5 * len(label) + 4:
                svg.text(at(begin) + width / 2, y + 34, label, "on tiny bold", "middle")
    bottom = top + len(names) * (high + 16)
    ticks = 8
    step = next(s for s in (1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000) if last / s <= ticks)
    for i in range(int(last / step) + 1):
        svg.text(at(i * step), bottom + 8, f"{i * step} ms", "fine", "middle" if i else "start")
    words = (("a", "f0-f3: forward"), ("b", "b3-b0: backward"), ("c", "gather a unit's weights"), ("d", "reduce its gradients"), ("e", "head, loss, norm, AdamW"))
    for i, (css, word) in enumerate(words):
        x = 16 + 178 * i
        svg.rect(x, bottom + 27, 13, 13, css, 2)
        svg.text(x + 20, bottom + 38, word, "fine")
    return svg.done(920, bottom + 54)


PICTURES = {"rooms": rooms, "mesh": mesh, "formats": formats, "scales": scales, "scaling": scaling, "timeline": timeline}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a picture is not up to date")
    check = parser.parse_args().check
    stale = []
    for name, draw in PICTURES.items():
        path = ROOT / "docs/pictures" / f"{name}.svg"
        picture = draw()
        if check and (not path.exists() or path.read_text() != picture):
            stale.append(f"{path.relative_to(ROOT)}: not what tools/pictures.py draws today; run it")
        elif not check:
            path.write_text(picture)
    print("\n".join(stale) if stale else f"{len(PICTURES)} pictures")
    sys.exit(1 if stale else 0)


if __name__ == "__main__":
    main()
