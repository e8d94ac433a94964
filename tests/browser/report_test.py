"""report_test.py OCTET FOLDER: checks report.html, the watched page and the pictures in a headless Chromium, at the widths of a desktop
and of a phone, in light and dark. Nothing may scroll sideways, be cut off or lie on other text. Screenshots go to FOLDER. Prints a line
with PASS or FAIL for each check. The exit code is 1 if one failed."""

import contextlib
import json
import math
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import chrome  # noqa: E402

HERE = pathlib.Path(__file__).parent
LOOKS = [(width, height, scheme) for width, height in ((1300, 900), (390, 844)) for scheme in ("light", "dark")]
failures = 0


def check(name, faults):
    global failures
    failures += bool(faults)
    print(("FAIL " if faults else "PASS ") + name, flush=True)
    for fault in faults[:12]:
        print("     " + fault)


def write_run(folder, name, recipe, factor, steps=400, repeat_of="", ranks=8, layers=8):
    """Writes a run that fills every column of every table, with long names."""
    folder.mkdir(parents=True)
    info = dict(name=name, recipe=recipe, repeat_of=repeat_of, device="cuda", device_name="NVIDIA H200", model="configs/llama3.1-8b-wide",
                parameters=8030261248, layers=layers, processes=ranks, seq_len=8192, global_batch_size=64, tokens_per_step=524288,
                steps=steps, seed=42, lr=3e-4, data="data/a-corpus-with-a-long-name, data/another-one", initial_eval_loss=4.02,
                initial_eval_loss_bf16=4.0, version="0.1.0", started="2026-11-22T10:00:00Z")
    (folder / "run.json").write_text(json.dumps(info))
    with open(folder / "metrics.jsonl", "w") as out:
        for step in range(1, steps + 1):
            loss = factor * (2 + 9 / (step + 3)) + 0.02 * math.sin(step * 1.7)
            out.write(json.dumps(dict(
                step=step, loss=loss, grad_norm=1 + 3 / step, lr=3e-4, tokens_seen=524288 * step, step_time_s=3.9, data_time_s=0.01,
                tokens_per_s=136000.0, tokens_per_s_per_gpu=17011.0 * (2 - factor), tflops_per_gpu=874.9, mfu=0.8851, memory_peak_gib=104.3,
                fp8_flop_share=0.9, samples_per_s=2.1, comm_exposed_s=0.2, eval_loss=loss * 1.01 if step % 50 == 0 else None)) + "\n")
    if recipe == "bf16":
        return
    linears = ["self_attn.qkv_proj.fused", "self_attn.o_proj", "mlp.gate_up_proj.fused", "mlp.down_proj"]
    with open(folder / "fp8_health.jsonl", "w") as out:
        for step in range(1, steps + 1, 20):
            for layer in range(layers):
                for number, linear in enumerate(linears):
                    for operand in "xwg":
                        out.write(json.dumps(dict(step=step, tensor=f"model.layers.{layer}.{linear}.{operand}", amax=2.0 ** (number - layer),
                                                  scale=2.0**layer, saturated_pct=1e-4 * layer, flushed_pct=0.3 * number * layer,
                                                  sqnr_db=31 - 0.8 * layer)) + "\n")


def wide_runs(folder):
    write_run(folder / "bf16", "bf16", "bf16", 1)
    write_run(folder / "bf16-repeat", "bf16-repeat", "bf16", 1.001, repeat_of="bf16")
    for number, name in enumerate(["fp8_delayed", "fp8_current", "fp8_block", "fp8_rowwise", "fp8_delayed-head-fast", "fp8_delayed-16-bit"]):
        write_run(folder / name, name, name.split("-")[0], 1 + 0.002 * number)


def scaled_runs(folder):
    for ranks in (8, 64):
        for recipe, factor in (("bf16", 1), ("fp8_delayed", 1.002)):
            write_run(folder / f"{recipe}-{ranks}", recipe, recipe, factor, ranks=ranks)


def octet(program, *arguments):
    result = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    if result.returncode != 0:
        raise RuntimeError(result.stderr.strip())


