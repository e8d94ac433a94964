"""Compares `octet quantize` byte for byte with an independent implementation of docs/numerics.md in numpy and ml_dtypes."""

import json
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

import ml_dtypes
import numpy as np

BF16 = ml_dtypes.bfloat16
FLT_MAX = np.finfo(np.float32).max
BF16_MAX = np.float32(ml_dtypes.finfo(BF16).max)
NAMES = {np.dtype(np.float32): "F32", np.dtype(np.float16): "F16", np.dtype(BF16): "BF16", np.dtype(np.uint8): "U8",
         np.dtype(np.int32): "I32", np.dtype(ml_dtypes.float8_e4m3fn): "F8_E4M3", np.dtype(ml_dtypes.float8_e5m2): "F8_E5M2"}
DTYPES = {name: dtype for dtype, name in NAMES.items()}


def save(path, tensors):
    header, data = {}, b""
    for name, array in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def load(path):
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + size])
    header.pop("__metadata__", None)
    data = raw[8 + size :]
    return {name: np.frombuffer(data[slice(*e["data_offsets"])], DTYPES[e["dtype"]]).reshape(e["shape"]) for name, e in header.items()}


# --- the numerics, by the letter ---------------------------------------------------------------------------------------------

E4M3, E5M2 = (ml_dtypes.float8_e4m3fn, np.float32(448)), (ml_dtypes.float8_e5m2, np.float32(57344))


def as_bf16(x):
    return x.astype(np.float32).astype(BF16).astype(np.float32)


def encode(product, fmt):
    fp8, largest = fmt
    codes = np.clip(product, -largest, largest).astype(fp8).view(np.uint8)
    return np.where(np.isnan(product), np.uint8(0x7F), codes).view(fp8)


def scale_from_amax(amax, fmt, tile, power_of_2, epsilon):
    if amax < np.float32(epsilon):
        amax = np.float32(epsilon)
    if amax == 0 or not np.isfinite(amax):
        scale = np.float32(1)
    else:
        scale = fmt[1] / amax
    if np.isinf(scale):
        scale = BF16_MAX if tile == "block" else FLT_MAX
    if power_of_2:
        scale = (np.array(scale, np.float32).view(np.uint32) & np.uint32(0xFF800000)).view(np.float32)[()]
    return np.float32(scale)


def mx_code(amax):
    value = np.float32(amax) * (np.float32(1) / np.float32(448))
    if np.isnan(value):
        return 0xFF
    if np.isinf(value):
        return 0xFE
    if value == 0:
        return 0x00
    exponent = int(np.ceil(np.log2(np.float64(value))))
    if np.float64(2.0) ** (exponent - 1) >= np.float64(value):  # the rounding of log2 may have crossed an integer
        exponent -= 1
    if np.float64(2.0) ** exponent < np.float64(value):
        exponent += 1
    return min(max(exponent, -127), 127) + 127


