"""Makes tests/golden/llama/, mistral/, mixtral/, qwen2/, qwen3/, qwen3_moe/, olmo2/ and phi3/: small random models with the logits, loss and
gradients that transformers computes in FP32.

    pip install torch transformers safetensors
    python tools/make_llama_goldens.py [FAMILY/NAME...]

Each folder FAMILY/NAME holds model/ (config.json, model.safetensors), tokens.safetensors and expected.safetensors, the input and the
output of `octet probe --recipe fp32 --grads`. The seed of a model is its place among the cases of its family. So a new case comes last, or all
cases after it change.
"""
import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import (LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, MixtralConfig,
                          MixtralForCausalLM, Olmo2Config, Olmo2ForCausalLM, Phi3Config, Phi3ForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM,
                          Qwen3MoeConfig, Qwen3MoeForCausalLM)
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

BASE = dict(vocab_size=48, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            max_position_embeddings=256, rms_norm_eps=1e-5, rope_theta=10000.0)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)
LLAMA = {
    "mha": dict(num_key_value_heads=4),
    "gqa": dict(num_key_value_heads=2, rms_norm_eps=1e-6),
    "mqa": dict(num_key_value_heads=1, tie_word_embeddings=True),
    "gqa-tied": dict(num_key_value_heads=2, tie_word_embeddings=True, rope_theta=500000.0),
    "llama3-rope": dict(num_key_value_heads=2, rope_theta=500000.0, rope_scaling=LLAMA3),
    "head-dim-24": dict(num_key_value_heads=2, head_dim=24),
    "head-dim-80": dict(num_attention_heads=2, num_key_value_heads=1, head_dim=80, num_hidden_layers=1),
    "bf16-sharded": dict(num_key_value_heads=2),
    "biases": dict(num_key_value_heads=2, attention_bias=True, mlp_bias=True),
    "linear-rope": dict(num_key_value_heads=2, rope_scaling=dict(rope_type="linear", factor=4.0)),
    "yarn-rope": dict(num_key_value_heads=2, head_dim=24, rope_scaling=YARN),
}
BATCH, LENGTH = 2, 45
# Sliding windows that are shorter than the sequence, one token shorter, as long, and longer.
MISTRAL = {
    "window-8": dict(num_key_value_heads=2, sliding_window=8),
    "window-44-head-dim-24": dict(num_key_value_heads=1, head_dim=24, sliding_window=LENGTH - 1, rope_theta=1e6),
    "window-45": dict(num_key_value_heads=4, sliding_window=LENGTH),
    "window-64": dict(num_key_value_heads=2, sliding_window=64, tie_word_embeddings=True),
    "window-2": dict(num_key_value_heads=2, sliding_window=2, num_hidden_layers=1),
    "window-null": dict(num_key_value_heads=2, sliding_window=None, head_dim=12, rope_theta=1e6),
}
MIXTRAL = {
    "top-2-of-8": dict(num_key_value_heads=2, num_local_experts=8),
    "top-1-of-4": dict(num_key_value_heads=4, num_local_experts=4, num_experts_per_tok=1, head_dim=24, num_hidden_layers=1,
                       output_router_logits=True, router_aux_loss_coef=0.1),  # with one expert for each token, the router learns only from this loss
    "all-of-3": dict(num_key_value_heads=2, num_local_experts=3, num_experts_per_tok=3, sliding_window=8),
    "balance": dict(num_key_value_heads=2, num_local_experts=4, num_hidden_layers=1, output_router_logits=True,
                    router_aux_loss_coef=0.5),
}
QWEN2 = {
    "gqa": dict(num_key_value_heads=2, rope_theta=1e6),
    "tied-yarn": dict(num_key_value_heads=1, tie_word_embeddings=True, rope_scaling={**YARN, "beta_fast": 8.0, "attention_factor": 1.2}),
    "windows": dict(num_key_value_heads=2, num_hidden_layers=3, use_sliding_window=True, sliding_window=8, max_window_layers=1),
}
QWEN3 = {
    "head-dim-16": dict(num_key_value_heads=2, head_dim=16, rope_theta=1e6, rms_norm_eps=1e-6),
    "tied": dict(num_key_value_heads=1, head_dim=12, tie_word_embeddings=True),
    "bias-windows": dict(num_key_value_heads=4, head_dim=24, attention_bias=True, use_sliding_window=True, sliding_window=5, max_window_layers=1),
}
QWEN3_MOE = {
    "top-2-of-8": dict(num_key_value_heads=2, head_dim=12, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=16, norm_topk_prob=True),
    "not-normalised": dict(num_key_value_heads=2, head_dim=16, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=24, norm_topk_prob=False),
    "sparse-step": dict(num_key_value_heads=4, head_dim=8, num_hidden_layers=4, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
                        norm_topk_prob=True, decoder_sparse_step=2, mlp_only_layers=[3]),
    # The config.json that transformers 5 writes: other names, and the window, which all layers have.
    "transformers5": dict(num_key_value_heads=2, head_dim=8, num_hidden_layers=2, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16,
                          norm_topk_prob=True, use_sliding_window=True, sliding_window=8,
                          rope_parameters=dict(rope_type="default", rope_theta=700.0)),
    "balance": dict(num_key_value_heads=2, head_dim=8, num_hidden_layers=2, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
                    norm_topk_prob=False, decoder_sparse_step=2, output_router_logits=True, router_aux_loss_coef=0.5),
}
# Neither of these has a token for padding: the usual one lies beyond this small vocabulary.
OLMO2 = {
    "mha": dict(num_key_value_heads=4, rope_theta=500000.0, pad_token_id=None),
    "gqa-tied-bias": dict(num_key_value_heads=2, tie_word_embeddings=True, attention_bias=True, rms_norm_eps=1e-6, pad_token_id=None),
}
PHI3 = {
    "gqa-window": dict(num_key_value_heads=2, sliding_window=8, pad_token_id=None),
    "partial-rotary": dict(num_key_value_heads=4, pad_token_id=None,
                           rope_parameters=dict(rope_type="default", rope_theta=700.0, partial_rotary_factor=0.5)),
}
FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM, 1000, LLAMA),
    "mistral": (MistralConfig, MistralForCausalLM, 2000, MISTRAL),
    "mixtral": (MixtralConfig, MixtralForCausalLM, 3000, MIXTRAL),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, 4000, QWEN2),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, 5000, QWEN3),
    "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM, 6000, QWEN3_MOE),
    "olmo2": (Olmo2Config, Olmo2ForCausalLM, 8000, OLMO2),
    "phi3": (Phi3Config, Phi3ForCausalLM, 9000, PHI3),
}