def look_at(browser, screenshots, name, url, elsewhere=True):
    for width, height, scheme in LOOKS:
        browser.look(width, height, scheme)
        browser.open(url)
        faults = browser.evaluate((HERE / "layout.js").read_text())
        brightness = browser.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0) / 765")
        if (brightness > 0.5) != (scheme == "light"):
            faults.append(f"the page is {brightness:.2f} bright in {scheme}")
        faults += browser.complaints()
        faults += [f"asks for {other}" for other in browser.requests() if elsewhere and other != url]
        browser.screenshot(screenshots / f"{name}-{width}-{scheme}.png")
        check(f"{name} at {width} pixels, {scheme}", faults)


@contextlib.contextmanager
def watching(program, folder):
    """Starts `octet report FOLDER --watch`. Yields its address and its process."""
    server = subprocess.Popen([program, "report", folder, "--watch", "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        yield re.search(r"http://127\.0\.0\.1:\d+/", server.stdout.readline()).group(), server
    finally:
        server.kill()
        server.wait()


def watch_a_run(browser, screenshots, program, finished, work):
    running = work / "running"
    running.mkdir()
    with watching(program, running) as (address, server):
        browser.look(1300, 900, "light")
        browser.open(address)
        check("before the first step the page waits", [] if "Waiting: " in browser.evaluate("document.body.innerText") else ["it does not say so"])
        for name in ("run.json", "fp8_health.jsonl"):
            shutil.copy(finished / name, running / name)
        lines = (finished / "metrics.jsonl").read_text().splitlines(keepends=True)

        def grow_to(step):
            with open(running / "metrics.jsonl", "a") as out:
                out.writelines(lines[len((running / "metrics.jsonl").read_text().splitlines()):step])

        grow_to(100)
        check("the first steps appear", [] if browser.wait_for("document.body.innerText.includes('step 100 of 400')") else ["they do not"])
        browser.evaluate("document.querySelector('details').open = false; scrollTo(0, 700)")
        grow_to(200)
        faults = [] if browser.wait_for("document.body.innerText.includes('step 200 of 400')") else ["the new steps do not appear"]
        if (place := browser.evaluate("scrollY")) != 700:
            faults.append(f"the reader stood at 700 and stands at {place}")
        if browser.evaluate("document.querySelector('details').open"):
            faults.append("what was folded is open")
        check("new steps appear and the reader's place stays", faults + browser.complaints())
        look_at(browser, screenshots, "watched", address, elsewhere=False)
        browser.open(address)
        server.send_signal(signal.SIGINT)
        code = server.wait()
        lost = browser.wait_for("getComputedStyle(document.querySelector('.lost')).display !== 'none'")
        check("it ends on SIGINT with 0, and the page says so", [f"code {code}"] * (code != 0) + ["the page does not"] * (not lost))


def main():
    program, screenshots = sys.argv[1], pathlib.Path(sys.argv[2])
    screenshots.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name, contextlib.closing(chrome.Chrome(chrome.find())) as browser:
        work = pathlib.Path(name)
        wide_runs(work / "wide")
        scaled_runs(work / "scaled")
        for kind, folders in (("compared", [work / "wide"]), ("scaled", [work / "scaled"]), ("alone", [work / "wide" / "fp8_block"])):
            octet(program, "report", *folders, "--output", work / kind, "--picture", screenshots / f"picture-{kind}.svg")
            look_at(browser, screenshots, f"report-{kind}", (work / kind / "report.html").as_uri())
        for picture in sorted(screenshots.glob("picture-*.svg")):
            # As in a README: an image, in which no script runs and nothing is loaded.
            scheme = "dark" if "dark" in picture.name else "light"
            page = work / "picture.html"
            page.write_text(f'<body style="margin: 0; background: {"#0d1117" if scheme == "dark" else "#fff"}"><img src="{picture.as_uri()}">')
            browser.look(900, 540, scheme)
            browser.open(page.as_uri())
            sizes = browser.evaluate("[document.images[0].naturalWidth, document.images[0].naturalHeight]")
            browser.screenshot(screenshots / f"{picture.stem}.png")
            faults = [] if sizes == [900, 540] else [f"it is {sizes} pixels"]
            browser.open(picture.as_uri())
            faults += browser.evaluate((HERE / "layout.js").read_text().replace('"body *"', '"svg"').replace("document.body", "document.documentElement"))
            check(picture.stem, faults)
        watch_a_run(browser, screenshots, program, work / "wide" / "fp8_delayed", work)
    return 1 if failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, OSError) as error:
        print(f"FAIL tests/browser: {error}")
        sys.exit(1)