def by_tiles(x, height, width, fmt, scale_of):
    """Returns the codes and the grid of stored scales. scale_of(amax) returns (multiplier, stored scale)."""
    rows, cols = x.shape
    down, across = -(-rows // height), -(-cols // width)
    padded = np.zeros((down * height, across * width), np.float32)
    padded[:rows, :cols] = np.abs(x)
    amaxes = padded.reshape(down, height, across, width).max((1, 3))
    scales = [[scale_of(amax) for amax in row] for row in amaxes]
    multipliers = np.array([[multiplier for multiplier, _ in row] for row in scales], np.float32)
    stored = [[kept for _, kept in row] for row in scales]
    full = np.repeat(np.repeat(multipliers, height, 0), width, 1)[:rows, :cols]
    return encode(x * full, fmt), stored


def one_way(x, recipe, role, fmt, options):
    """Returns the codes of an operand of a product that sums over its columns, and its scales as the file has them."""
    rows, cols = x.shape
    power_of_2 = options.get("power_of_2", recipe == "fp8_block")
    epsilon = options.get("amax_epsilon", 0)

    def plain(tile):
        def scale_of(amax):
            scale = scale_from_amax(amax, fmt, tile, power_of_2, epsilon)
            return scale, np.float32(1) / scale
        return scale_of

    def mx(amax):
        code = mx_code(amax)
        return (np.float32("nan") if code == 0xFF else np.float32(np.float64(2.0) ** (127 - code))), code

    if recipe == "fp8_current":
        codes, stored = by_tiles(x, rows, cols, fmt, plain("tensor"))
        return codes, np.array(stored, np.float32).reshape(1)
    if recipe == "fp8_rowwise":
        codes, stored = by_tiles(x, 1, cols, fmt, plain("row"))
        return codes, np.array(stored, np.float32)
    if recipe == "fp8_block":
        codes, stored = by_tiles(x, 128 if role == "weight" else 1, 128, fmt, plain("block"))
        return codes, np.array(stored, np.float32)
    assert recipe == "mxfp8"
    codes, stored = by_tiles(x, 1, 32, fmt, mx)
    return codes, np.array(stored, np.uint8)


def format_of(recipe, role, options):
    hybrid = recipe in ("fp8_delayed", "fp8_current") and options.get("format", "hybrid") == "hybrid"
    return E5M2 if hybrid and role == "gradient" else E4M3


def expected_of(name, source, recipe, role, options):
    x, fmt = as_bf16(source), format_of(recipe, role, options)
    codes, scale_inv = one_way(x, recipe, role, fmt, options)
    codes_t, scale_inv_t = one_way(np.ascontiguousarray(x.T), recipe, role, fmt, options)
    return {f"{name}.codes": codes, f"{name}.scale_inv": scale_inv, f"{name}.codes_t": codes_t, f"{name}.scale_inv_t": scale_inv_t}


def with_scale(name, source, scale, fmt):
    codes = encode(as_bf16(source) * np.float32(scale), fmt)
    inverse = np.array([np.float32(1) / np.float32(scale)], np.float32)
    return {f"{name}.codes": codes, f"{name}.scale_inv": inverse, f"{name}.codes_t": np.ascontiguousarray(codes.T), f"{name}.scale_inv_t": inverse}


class History:
    def __init__(self, options, fmt):
        self.scale, self.history = np.float32(1), np.zeros(options.get("amax_history_len", 1024), np.float32)
        self.options, self.fmt = options, fmt

    def step(self, sources, fixed=None):
        before = self.history[0]
        result = {}
        for name, source in sources:
            result |= with_scale(name, source, self.scale if fixed is None else fixed, self.fmt)
            self.history[0] = np.max([self.history[0], np.max(np.abs(as_bf16(source)))])  # NaN wins
        amax = self.history[0]
        if amax == 0 or not np.isfinite(amax):
            self.history[0] = before
            return result
        if self.options.get("amax_compute_algo", "max") == "max":
            amax = np.max(self.history)
        self.scale = np.float32(self.fmt[1] * np.float32(2.0 ** -self.options.get("margin", 0))) / amax
        if np.isinf(self.scale):
            self.scale = FLT_MAX
        self.history[1:] = self.history[:-1].copy()
        self.history[0] = 0
        return result

    def tensors(self, name):
        return {f"{name}.scale": np.array([self.scale], np.float32), f"{name}.amax_history": self.history.copy()}


def replay(tensors, role, options, histories):
    """Replays the steps of the tensors x.<step>.<micro>. Reads `histories` by stem and leaves them as they are after the last step."""
    result, steps = {}, {}
    fmt = format_of("fp8_delayed", role, options)
    for name, source in tensors.items():
        stem, step, micro = re.fullmatch(r"(.+)\.(\d+)\.(\d+)", name).groups()
        steps.setdefault((stem, int(step)), []).append((int(micro), name, source))
    for stem, step in sorted(steps):
        history = histories.setdefault(stem, History(options, fmt))
        result |= history.step([(name, source) for _, name, source in sorted(steps[stem, step], key=lambda entry: entry[0])])
        result |= history.tensors(f"{stem}.{step}")
    return result


# --- inputs ------------------------------------------------------------------------------------------------------------------

def hostile(rng, shape, kind):
    normal = rng.standard_normal(shape).astype(np.float32)
    if kind == "normal":
        return normal.astype(BF16)
    if kind == "patterns":
        return rng.integers(0, 65536, shape).astype(np.uint16).view(BF16)
    if kind == "wide":
        return (normal * np.exp2(rng.integers(-120, 120, shape))).astype(np.float32).astype(BF16)
    if kind == "zero":
        return np.where(normal > 0, np.float32(0), np.float32(-0.0)).astype(BF16)
    if kind == "subnormal":
        return (normal * np.float32(1e-39)).astype(BF16)
    if kind == "tiny":
        return (normal * np.float32(1e-37)).astype(np.float32)
    if kind == "huge":
        return (normal * np.float32(1e38)).astype(np.float32)
    if kind == "half":
        return rng.integers(0, 65536, shape).astype(np.uint16).view(np.float16)
    special = {"nan": np.nan, "inf": -np.inf}[kind]
    normal.flat[rng.integers(0, normal.size, max(1, normal.size // 700))] = special
    return normal


def make_inputs(rng):
    kinds = ["normal", "patterns", "wide", "zero", "subnormal", "tiny", "huge", "half", "nan", "inf"]
    return {f"{kind}-{rows}x{cols}": hostile(rng, (rows, cols), kind)
            for rows, cols in [(1, 1), (17, 33), (130, 257), (256, 384)] for kind in kinds}


# --- the comparison ----------------------------------------------------------------------------------------------------------

class Runner:
    def __init__(self, octet, folder):
        self.octet, self.folder, self.compared = octet, folder, 0

    def call(self, tensors, recipe, role, options=None, extra=()):
        if tensors is not None:
            save(self.folder / "in", tensors)
        sets = [word for key, value in (options or {}).items() for word in ("--set", f"precision.{key}={str(value).lower()}")]
        return subprocess.run([self.octet, "quantize", "--input", self.folder / "in", "--recipe", recipe, "--role", role,
                               "--output", self.folder / "out", *sets, *extra], capture_output=True, text=True)

    def compare(self, expected, tensors, recipe, role, options=None, extra=()):
        done = self.call(tensors, recipe, role, options, extra)
        case = f"{recipe} {role} {options or ''} {' '.join(map(str, extra))}"
        assert done.returncode == 0, f"{case}: exit {done.returncode}: {done.stderr}"
        self.same(load(self.folder / "out"), expected, case)

    def same(self, actual, expected, case):
        assert set(actual) == set(expected), f"{case}: {set(actual) ^ set(expected)}"
        for name, wanted in expected.items():
            got = actual[name]
            assert got.dtype == wanted.dtype and got.shape == wanted.shape, f"{case}: {name}: {got.dtype}{got.shape}, not {wanted.dtype}{wanted.shape}"
            a, b = (np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}") for array in (got, wanted))
            wrong = np.argwhere(a != b)
            assert not len(wrong), f"{case}: {name}{list(wrong[0])}: {got[tuple(wrong[0])]}, not {wanted[tuple(wrong[0])]} ({len(wrong)} differ)"
            self.compared += got.size


def check_single(runner, inputs):
    options_of = {
        "fp8_current": [{}, {"power_of_2": True}, {"amax_epsilon": 3.5}, {"format": "e4m3"}],
        "fp8_rowwise": [{}, {"power_of_2": True, "amax_epsilon": 0.01}],
        "fp8_block": [{}, {"power_of_2": False}, {"amax_epsilon": 1e-3}],
        "mxfp8": [{}],
    }
    for recipe, all_options in options_of.items():
        for role in ("activation", "weight", "gradient"):
            for options in all_options:
                expected = {}
                for name, source in inputs.items():
                    expected |= expected_of(name, source, recipe, role, options)
                runner.compare(expected, inputs, recipe, role, options)


def check_fixed_scale(runner, inputs):
    for recipe in ("fp8_delayed", "fp8_current"):
        for role in ("activation", "gradient"):
            for scale in (1, 0.1, 2.0**120):
                expected = {}
                for name, source in inputs.items():
                    expected |= with_scale(name, source, scale, format_of(recipe, role, {}))
                runner.compare(expected, inputs, recipe, role, {}, ["--scale", repr(scale)])
    expected = {}
    for name, source in inputs.items():
        expected |= with_scale(name, source, 1, E4M3)
    runner.compare(expected, inputs, "fp8_delayed", "weight")


def check_delayed(runner, rng):
    steps = [1, 2, 3, 9, 10, 11, 12, 13]
    kinds = {1: "normal", 2: "zero", 3: "normal", 9: "nan", 10: "huge", 11: "inf", 12: "tiny", 13: "normal"}
    tensors = {}
    for stem, shape in (("model.layers.0.mlp", (48, 33)), ("x", (1, 1)), ("y.7", (16, 130))):
        for step in steps:
            for micro in (0, 1, 2, 10):
                # Only one micro-batch of a step is hostile. Its amax must not be forgotten.
                kind = kinds[step] if micro == 1 or step == 2 else "normal"
                tensors[f"{stem}.{step}.{micro}"] = hostile(rng, shape, kind) if shape != (1, 1) or kind != "nan" else np.full((1, 1), np.nan, np.float32)
    names = list(tensors)
    rng.shuffle(names)
    tensors = {name: tensors[name] for name in names}
    for role in ("activation", "weight", "gradient"):
        for options in ({}, {"amax_history_len": 1}, {"amax_history_len": 3, "margin": 2}, {"amax_history_len": 4, "amax_compute_algo": "most_recent"},
                        {"margin": -1, "format": "e4m3", "amax_history_len": 2}, {"power_of_2": True, "amax_epsilon": 5, "amax_history_len": 2}):
            # Delayed scaling ignores power_of_2 and epsilon.
            expected = replay(tensors, role, options, {})
            runner.compare(expected, tensors, "fp8_delayed", role, options)

            # Two calls that hand the state over must give the same result.
            early = {name: source for name, source in tensors.items() if int(name.split(".")[-2]) <= 9}
            late = {name: source for name, source in tensors.items() if name not in early}
            histories, state = {}, runner.folder / "state"
            runner.compare(replay(early, role, options, histories), early, "fp8_delayed", role, options, ["--state-out", state])
            stored = {}
            for stem, history in histories.items():
                stored |= history.tensors(stem)
            runner.same(load(state), stored, "state")
            runner.compare(replay(late, role, options, histories), late, "fp8_delayed", role, options, ["--state", state])


def check_single_step_state(runner, rng):
    """A tensor without step and micro-batch in its name is a step of its own."""
    x, y = hostile(rng, (20, 30), "normal"), hostile(rng, (20, 30), "wide")
    options, state = {"amax_history_len": 3}, runner.folder / "state"
    history = History(options, E5M2)
    runner.compare(history.step([("x", x)]), {"x": x}, "fp8_delayed", "gradient", options, ["--state-out", state])
    runner.same(load(state), history.tensors("x"), "state")
    runner.compare(history.step([("x", y)]), {"x": y}, "fp8_delayed", "gradient", options, ["--state", state, "--state-out", state])
    runner.same(load(state), history.tensors("x"), "state")


def check_refusals(runner):
    x = np.ones((4, 4), np.float32)

    def refused(code, words, tensors, recipe="fp8_current", role="activation", extra=()):
        done = runner.call(tensors, recipe, role, None, extra)
        assert done.returncode == code and done.stderr.count("\n") == 1 and all(word in done.stderr for word in words), (
            f"{words}: exit {done.returncode}: {done.stderr}")

    refused(2, ["bf16"], {"x": x}, "bf16")
    refused(2, ["fp8_current"], {"x": x}, "fp8_curent")
    refused(2, ["--scale", "fp8_block"], {"x": x}, "fp8_block", extra=["--scale", "2"])
    for bad in ("0", "-1", "inf", "nan", "1e60", "1e-60"):
        refused(2, ["--scale"], {"x": x}, extra=["--scale=" + bad])
    refused(2, ["--state"], {"x": x}, extra=["--state", "nowhere"])
    refused(2, ["training.steps"], {"x": x}, extra=["--set", "training.steps=3"])
    refused(2, ["margni", "margin"], {"x": x}, extra=["--set", "precision.margni=3"])
    refused(76, ["I32", "x"], {"x": x.astype(np.int32)})
    refused(76, ["2-D"], {"x": x.reshape(16)})
    refused(76, ["x.0.1", "x "], {"x": x, "x.0.1": x}, "fp8_delayed")
    refused(76, ["x.1.0", "x.01.0"], {"x.1.0": x, "x.01.0": x}, "fp8_delayed")
    refused(76, ["nowhere"], {"x": x}, "fp8_delayed", extra=["--state", runner.folder / "nowhere"])
    state = runner.folder / "bad-state"
    save(state, {"x.scale": np.ones(1, np.float32), "x.amax_history": np.ones(7, np.float32)})
    refused(76, ["amax_history", "[7]", "1024"], {"x": x}, "fp8_delayed", extra=["--state", state])
    save(state, {"x.scale": np.ones(1, np.float32), "x.amax_history": np.full(1024, np.inf, np.float32)})
    refused(76, ["amax_history", "inf"], {"x": x}, "fp8_delayed", extra=["--state", state])
    save(state, {"y.scale": np.ones(1, np.float32)})
    refused(76, ["x.scale"], {"x": x}, "fp8_delayed", extra=["--state", state])


def main(octet):
    rng = np.random.default_rng(20250101)
    with tempfile.TemporaryDirectory() as folder, np.errstate(all="ignore"):
        runner = Runner(octet, pathlib.Path(folder))
        inputs = make_inputs(rng)
        check_single(runner, inputs)
        check_fixed_scale(runner, inputs)
        check_delayed(runner, rng)
        check_single_step_state(runner, rng)
        check_refusals(runner)
        print(f"quantize: {runner.compared} codes, scales and state values agree with numpy")


if __name__ == "__main__":
    main(sys.argv[1])
