"""Compares `octet probe --dump` with an independent implementation of docs/numerics.md in numpy and ml_dtypes, for every FP8 recipe:

  - the codes and scales of every operand, row-wise and transposed, must follow from its values byte for byte. With delayed scaling the
    scale is the one that was dumped after the previous step;
  - every product must equal the FP64 product of its decoded operands, within the error of an FP32 sum;
  - every product's distance from the FP64 product of the original values must lie in a band. A path that silently uses BF16 lies below it;
  - the delayed state after each step must follow from the amaxes of the values;
  - the output of attention in FP8 must follow from the codes of Q, K and V.

    python dump_oracle.py PATH_TO_octet
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # with small products, threads would mostly wait for each other
import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

OCTET = sys.argv[1]
HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, LAYERS, VOCAB = 160, 272, 5, 1, 32, 2, 96  # multiples of 16, not of 128
ROWS, SEQ, MICRO = 4, 75, 2  # 150 tokens in a micro-batch: no multiple of 16, and more than 128
STEPS, MICROS = 4, ROWS // MICRO
E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
FP8_MAX = {E4M3: np.float32(448), E5M2: np.float32(57344)}
UNIT_ROUNDOFF = {E4M3: 2.0 ** -4, E5M2: 2.0 ** -3}

# Recipes and their settings.
RUNS = [
    ("fp8_delayed", {"amax_history_len": 2}),
    ("fp8_delayed", {"amax_history_len": 3, "amax_compute_algo": "most_recent", "margin": 1, "format": "e4m3"}),
    ("fp8_delayed", {"amax_history_len": 2, "attention": "fp8_forward"}),
    ("fp8_delayed", {"amax_history_len": 2, "attention": "fp8"}),
    ("fp8_current", {}),
    ("fp8_current", {"format": "e4m3", "power_of_2": "true"}),
    ("fp8_rowwise", {}),
    ("fp8_rowwise", {"wgrad": "bf16", "power_of_2": "true"}),
    ("fp8_block", {}),
    ("fp8_block", {"power_of_2": "false"}),
    ("mxfp8", {}),
]


def write_model(folder):
    rng = np.random.default_rng(5)
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    def normal(*shape, deviation):
        return (rng.standard_normal(shape) * deviation).astype(np.float32)
    tensors = {"model.embed_tokens.weight": normal(VOCAB, HIDDEN, deviation=1.0), "model.norm.weight": 1 + normal(HIDDEN, deviation=0.1),
               "lm_head.weight": normal(VOCAB, HIDDEN, deviation=0.1)}
    for layer in range(LAYERS):
        p = f"model.layers.{layer}."
        tensors[p + "input_layernorm.weight"] = 1 + normal(HIDDEN, deviation=0.1)
        tensors[p + "post_attention_layernorm.weight"] = 1 + normal(HIDDEN, deviation=0.1)
        for name, rows, cols in [("self_attn.q_proj", q, HIDDEN), ("self_attn.k_proj", kv, HIDDEN), ("self_attn.v_proj", kv, HIDDEN),
                                 ("self_attn.o_proj", HIDDEN, q), ("mlp.gate_proj", FFN, HIDDEN), ("mlp.up_proj", FFN, HIDDEN),
                                 ("mlp.down_proj", HIDDEN, FFN)]:
            tensors[f"{p}{name}.weight"] = normal(rows, cols, deviation=0.1)
    folder.mkdir()
    save_file(tensors, str(folder / "model.safetensors"))
    (folder / "config.json").write_text(json.dumps({
        "model_type": "llama", "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "max_position_embeddings": 128}))
    tokens = rng.integers(0, VOCAB, (ROWS, SEQ)).astype(np.int32)
    targets = rng.integers(0, VOCAB, (ROWS, SEQ)).astype(np.int32)
    targets[:, -3:] = -100  # rows of zero gradient
    save_file({"tokens": tokens, "targets": targets}, str(folder / "tokens.safetensors"))


def read(path):
    """Returns the tensors by name, FP8 in the types of ml_dtypes."""
    data = pathlib.Path(path).read_bytes()
    length = int.from_bytes(data[:8], "little")
    kinds = {"F8_E4M3": E4M3, "F8_E5M2": E5M2, "F32": np.float32, "U8": np.uint8, "BF16": ml_dtypes.bfloat16}
    out = {}
    for name, info in json.loads(data[8:8 + length]).items():
        if name != "__metadata__":
            begin, end = info["data_offsets"]
            out[name] = np.frombuffer(data[8 + length + begin:8 + length + end], dtype=kinds[info["dtype"]]).reshape(info["shape"])
    return out


class Spec:
    """How one operand is quantised: its format, its tile (rows, columns; None for all), and whether scales are E8M0 or powers of two."""

    def __init__(self, recipe, settings, role):
        gradient = role == "g"
        per_tensor = recipe in ("fp8_delayed", "fp8_current")
        self.format = E5M2 if per_tensor and gradient and settings.get("format", "hybrid") == "hybrid" else E4M3
        self.tile = {"fp8_rowwise": (1, None), "fp8_block": (128, 128) if role == "w" else (1, 128), "mxfp8": (1, 32)}.get(
            recipe, (None, None))
        self.mx = recipe == "mxfp8"
        self.delayed = recipe == "fp8_delayed"
        self.power_of_2 = {"auto": recipe == "fp8_block", "true": True, "false": False}[settings.get("power_of_2", "auto")]
        self.largest_scale = np.float32(ml_dtypes.finfo(ml_dtypes.bfloat16).max) if recipe == "fp8_block" else np.finfo(np.float32).max


def amax_grid(x, tile):
    rows, cols = x.shape
    height, width = tile[0] or rows, tile[1] or cols
    whole = np.pad(np.abs(x), ((0, -rows % height), (0, -cols % width)))
    return whole.reshape(whole.shape[0] // height, height, whole.shape[1] // width, width).max(axis=(1, 3))


def spread(grid, tile, shape):
    """Repeats the numbers of a grid of tiles for each element."""
    height, width = tile[0] or shape[0], tile[1] or shape[1]
    return np.repeat(np.repeat(grid, height, axis=0), width, axis=1)[:shape[0], :shape[1]]


def quantize(values, spec, delayed_scale):
    """Returns the codes and scale_inv of a BF16 matrix, for a product that sums over its columns."""
    x = values.astype(np.float32)
    amax = amax_grid(x, spec.tile)
    if spec.mx:
        mantissa, exponent = np.frexp(amax * (np.float32(1) / np.float32(448)))  # 0.5 <= mantissa < 1
        code = np.where(amax == 0, 0, np.clip(np.where(mantissa == 0.5, exponent - 1, exponent) + 127, 0, 254)).astype(np.uint8)
        scale = np.exp2(127.0 - code).astype(np.float32)
        scale_inv = code
    else:
        if spec.delayed:
            scale = np.full((1, 1), delayed_scale, np.float32)
        else:
            with np.errstate(divide="ignore", over="ignore"):
                scale = np.where(amax == 0, np.float32(1), np.minimum(FP8_MAX[spec.format] / amax, spec.largest_scale))
            if spec.power_of_2:
                scale = (scale.view(np.uint32) & np.uint32(0xFF800000)).view(np.float32)
        scale_inv = np.float32(1) / scale
        if spec.tile == (None, None):
            scale_inv = scale_inv.reshape(1)
    top = FP8_MAX[spec.format]
    codes = np.clip(x * spread(scale, spec.tile, x.shape), -top, top).astype(spec.format)
    return codes, scale_inv


def decode(codes, scale_inv, spec, transposed):
    tile = (spec.tile[1], spec.tile[0]) if transposed and spec.tile == (128, 128) else spec.tile
    scale = np.exp2(scale_inv.astype(np.float64) - 127) if spec.mx else scale_inv.astype(np.float64)
    return codes.astype(np.float64) * spread(scale.reshape(1, -1) if scale.ndim == 1 else scale, tile, codes.shape)


def same_bytes(name, actual, expected):
    assert actual.dtype == expected.dtype and actual.shape == expected.shape, \
        f"{name} is {actual.dtype} {actual.shape}, expected {expected.dtype} {expected.shape}"
    a, e = actual.view(f"u{actual.itemsize}"), expected.view(f"u{expected.itemsize}")
    if (a != e).any():
        at = tuple(np.argwhere(a != e)[0])
        raise AssertionError(f"{name}{list(map(int, at))} is {actual[at]}, expected {expected[at]}; {(a != e).sum()} of {a.size} differ")


def check_product(name, product, a, b):
    """Checks |product - a bᵀ| against the error of an FP32 sum of K products in any order and of eight more roundings for scales. The
    bound is gamma_(K+8) |a| |b|ᵀ for each element (Higham, Accuracy and Stability of Numerical Algorithms, 3.1)."""
    n = (a.shape[1] + 8) * 2.0 ** -24
    exact, size = a @ b.T, np.abs(a) @ np.abs(b).T
    bound = n / (1 - n) * size
    error = np.abs(product.astype(np.float64) - exact)
    worst = np.unravel_index(np.argmax(error - bound), error.shape)
    assert (error <= bound).all(), f"{name}: element {worst} is {product[worst]}, exact {exact[worst]}, bound {bound[worst]}"


def product_band(a, b, exact, format_a, format_b):
    """Returns the band in which the relative Frobenius distance of a product of rounded operands from the exact product lies.

    Rounding to p bits errs uniformly by up to half a unit. In the binade [2^e, 2^(e+1)) a unit is d = 2^(e+1-p). The mean square error is
    d^2 / 12, and the mean square of the values lies between 4^e and 4^(e+1). So the relative RMS error r of an operand lies between
    u / sqrt(12) and 2 u / sqrt(12), where u = 2^-p (2^-4 for E4M3, 2^-3 for E5M2). Independent errors of mean zero add up to
    sqrt((r_a^2 + r_b^2 + r_a^2 r_b^2) / coherence), where coherence = |exact|^2 / sum_k |a_k|^2 |b_k|^2 over columns k. It is 1 for
    operands of random signs, and larger if terms have the same sign. A factor of 2 on either side allows for the sample, and for small
    values below the normal range. A BF16 path lies at 2^-8 / 2^-4 of that distance or less. The band's ends differ by a factor of 8, so
    this is below it.
    """
    coherence = (exact ** 2).sum() / ((a ** 2).sum(axis=0) @ (b ** 2).sum(axis=0))
    def distance(factor):
        ra, rb = (factor * UNIT_ROUNDOFF[f] / np.sqrt(12) for f in (format_a, format_b))
        return np.sqrt((ra ** 2 + rb ** 2 + ra ** 2 * rb ** 2) / coherence)
    return 0.5 * distance(1), 2 * distance(2)


def check_band(name, product, a, b, format_a, format_b):
    exact = a @ b.T
    def distance(of):
        return np.linalg.norm(of.astype(np.float64) - exact) / np.linalg.norm(exact)
    low, high = product_band(a, b, exact, format_a, format_b)
    assert low <= distance(product) <= high, \
        f"{name}: distance {distance(product):.3g} from the unquantised product, not in [{low:.3g}, {high:.3g}]"
    silent = a.astype(ml_dtypes.bfloat16).astype(np.float32) @ b.astype(ml_dtypes.bfloat16).astype(np.float32).T
    silent = silent.astype(ml_dtypes.bfloat16)
    assert distance(silent) < low, f"{name}: a BF16 path at {distance(silent):.3g} would pass as FP8, lower edge {low:.3g}"


def check_linear(dump, recipe, settings, step, micro, linear):
    prefix = f"{step}.{micro}.{linear}."
    specs = {role: Spec(recipe, settings, role) for role in "xwg"}
    values, rows, columns = {}, {}, {}
    wgrad_fp8 = settings.get("wgrad") != "bf16"
    for role, spec in specs.items():
        name = prefix + role
        source = dump[name + ".values"]
        assert source.dtype == (np.float32 if role == "w" else ml_dtypes.bfloat16), (name, source.dtype)
        values[role] = source.astype(np.float64)
        scale = dump[f"{step - 1}.fp8.{linear}.{role}.scale"][0] if spec.delayed and step > 1 else np.float32(1)
        bf16 = source.astype(ml_dtypes.bfloat16)
        codes, scale_inv = quantize(bf16, spec, scale)
        same_bytes(name + ".codes", dump[name + ".codes"], codes)
        same_bytes(name + ".scale_inv", dump[name + ".scale_inv"], scale_inv)
        rows[role] = decode(codes, scale_inv, spec, False)
        if role == "w" or wgrad_fp8:
            codes_t, scale_inv_t = quantize(np.ascontiguousarray(bf16.T), spec, scale)
            same_bytes(name + ".codes_t", dump[name + ".codes_t"], codes_t)
            same_bytes(name + ".scale_inv_t", dump[name + ".scale_inv_t"], scale_inv_t)
            columns[role] = decode(codes_t, scale_inv_t, spec, True)
        else:
            assert name + ".codes_t" not in dump, name
    f = {role: spec.format for role, spec in specs.items()}
    check_product(prefix + "y", dump[prefix + "y"], rows["x"], rows["w"])
    check_product(prefix + "gx", dump[prefix + "gx"], rows["g"], columns["w"])
    check_band(prefix + "y", dump[prefix + "y"], values["x"], values["w"], f["x"], f["w"])
    check_band(prefix + "gx", dump[prefix + "gx"], values["g"], values["w"].T, f["g"], f["w"])
    if wgrad_fp8:
        check_product(prefix + "gw", dump[prefix + "gw"], columns["g"], columns["x"])
        check_band(prefix + "gw", dump[prefix + "gw"], values["g"].T, values["x"].T, f["g"], f["x"])
    else:
        check_product(prefix + "gw", dump[prefix + "gw"], values["g"].T, values["x"].T)


def to_e4m3(x):
    return np.clip(x, -448, 448).astype(np.float32).astype(E4M3).astype(np.float64)


def check_attention(dump, settings, step, micro, module):
    """Checks the codes of Q, K, V and O's gradient byte for byte, and those of O against the formula in FP64. Returns an interval for the amax of O.

    FP32 may round a probability that lies next to the border between two codes to either of them. So O has an interval, and its code must
    lie between those of the ends. A logit errs by at most (head_dim + 4) units of its terms' magnitudes, and a probability by twice that.
    """
    unit = 2.0 ** -24
    decoded = {}
    for operand, role in [*zip("qkv", "xxx"), *([("o", "g")] if settings["attention"] == "fp8" else [])]:
        spec, name = Spec("fp8_delayed", settings, role), f"{step}.{micro}.{module}.{operand}.{role}"
        scale = dump[f"{step - 1}.fp8.{module}.{operand}.{role}.scale"][0] if step > 1 else np.float32(1)
        codes, scale_inv = quantize(dump[name + ".values"], spec, scale)
        same_bytes(name + ".codes", dump[name + ".codes"], codes)
        same_bytes(name + ".scale_inv", dump[name + ".scale_inv"], scale_inv)
        decoded[operand] = decode(codes, scale_inv, spec, False)
    prefix = f"{step}.{micro}.{module}.o_proj.x"
    o_scale = 1 / dump[prefix + ".scale_inv"].astype(np.float64)[0]
    actual, least, most = dump[prefix + ".codes"].astype(np.float64), 0.0, 0.0
    unlike = 0
    for row in range(MICRO):
        tokens = slice(row * SEQ, (row + 1) * SEQ)
        for head in range(HEADS):
            columns, shared = (slice(n * HEAD_DIM, (n + 1) * HEAD_DIM) for n in (head, head * KV_HEADS // HEADS))
            q, k, v = decoded["q"][tokens, columns], decoded["k"][tokens, shared], decoded["v"][tokens, shared]
            s = q @ k.T / np.sqrt(HEAD_DIM)
            size = np.abs(q) @ np.abs(k).T / np.sqrt(HEAD_DIM)
            error = 2 * (HEAD_DIM + 4) * unit * size.max(axis=1, keepdims=True) + 16 * unit * (1 + np.abs(s).max(axis=1, keepdims=True))
            s[np.triu_indices(SEQ, 1)] = -np.inf
            p = np.exp(s - s.max(axis=1, keepdims=True))
            below, above = (to_e4m3(np.minimum(256 * p * (1 + sign * error), 256)) / 256 for sign in (-1, 1))
            total = p.sum(axis=1, keepdims=True)
            o = (below + above) / 2 @ v / total
            width = (above - below + (below + above) * (SEQ + 8) * unit) @ np.abs(v) / total + 4 * error * np.abs(o)
            def code(x):
                return to_e4m3((x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float32) * np.float32(o_scale)))
            of_head = actual[tokens, columns]
            assert ((code(o - width) <= of_head) & (of_head <= code(o + width))).all(), f"{prefix}: head {head} of row {row}"
            unlike += (of_head != code(p @ v / total)).sum()
            least, most = max(least, (np.abs(o) - width).max()), max(most, (np.abs(o) + width).max())
    assert unlike > actual.size / 50, f"{prefix}: only {unlike} of {actual.size} codes show that probabilities were rounded"
    return least, most


def check_attention_state(dump, settings, module, amaxes):
    """Checks the states of Q, K and V and of O's gradient, and that the amax of O is that of its values before the cast."""
    for operand in "qkv":
        check_state(dump, settings, f"{module}.{operand}", "x")
    if settings["attention"] == "fp8":
        check_state(dump, settings, f"{module}.o", "g")
    name, history = f"{module}.o_proj.x", np.zeros(settings["amax_history_len"], np.float32)
    for step in range(1, STEPS + 1):
        amax = dump[f"{step}.fp8.{name}.amax_history"][1]
        least, most = (max(amaxes[step, micro][end] for micro in range(MICROS)) for end in (0, 1))
        assert least * (1 - 2.0 ** -8) <= amax <= most * (1 + 2.0 ** -8), f"{step}: {name}: amax {amax}, not in [{least}, {most}]"
        history[0] = amax
        largest = history.max()
        history = np.roll(history, 1)
        history[0] = 0
        same_bytes(f"{step}: {name}", dump[f"{step}.fp8.{name}.amax_history"], history)
        same_bytes(f"{step}: {name} scale", dump[f"{step}.fp8.{name}.scale"], np.full(1, np.float32(448) / largest, np.float32))


