#!/usr/bin/env python3
"""tools/quality_table.py OCTET OUT: the table and the picture of the runs that tools/quality.sh made below OUT, one folder a seed.

A run's difference is 100 (loss / baseline - 1), where the baseline is the mean of the BF16 runs of its seed. The run bf16-repeat is compared
with bf16 alone. All differences scatter about the mean of their setting with one standard deviation s, which is estimated from all settings
and seeds together. A setting with n seeds then has the 95 % interval mean +- t s / sqrt(n), where t is Student's, with the degrees of freedom
of s. Prints the table, and writes OUT/quality.txt, a line of JSON for each run, and OUT/quality-light.svg and -dark.svg.
"""
import json
import math
import pathlib
import statistics
import subprocess
import sys

KEYS = {"mean_loss": "loss, last tenth, against BF16", "eval_loss": "held-out loss, against BF16"}
THEMES = {"light": ("#1f2328", "#d0d7de", "#0969da"), "dark": ("#e6edf3", "#30363d", "#58a6ff")}  # text, lines, marks


def student_t(freedom):
    """The 97.5 % quantile by the expansion of Abramowitz and Stegun, 26.7.5."""
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def rows_of(octet, runs):
    text = subprocess.run([octet, "report", *map(str, runs), "--json"], check=True, capture_output=True, text=True).stdout
    return {row["name"]: row for row in json.loads(text)["rows"]}


def read_seeds(octet, out):
    """{seed: {setting: row of the report}} of complete runs, for the seeds that have a BF16 run."""
    folders = sorted(p for p in out.iterdir() if p.name.isdigit() and (p / "bf16" / "done").exists())
    return {int(p.name): rows_of(octet, sorted(done.parent for done in p.glob("*/done"))) for p in folders}


def differences_of(seeds, key):
    """{setting: [difference in per cent of each seed]}."""
    differences = {}
    for rows in seeds.values():
        both = statistics.fmean(rows[name][key] for name in ("bf16", "bf16-repeat") if name in rows)
        for name, row in rows.items():
            if name != "bf16":
                differences.setdefault(name, []).append(100 * (row[key] / (rows["bf16"][key] if name == "bf16-repeat" else both) - 1))
    return differences


def spread_of(differences):
    """s and its degrees of freedom."""
    squares = sum(sum((d - statistics.fmean(ds)) ** 2 for d in ds) for ds in differences.values())
    freedom = sum(len(ds) - 1 for ds in differences.values())
    return (math.sqrt(squares / freedom), freedom) if freedom else (math.nan, 0)


def intervals_of(differences):
    """{setting: (mean, half of the interval)}."""
    s, freedom = spread_of(differences)
    t = student_t(freedom) if freedom else math.nan
    return {name: (statistics.fmean(ds), t * s / math.sqrt(len(ds))) for name, ds in differences.items()}


def print_table(seeds, intervals):
    names = sorted({name for rows in seeds.values() for name in rows}, key=lambda n: (n not in ("bf16", "bf16-repeat"), n))
    mean = lambda name, value: statistics.fmean(value(rows[name]) for rows in seeds.values() if name in rows)
    speed = {name: mean(name, lambda row: row["tokens_per_s_per_process"]) for name in names}
    print("| setting | seeds | tokens/s | against BF16 | speed-up at equal loss | " + " | ".join(KEYS.values()) + " |")
    print("|---" * (5 + len(KEYS)) + "|")
    for name in names:
        cells = [f"`{name}`", str(sum(name in rows for rows in seeds.values())), f"{speed[name]:,.0f}"]
        if name == "bf16":
            cells += [""] * (2 + len(KEYS))
        else:
            cells.append(f"{100 * (speed[name] / speed['bf16'] - 1):+.1f}%")
            cells.append(f"{mean(name, lambda row: row['equal_loss']['speedup']):.2f}")
            cells += ["{:+.2f}% ± {:.2f}".format(*intervals[key][name]) for key in KEYS]
        print("| " + " | ".join(cells) + " |")


def picture(intervals, theme):
    """The intervals as SVG: a row for each setting, a panel for each key."""
    text, line, mark = THEMES[theme]
    names = sorted(intervals["mean_loss"], key=lambda n: (n != "bf16-repeat", intervals["mean_loss"][n][0] + intervals["eval_loss"][n][0]))
    ends = [abs(mean) + half for of_key in intervals.values() for mean, half in of_key.values() if math.isfinite(half)]
    reach = math.ceil(2 * max(ends, default=1)) / 2
    left, width, gap, top, step = 130, 270, 40, 44, 24
    bottom = top + step * len(names)
    parts = []
    for panel, (key, title) in enumerate(KEYS.items()):
        start = left + panel * (width + gap)
        x = lambda value: start + width * (value + reach) / (2 * reach)
        parts.append(f'<text x="{x(0):.0f}" y="20" text-anchor="middle" font-weight="600">{title}</text>')
        for tick in range(-round(2 * reach), round(2 * reach) + 1):
            at = x(tick / 2)
            parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{top - 8}" y2="{bottom}" stroke="{text if tick == 0 else line}"/>')
            if tick % 2 == 0:
                parts.append(f'<text x="{at:.1f}" y="{bottom + 18}" text-anchor="middle">{"0" if tick == 0 else format(tick / 2, "+.0f")}%</text>')
        for row, name in enumerate(names):
            y, (mean, half) = top + step * row + 6, intervals[key][name]
            if panel == 0:
                parts.append(f'<text x="{left - 12}" y="{y + 4}" text-anchor="end">{name}</text>')
            if math.isfinite(half):
                parts.append(f'<line x1="{x(mean - half):.1f}" x2="{x(mean + half):.1f}" y1="{y}" y2="{y}" stroke="{mark}" stroke-width="2"/>')
            parts.append(f'<circle cx="{x(mean):.1f}" cy="{y}" r="4" fill="{mark}"/>')
    size = f'viewBox="0 0 {left + 2 * width + gap + 20} {bottom + 28}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12" fill="{text}">\n' + "\n".join(parts) + "\n</svg>\n"


def main(octet, out):
    out = pathlib.Path(out)
    seeds = read_seeds(octet, out)
    if not seeds:
        sys.exit(f"{out}: no seed has a complete BF16 run yet")
    (out / "quality.txt").write_text("".join(json.dumps({"seed": seed, **row}) + "\n" for seed, rows in seeds.items() for row in rows.values()))
    differences = {key: differences_of(seeds, key) for key in KEYS}
    intervals = {key: intervals_of(of_key) for key, of_key in differences.items()}
    print_table(seeds, intervals)
    for key, of_key in differences.items():
        print("{}: the differences of one setting scatter with a standard deviation of {:.2f}% ({} degrees of freedom).".format(
            KEYS[key], *spread_of(of_key)))
    for theme in THEMES:
        (out / f"quality-{theme}.svg").write_text(picture(intervals, theme))


if __name__ == "__main__":
    main(*sys.argv[1:])
