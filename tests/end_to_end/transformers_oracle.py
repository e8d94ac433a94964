"""`octet convert` and transformers must read each other's directories. Needs torch and transformers, and accelerate for directories in FP8.
Without the first two the script says so and exits with 77, which ctest counts as skipped."""

import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32, rope_theta=5e5)
CASES = {
    "gqa": dict(model_type="llama", num_attention_heads=4, num_key_value_heads=2, head_dim=64),
    "tied": dict(model_type="llama", num_attention_heads=2, num_key_value_heads=2, head_dim=128, tie_word_embeddings=True),
    "llama3": dict(model_type="llama", num_attention_heads=4, num_key_value_heads=4, head_dim=32, rope_parameters=LLAMA3),
    "window": dict(model_type="mistral", num_attention_heads=4, num_key_value_heads=2, head_dim=32, sliding_window=16),
    "mixture": dict(model_type="mixtral", num_attention_heads=4, num_key_value_heads=2, head_dim=32, num_local_experts=4, num_experts_per_tok=2),
    "norms-after": dict(model_type="olmo2", num_attention_heads=4, num_key_value_heads=2),
    "fused": dict(model_type="phi3", num_attention_heads=4, num_key_value_heads=2, sliding_window=16, pad_token_id=None, rope_parameters=dict(
        rope_type="default", rope_theta=700.0, partial_rotary_factor=0.5)),
    "neox": dict(model_type="gpt_neox", num_attention_heads=4, rotary_pct=0.25),
    "qkv-biases": dict(model_type="qwen2", num_attention_heads=4, num_key_value_heads=2, use_sliding_window=False),
    "head-norms": dict(model_type="qwen3", num_attention_heads=4, num_key_value_heads=2, head_dim=32, tie_word_embeddings=True),
    "many-experts": dict(model_type="qwen3_moe", num_attention_heads=4, num_key_value_heads=2, head_dim=32, num_experts=8, num_experts_per_tok=2,
                         moe_intermediate_size=128, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[]),
    "positions": dict(model_type="gpt_neo", num_heads=4, num_layers=2, window_size=16, attention_types=[[["global", "local"], 1]]),
}


def octet(program, *arguments, expect=0):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == expect, (arguments, done.returncode, done.stdout, done.stderr)
    return done


def check(program, folder, name, settings):
    torch.manual_seed(3)
    config = AutoConfig.for_model(**settings, vocab_size=96, hidden_size=256, intermediate_size=384, num_hidden_layers=2, max_position_embeddings=128)
    model = AutoModelForCausalLM.from_config(config)
    # GPT-Neo does not divide scores by the root of the head's 64 dims.
    spread = 0.06 / 8**0.5 if settings["model_type"] == "gpt_neo" else 0.06
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * (spread if parameter.dim() > 1 else 0.1) + (parameter.dim() == 1))
    tokens = torch.randint(0, config.vocab_size, (2, 40))
    save_file({"tokens": tokens}, folder / "tokens.safetensors")

    def logits_by_octet(path):
        octet(program, "probe", "--model", path, "--tokens", folder / "tokens.safetensors", "--recipe", "fp32", "--output", folder / "out")
        return load_file(folder / "out")["logits"]

    def expect_logits(path, what):
        loaded = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        expected, actual = loaded(input_ids=tokens).logits.detach(), logits_by_octet(path)
        distance = float((actual - expected).norm() / expected.norm())
        assert distance < 1e-4, (name, what, distance)
        return loaded

    # Directories written by transformers: F32, F16 and BF16, in one file and in shards.
    saved = {}
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for size in ("5GB", "500KB"):
            path = folder / f"{str(dtype)[6:]}-{size}"
            model.to(dtype).save_pretrained(path, max_shard_size=size)
            saved[dtype, size] = path
            model.float()
        expect_logits(saved[dtype, "5GB"], dtype)
        octet(program, "convert", "verify", saved[dtype, "5GB"], saved[dtype, "500KB"], "--tolerance", 0)
    assert (saved[torch.float32, "500KB"] / "model.safetensors.index.json").exists()

    # A directory written by Octet. transformers must read the same model, and what it saves must be the same model for Octet.
    imported = folder / "imported"
    octet(program, "convert", "import", "--input", saved[torch.float32, "500KB"], "--output", imported, "--max-shard-size", "600KB")
    loaded = expect_logits(imported, "import")
    loaded.to(torch.bfloat16).save_pretrained(folder / "resaved")
    octet(program, "convert", "verify", imported, folder / "resaved", "--tolerance", 0)
    octet(program, "convert", "verify", imported, saved[torch.float32, "5GB"], expect=1)
    # After rounding, one of many experts may lose a token to another, and then it has another gradient.
    compared = ["--weights-only"] if "num_experts" in settings else []
    octet(program, "convert", "verify", imported, saved[torch.float32, "5GB"], "--tolerance", 0.1, *compared)

    # A directory in FP8. Without a GPU transformers converts it to BF16, which must equal Octet's import.
    fp8 = folder / "fp8"
    octet(program, "convert", "export", "--checkpoint", imported, "--output", fp8, "--dtype", "fp8", "--max-shard-size", "300KB")
    assert json.loads((fp8 / "config.json").read_text())["quantization_config"]["quant_method"] == "fp8"
    octet(program, "convert", "import", "--input", fp8, "--output", folder / "plain")
    octet(program, "convert", "verify", fp8, folder / "plain", "--tolerance", 1 / 256)
    octet(program, "convert", "verify", fp8, imported, "--tolerance", 0.07, "--weights-only")
    if not settings.keys() & {"num_local_experts", "num_experts"}:
        octet(program, "convert", "verify", fp8, imported, "--tolerance", 0.25)
    if not importlib.util.find_spec("accelerate"):
        return
    by_transformers = AutoModelForCausalLM.from_pretrained(fp8).state_dict()
    by_octet = AutoModelForCausalLM.from_pretrained(folder / "plain").state_dict()
    assert by_transformers.keys() == by_octet.keys(), sorted(by_transformers.keys() ^ by_octet.keys())
    for key, x in by_octet.items():
        assert x.dtype == by_transformers[key].dtype == torch.bfloat16 and torch.equal(x, by_transformers[key]), (name, key)


def main(program):
    logging.disable_progress_bar()
    for name, settings in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            check(program, pathlib.Path(folder), name, settings)
    fp8 = "" if importlib.util.find_spec("accelerate") else "; transformers reads FP8 with accelerate only, which is not here"
    print(f"convert: transformers and Octet read each other's directories{fp8}")


if __name__ == "__main__":
    main(sys.argv[1])
