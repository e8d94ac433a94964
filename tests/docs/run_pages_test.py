#!/usr/bin/env python3
"""run_pages_test.py OCTET: checks that run_pages.py reports exactly the one mistake of each bad page, and nothing for a good page."""

import pathlib
import sys
import tempfile
import unittest

import pages
import run_pages

OCTET = pathlib.Path(sys.argv.pop(1)).resolve()


class RunPages(unittest.TestCase):
    def errors(self, text):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "page.md"
            path.write_text(text)
            (pathlib.Path(folder) / "other.md").write_text("# Other\n\n## Two words\n\n## Two words\n")
            return list(run_pages.errors(pages.Page(path), OCTET))

    def assert_one(self, text, *said):
        errors = self.errors(text)
        self.assertEqual(len(errors), 1, errors)
        for part in said:
            self.assertIn(part, errors[0])

    def test_good_page(self):
        self.assertEqual(self.errors(GOOD), [])

    def test_commands_that_run(self):
        self.assert_one("```sh run\necho before\nfalse\necho after\n```\n", "page.md:1", "ended with 1", "before")
        self.assert_one("```sh run\nfalse | cat\n```\n\ntext\n\n```sh run\ntrue\n```\n", "page.md:1")
        self.assert_one("```sh run\ntrue\n```\n\n<!-- run: no-such-program -->\n", "page.md:5", "ended with 127")
        self.assert_one("```sh run\noctet train configs/quickstart.toml\n```\n", "ended with 76", "out/quickstart/corpus")

    def test_output(self):
        page = "```sh run\nprintf 'a 1\\nb 2\\nc 3\\n'\n```\n\n```text {}\n{}\n```\n"
        self.assertEqual(self.errors(page.format("output", "a 1\nb 2")), [])
        self.assertEqual(self.errors(page.format("output", "a …\n…\nc 3")), [])
        self.assertEqual(self.errors(page.format("output numbers vary", "a 7\nb 1,000.5")), [])
        self.assertEqual(self.errors("```sh run\necho -----\n```\n\n```text output numbers vary\n------\n```\n"), [])
        self.assertEqual(self.errors("```sh run\necho eta 1m37s\n```\n\n```text output numbers vary\neta 4.9s\n```\n"), [])
        self.assert_one("```sh run\necho 3 steps\n```\n\n```text output numbers vary\n3s steps\n```\n", "did not print `3s steps`")
        self.assert_one(page.format("output", "a 1\nc 3"), "did not print `c 3`")
        self.assert_one(page.format("output", "a 2"), "did not print `a 2`")
        self.assert_one(page.format("output", "b 2\na 1"), "did not print `a 1`")
        self.assert_one(page.format("output numbers vary", "a 7\nb x"), "did not print `b x`")
        self.assert_one("```text output\na\n```\n\n```sh run\necho a\n```\n", "without a block that runs")

    def test_commands_that_do_not_run(self):
        for command, said in (
            ("octet trian run.toml", "octet trian: no such command"),
            ("octet bench stepp", "octet bench stepp: no such command"),
            ("octet help trian", "octet trian: no such command"),
            ("octet train run.toml --dryrun", "octet train --dryrun: no such option"),
            ("octet data inspect PREFIX --training.steps=3", "takes no keys"),
            ("octet train run.toml --training.stepz=3", "training.stepz: unknown key"),
            ("octet train run.toml --training.stepz=N", "training.stepz: unknown key"),
            ("octet train run.toml --precision.recipe=fp9", "must be one of"),
            ("octet train run.toml \\\n    --precision.recipe=fp9", "page.md:2"),
            ("octet launch -n 2 -- train run.toml --nonsense", "octet train --nonsense: no such option"),
            ("torchrun --no-python octet trian run.toml", "octet trian: no such command"),
            ("octet report out && build/release/octet genrate --model DIR", "octet genrate: no such command"),
            ("octet train configs/llama9.toml", "configs/llama9.toml: no such file"),
        ):
            self.assert_one(f"```sh\n{command}\n```\n", said)
        self.assert_one("text\n\n    octet trian run.toml\n", "page.md:3")
        self.assert_one("Call `octet trian run.toml` now.\n", "page.md:1")
        self.assert_one('```toml\n[precision]\nrecipe = "fp9"\n```\n', "must be one of")

    def test_links(self):
        self.assert_one("[a](nowhere.md)\n", "nowhere.md: no such file")
        self.assert_one("![a](nowhere.svg)\n", "nowhere.svg: no such file")
        self.assert_one('<img src="nowhere.svg">\n', "nowhere.svg: no such file")
        self.assert_one("[a](other.md#three-words)\n", "no such heading")
        self.assert_one("# Here\n\n[a](#there)\n", "no such heading")
        self.assert_one("Read `docs/nowhere.md`.\n", "docs/nowhere.md: no such file")
        self.assert_one("Read `tests/train/nowhere_test.cpp`.\n", "tests/train/nowhere_test.cpp: no such file")
        self.assert_one("Read `train/nowhere.h`.\n", "train/nowhere.h: no such file")

    def test_form(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "page.md"
            path.write_text("# Page\n\nA statement.\n\n## More\n")
            said = "\n".join(run_pages.form_errors(pages.Page(path)))
        for mistake in ("no block of this page runs", "asks no question", "where to go next"):
            self.assertIn(mistake, said)

    def test_unreachable(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder).resolve()
            (folder / "README.md").write_text("[a](a.md)\n")
            (folder / "a.md").write_text("[b](deep/b.md)\n")
            (folder / "deep").mkdir()
            (folder / "deep/b.md").write_text("the end\n")
            (folder / "lost.md").write_text("[a](a.md)\n")
            self.assertEqual(pages.unreachable_pages(folder / "README.md"), [folder / "lost.md"])

    def test_open_blocks(self):
        for text in ("```sh run\ntrue\n", "<!-- run:\ntrue\n"):
            with self.assertRaisesRegex(ValueError, "has no end"):
                self.errors(text)


GOOD = """# Page

[other](other.md#two-words-1) [here](#page) [web](https://example.org/no) `[no link](nowhere.md)`

<!-- run:
name=hidden
-->

```toml file=sub/run.toml
[training]
steps = 3
```

```sh run
octet train configs/quickstart.toml --dry-run --data.source.0.path=nowhere || echo "code $?"
grep steps sub/run.toml; echo $name
```

```text output
…
steps = 3
hidden
```

```sh
octet train run.toml [--resume auto|none|PATH] --training.steps=N --precision.skip=a,b  # octet nonsense
sbatch examples/slurm.sbatch run.toml
octet bench gemm|quantize [--json FILE]
cmake --build --preset release --target octet octet_library
```

```
octet: train: a message, no command
octet launch: rank 2 was killed
```
"""

if __name__ == "__main__":
    unittest.main()