def amax_of(values):
    return np.abs(values.astype(ml_dtypes.bfloat16).astype(np.float32)).max()


def check_state(dump, settings, linear, roles="xwg"):
    """Checks the state of delayed scaling after each step."""
    for role in roles:
        spec = Spec("fp8_delayed", settings, role)
        history = np.zeros(settings["amax_history_len"], np.float32)
        for step in range(1, STEPS + 1):
            name = f"{step}.fp8.{linear}.{role}"
            # X and G take the largest amax of all micro-batches. W takes the amax of its cast, which did not change during the step.
            history[0] = max(amax_of(dump[f"{step}.{micro}.{linear}.{role}.values"]) for micro in range(MICROS))
            assert history[0] > 0, name
            amax = history[0] if settings.get("amax_compute_algo") == "most_recent" else history.max()
            scale = FP8_MAX[spec.format] * np.float32(2.0 ** -settings.get("margin", 0)) / amax
            same_bytes(name + ".scale", dump[name + ".scale"], np.full(1, scale, np.float32))
            history = np.roll(history, 1)
            history[0] = 0
            if role == "w":  # the amax of the new weight, cast at the end of the step
                following = f"{step + 1}.0.{linear}.w.values"
                history[0] = amax_of(dump[following]) if following in dump else dump[name + ".amax_history"][0]
            same_bytes(name + ".amax_history", dump[name + ".amax_history"], history)


