"""Compares `octet convert` with numpy and ml_dtypes bit for bit: values of every dtype, FP8 codes and scales, shards and config.json."""

import json
import pathlib
import subprocess
import sys
import tempfile

import ml_dtypes
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "kernels"))
from quantize_oracle import BF16, E4M3, load, one_way, save  # noqa: E402

# Dims that are multiples of 128, multiples of 16, and neither.
SHAPES = {
    "square": dict(hidden_size=128, intermediate_size=256, num_attention_heads=2, num_key_value_heads=2, head_dim=64, vocab_size=50),
    "ragged": dict(hidden_size=160, intermediate_size=300, num_attention_heads=5, num_key_value_heads=1, head_dim=30, vocab_size=67),
    "tied": dict(hidden_size=135, intermediate_size=17, num_attention_heads=3, num_key_value_heads=3, head_dim=86, vocab_size=33,
                 tie_word_embeddings=True),
}
BLOCK = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]}


def octet(program, *arguments, expect=0):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == expect, (arguments, done.returncode, done.stdout, done.stderr)
    return done


def config_of(name):
    return {"model_type": "llama", "num_hidden_layers": 2, "max_position_embeddings": 64, "hidden_act": "silu", "eos_token_id": 7, **SHAPES[name]}


def shapes_of(config):
    d, f, v, k = (config[key] for key in ("hidden_size", "intermediate_size", "vocab_size", "head_dim"))
    q, kv = config["num_attention_heads"] * k, config["num_key_value_heads"] * k
    shapes = {"model.embed_tokens.weight": (v, d), "model.norm.weight": (d,)}
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (v, d)
    for layer in range(config["num_hidden_layers"]):
        for name, shape in {"self_attn.q_proj": (q, d), "self_attn.k_proj": (kv, d), "self_attn.v_proj": (kv, d), "self_attn.o_proj": (d, q),
                            "mlp.gate_proj": (f, d), "mlp.up_proj": (f, d), "mlp.down_proj": (d, f),
                            "input_layernorm": (d,), "post_attention_layernorm": (d,)}.items():
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
    return shapes


def random_weights(rng, config, dtype):
    """Makes weights with blocks of zeros, of large and of tiny values, ties of the rounding, and signed zeros."""
    weights = {}
    for name, shape in shapes_of(config).items():
        x = rng.standard_normal(shape).astype(np.float32) * np.float32(0.1)
        if x.ndim == 2:
            x *= np.exp2(rng.integers(-6, 6, shape)).astype(np.float32)
            x[:, -3:] = 0
            x[0, :2] = [-0.0, 0.1015625]
            x[-1] *= np.float32(2.0**-12)
        if dtype == np.float16:  # values that BF16 does not have, including subnormals
            bits = rng.integers(0, 1 << 16, shape).astype(np.uint16)
            x = np.where((bits & 0x7C00) == 0x7C00, np.uint16(0x3555), bits).view(np.float16)
        weights[name] = x.astype(dtype)
    return weights