def on_disk(family, key, tensor):
    """Returns the tensors of a file for a parameter of transformers 5, which stores the experts of a layer in one parameter."""
    module, gate, up, down = ("block_sparse_moe", "w1", "w3", "w2") if family == "mixtral" else ("mlp", "gate_proj", "up_proj", "down_proj")
    if ".mlp.experts." not in key:
        yield key.replace(".mlp.gate.", f".{module}.gate."), tensor
        return
    layer, kind = key.split(".mlp.experts.")
    for expert, matrix in enumerate(tensor):
        parts = dict(zip((gate, up), matrix.chunk(2))) if kind == "gate_up_proj" else {down: matrix}
        for name, part in parts.items():
            yield f"{layer}.{module}.experts.{expert}.{name}.weight", part.contiguous()


def write(out, family, name, index, overrides):
    make_config, make_model, seed, _ = FAMILIES[family]
    folder = out / name
    (folder / "model").mkdir(parents=True, exist_ok=True)
    settings = {**BASE, **overrides}
    if "rope_parameters" in settings:
        del settings["rope_theta"]
    config = make_config(**settings, attn_implementation="eager")
    torch.manual_seed(seed + index)
    model = make_model(config).float()
    with torch.no_grad():
        for parameter in model.parameters():  # larger than a usual initialization, so that no gradient is tiny
            parameter.copy_(torch.randn_like(parameter) * (0.25 if parameter.dim() > 1 else 0.1) + (parameter.dim() == 1))
        if name == "bf16-sharded":
            for parameter in model.parameters():
                parameter.copy_(parameter.bfloat16().float())
    # The router's loss is a mean over one sequence, all of whose tokens count.
    balanced = overrides.get("output_router_logits", False)
    tokens = torch.randint(0, config.vocab_size, (1 if balanced else BATCH, LENGTH))
    targets = torch.randint(0, config.vocab_size, tokens.shape)
    if not balanced:
        targets[0, :7] = -100
    result = model(input_ids=tokens)
    logits = result.logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, config.vocab_size), targets.reshape(-1), ignore_index=-100)
    if balanced:
        loss = loss + config.router_aux_loss_coef * load_balancing_loss_func(
            result.router_logits, overrides.get("num_experts") or config.num_local_experts, config.num_experts_per_tok)
    loss.backward()
    expected = {"logits": logits.detach(), "loss": loss.detach().reshape(1)}
    weights = {}
    for key, parameter in model.named_parameters():
        expected.update({"grad." + name: part for name, part in on_disk(family, key, parameter.grad)})
        weights.update({name: part.clone() for name, part in on_disk(family, key, parameter.detach())})
    hf = {"architectures": [make_model.__name__], "model_type": family, "hidden_act": "silu",
          "num_key_value_heads": 4, "tie_word_embeddings": False, **settings}
    if name == "transformers5":
        hf = config.to_dict()
    (folder / "model" / "config.json").write_text(json.dumps(hf, indent=2) + "\n")
    if name == "bf16-sharded":
        weights = {key: value.bfloat16() for key, value in weights.items()}
        keys = sorted(weights)
        shards = [keys[::2], keys[1::2]]
        index_map = {}
        for i, shard in enumerate(shards, 1):
            file = f"model-{i:05d}-of-{len(shards):05d}.safetensors"
            save_file({key: weights[key] for key in shard}, folder / "model" / file, metadata={"format": "pt"})
            index_map.update({key: file for key in shard})
        index_json = {"metadata": {"total_size": sum(2 * weights[key].numel() for key in keys)}, "weight_map": index_map}
        (folder / "model" / "model.safetensors.index.json").write_text(json.dumps(index_json, indent=1) + "\n")
    else:
        save_file(weights, folder / "model" / "model.safetensors", metadata={"format": "pt"})
    save_file({"tokens": tokens, "targets": targets}, folder / "tokens.safetensors")
    save_file(expected, folder / "expected.safetensors")
    print(family, name, "loss", float(loss))


def main():
    out = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden"
    for family, (_, _, _, cases) in FAMILIES.items():
        for index, (name, overrides) in enumerate(cases.items()):
            if len(sys.argv) == 1 or f"{family}/{name}" in sys.argv[1:]:
                write(out / family, family, name, index, overrides)


main()