def main():
    products = states = 0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        write_model(folder / "model")

        def probe(recipe, settings, checkpointing="none"):
            out = folder / "out.safetensors"
            options = {f"precision.{key}": value for key, value in settings.items()}
            # The scales of step 1 are 1, so that this script knows them.
            options |= {"precision.calibrate": "false", "precision.head": "recipe", "training.micro_batch_size": MICRO, "activation_checkpoint.mode": checkpointing}
            command = [OCTET, "probe", "--model", folder / "model", "--tokens", folder / "model" / "tokens.safetensors", "--recipe", recipe,
                       "--device", "cpu", "--steps", str(STEPS), "--dump", "*", "--output", out]
            for key, value in options.items():
                command += ["--set", f"{key}={value}"]
            subprocess.run(list(map(str, command)), check=True)
            return read(out)

        for recipe, settings in RUNS:
            dump = probe(recipe, settings)
            linears = sorted({name.split(".", 2)[2][:-len(".x.codes")] for name in dump if name.endswith(".x.codes")})
            attention = "attention" in settings
            modules = sorted({name[:-2] for name in linears if name.endswith((".q", ".k", ".v"))})
            assert len(modules) == (LAYERS if attention else 0), modules
            for module in modules:
                amaxes = {(step, micro): check_attention(dump, settings, step, micro, module)
                          for step in range(1, STEPS + 1) for micro in range(MICROS)}
                check_attention_state(dump, settings, module, amaxes)
            linears = [name for name in linears if not name.endswith((".q", ".k", ".v"))]
            assert len(linears) == LAYERS * 4 + 1, linears
            for linear in linears:
                for step in range(1, STEPS + 1):
                    for micro in range(MICROS):
                        check_linear(dump, recipe, settings, step, micro, linear)
                        products += 3
                if recipe == "fp8_delayed":
                    cast_by_attention = attention and linear.endswith(".o_proj")  # values that are dumped were cast before
                    check_state(dump, settings, linear, "wg" if cast_by_attention else "xwg")
                    states += 1
        # Checkpointing must not change the dump.
        for recipe, settings in (("fp8_delayed", {"amax_history_len": 2}), ("fp8_delayed", {"amax_history_len": 2, "attention": "fp8"}),
                                 ("fp8_block", {"amax_history_len": 2})):
            expected = probe(recipe, settings)
            for mode in ("selective", "full"):
                dump = probe(recipe, settings, mode)
                assert dump.keys() == expected.keys(), dump.keys() ^ expected.keys()
                for name in expected:
                    same_bytes(f"{mode}: {name}", dump[name], expected[name])
    print(f"{products} products and their operands, and {states} layers' delayed states, are as docs/numerics.md says")


main()