def write_directory(folder, config, weights, shards=1):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    names = list(weights)
    if shards == 1:
        save(folder / "model.safetensors", weights)
        return
    index = {}
    for k in range(shards):
        file = f"part-{k}.safetensors"  # any names will do, because the index lists them
        save(folder / file, {name: weights[name] for name in names[k::shards]})
        index |= {name: file for name in names[k::shards]}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def expect_aligned(path):
    """Checks that tensors are aligned, because some readers use them in place."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    widths = {"F32": 4, "BF16": 2, "F8_E4M3": 1}
    for name, entry in json.loads(raw[8 : 8 + size]).items():
        assert name == "__metadata__" or (8 + size + entry["data_offsets"][0]) % widths[entry["dtype"]] == 0, (path, name, entry)


def read_directory(folder):
    for path in folder.glob("*.safetensors"):
        expect_aligned(path)
    if (folder / "model.safetensors").exists():
        assert not (folder / "model.safetensors.index.json").exists()
        return load(folder / "model.safetensors")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = {name: load(folder / name) for name in sorted(set(index["weight_map"].values()))}
    tensors = {name: files[file][name] for name, file in index["weight_map"].items()}
    assert sum(len(file) for file in files.values()) == len(tensors)
    assert index["metadata"]["total_size"] == sum(x.nbytes for x in tensors.values())
    return tensors


def same(actual, expected, what):
    assert actual.keys() == expected.keys(), (what, sorted(actual.keys() ^ expected.keys()))
    for name, x in expected.items():
        assert actual[name].dtype == x.dtype and actual[name].shape == x.shape, (what, name, actual[name].dtype, actual[name].shape)
        differ = np.flatnonzero(actual[name].view(np.uint8).reshape(-1) != np.ascontiguousarray(x).view(np.uint8).reshape(-1))
        assert differ.size == 0, (what, name, "byte", differ[0], "of", x.nbytes)


def is_linear(name):
    return "_proj." in name


def quantised(weights):
    """Returns the tensors that the export should hold."""
    result = {}
    for name, x in weights.items():
        if is_linear(name):
            codes, scales = one_way(x.astype(np.float32), "fp8_block", "weight", E4M3, {})
            result |= {name: codes, name + "_scale_inv": scales}
        else:
            result[name] = x
    return result


def dequantised(tensors):
    result = {}
    for name, x in tensors.items():
        if name.endswith("_scale_inv"):
            continue
        if name + "_scale_inv" in tensors:
            rows, cols = x.shape
            scales = np.repeat(np.repeat(tensors[name + "_scale_inv"], 128, 0), 128, 1)[:rows, :cols]
            x = (x.astype(np.float32) * scales).astype(BF16)
        result[name] = x
    return result


def check_forms(program, folder, rng, name):
    config = config_of(name)
    for dtype in (np.float32, np.float16, BF16):
        for shards in (1, 3):
            source = folder / f"{name}-{np.dtype(dtype).name}-{shards}"
            weights = random_weights(rng, config, dtype)
            write_directory(source, config | {"torch_dtype": "float16"}, weights, shards)
            (source / "generation_config.json").write_text('{"eos_token_id": 7}')
            octet(program, "convert", "import", "--input", source, "--output", f"{source}-bf16")
            same(read_directory(pathlib.Path(f"{source}-bf16")), {key: x.astype(BF16) for key, x in weights.items()}, source)
            assert json.loads(pathlib.Path(f"{source}-bf16/config.json").read_text()) == config | {"torch_dtype": "bfloat16"}
            assert pathlib.Path(f"{source}-bf16/generation_config.json").read_text() == '{"eos_token_id": 7}'
            octet(program, "convert", "import", "--input", source, "--output", f"{source}-fp32", "--dtype", "fp32", "--max-shard-size", "64kb")
            wide = read_directory(pathlib.Path(f"{source}-fp32"))
            same(wide, {key: x.astype(np.float32) for key, x in weights.items()}, source)
            files = list(pathlib.Path(f"{source}-fp32").glob("model-*.safetensors"))
            assert len(files) > 3 and all(len(load(file)) == 1 or file.stat().st_size < 66000 for file in files), files


def check_fp8(program, folder, rng, name):
    config, source = config_of(name), folder / f"{name}-source"
    weights = random_weights(rng, config, np.float32)
    write_directory(source, config, weights, 2)
    exported = folder / f"{name}-fp8"
    done = octet(program, "convert", "export", "--checkpoint", source, "--output", exported, "--dtype", "fp8", "--max-shard-size", "200kb")
    assert ("not a multiple of 128" in done.stderr) == (name != "square"), done.stderr
    tensors = read_directory(exported)
    same(tensors, quantised({key: x.astype(BF16) for key, x in weights.items()}), exported)
    plain = ["model.embed_tokens", "lm_head"]
    expected = config | {"torch_dtype": "bfloat16", "quantization_config": BLOCK | {"modules_to_not_convert": plain}}
    assert json.loads((exported / "config.json").read_text()) == expected, (exported / "config.json").read_text()

    back = folder / f"{name}-back"
    octet(program, "convert", "import", "--input", exported, "--output", back)
    same(read_directory(back), dequantised(tensors), back)
    assert json.loads((back / "config.json").read_text()) == config | {"torch_dtype": "bfloat16"}
    octet(program, "convert", "verify", exported, back)
    # Values that are already a code times a scale are exported unchanged.
    octet(program, "convert", "export", "--checkpoint", back, "--output", folder / f"{name}-again", "--dtype", "fp8")
    octet(program, "convert", "verify", exported, folder / f"{name}-again", "--weights-only", "--tolerance", "0")

    # Scales that are no powers of two, as other programs make them.
    other = {key: (rng.uniform(1e-4, 3, x.shape).astype(np.float32) if key.endswith("_scale_inv") else x) for key, x in tensors.items()}
    write_directory(folder / f"{name}-other", config | {"quantization_config": BLOCK}, other, 2)
    octet(program, "convert", "import", "--input", folder / f"{name}-other", "--output", folder / f"{name}-other-bf16")
    same(read_directory(folder / f"{name}-other-bf16"), dequantised(other), name)


def check_verify(program, folder, rng):
    config = config_of("ragged")
    weights = random_weights(rng, config, np.float32)
    write_directory(folder / "a", config, weights)
    changed = {name: x.copy() for name, x in weights.items()}
    victim = "model.layers.1.mlp.up_proj.weight"
    changed[victim][3, 5] += np.float32(0.5)
    write_directory(folder / "b", config, changed)
    same_json = json.loads(octet(program, "convert", "verify", folder / "a", folder / "a", "--json").stdout)
    assert same_json["same"] and same_json["worst"] is None and len(same_json["outputs"]) == len(weights) + 2
    assert [entry["name"] for entry in same_json["outputs"][:2]] == ["logits", "loss"]
    done = octet(program, "convert", "verify", folder / "a", folder / "b", "--weights-only", "--json", expect=1)
    report = json.loads(done.stdout)
    assert victim in done.stderr and report["worst"]["name"] == victim and not report["same"] and report["outputs"] == []
    for entry in report["weights"]:
        x, y = weights[entry["name"]].astype(np.float64), changed[entry["name"]].astype(np.float64)
        for key, value in {"max_abs": np.max(np.abs(x - y)), "max_rel": np.max(np.abs(x - y)) / np.max(np.abs(x)),
                           "norm_a": np.linalg.norm(x), "norm_b": np.linalg.norm(y)}.items():
            assert abs(entry[key] - value) <= 1e-12 * abs(value), (entry, key, value)
        assert entry["same"] == (entry["name"] != victim)
    largest = report["worst"]["max_rel"]
    octet(program, "convert", "verify", folder / "a", folder / "b", "--weights-only", "--tolerance", largest * 1.001)
    octet(program, "convert", "verify", folder / "a", folder / "b", "--weights-only", "--tolerance", largest * 0.999, expect=1)


def main(program):
    rng = np.random.default_rng(20)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for shape in SHAPES:
            check_forms(program, folder, rng, shape)
            check_fp8(program, folder, rng, shape)
        check_verify(program, folder, rng)
    print("convert: every form, code and scale agrees with numpy")


if __name__ == "__main__":
    main(sys.argv[1])
