"""Makes tests/golden/gpt_neox/ and gpt_neo/: small random models with the logits, loss and gradients that transformers computes in FP32.

    pip install torch transformers safetensors
    python tools/make_gpt_neox_goldens.py [FAMILY/NAME...]

Each folder NAME holds model/ (config.json, model.safetensors), tokens.safetensors and expected.safetensors, the input and the
output of `octet probe --recipe fp32 --grads`.
"""
import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import GPTNeoConfig, GPTNeoForCausalLM, GPTNeoXConfig, GPTNeoXForCausalLM

BASE = dict(vocab_size=48, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            max_position_embeddings=256)
# config.json uses the keys of Pythia's checkpoints, except in "transformers5", which uses those of transformers 5.
CASES = {
    "parallel": dict(),
    "sequential": dict(use_parallel_residual=False, hidden_act="gelu_new", rotary_pct=1.0),
    "parallel-whole-rotary": dict(rotary_pct=1.0, hidden_act="gelu_fast", layer_norm_eps=1e-3),
    "sequential-tied": dict(use_parallel_residual=False, tie_word_embeddings=True, rotary_pct=0.5),
    "no-attention-bias": dict(attention_bias=False, hidden_act="gelu_pytorch_tanh", rotary_pct=0.75, rotary_emb_base=500),
    "head-dim-10": dict(hidden_size=40, rotary_pct=0.4, num_hidden_layers=1),
    "transformers5": dict(rope_parameters=dict(rope_type="default", rope_theta=700.0, partial_rotary_factor=0.5)),
    "old-buffers": dict(hidden_act="gelu_fast"),
}
NEO_BASE = dict(vocab_size=48, hidden_size=32, intermediate_size=48, num_layers=2, num_heads=4, max_position_embeddings=64)
NEO_CASES = {
    "window-8": dict(attention_types=[[["global", "local"], 1]], window_size=8),
    "local-first": dict(attention_types=[[["local"], 1], [["global"], 2]], num_layers=3, window_size=44, activation_function="gelu"),
    "untied": dict(attention_types=[[["local", "global"], 1]], window_size=16, tie_word_embeddings=False, intermediate_size=None,
                   layer_norm_epsilon=1e-3),
}
BATCH, LENGTH = 2, 45


def write(out, family, name, index, overrides):
    folder = out / name
    (folder / "model").mkdir(parents=True, exist_ok=True)
    neo = family == "gpt_neo"
    settings = {**(NEO_BASE if neo else BASE), **overrides}
    config = (GPTNeoConfig if neo else GPTNeoXConfig)(**settings, attn_implementation="eager")
    torch.manual_seed((7000 if neo else 2000) + index)
    model = (GPTNeoForCausalLM if neo else GPTNeoXForCausalLM)(config).float()
    with torch.no_grad():
        for key, parameter in model.named_parameters():  # larger than a usual initialization, so that no gradient is tiny
            is_scale = parameter.dim() == 1 and key.endswith(".weight")
            parameter.copy_(torch.randn_like(parameter) * 0.25 + is_scale)
    tokens = torch.randint(0, config.vocab_size, (BATCH, LENGTH))
    targets = torch.randint(0, config.vocab_size, (BATCH, LENGTH))
    targets[0, :7] = -100
    logits = model(input_ids=tokens).logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, config.vocab_size), targets.reshape(-1), ignore_index=-100)
    loss.backward()
    expected = {"logits": logits.detach(), "loss": loss.detach().reshape(1)}
    on_disk = {} if neo else {"lm_head.weight": "embed_out.weight"}  # transformers 5 renames the head when it reads and writes
    parameters = {on_disk.get(key, key): parameter for key, parameter in model.named_parameters()}
    for key, parameter in parameters.items():
        expected["grad." + key] = parameter.grad
    weights = {key: parameter.detach().clone() for key, parameter in parameters.items()}
    if name == "old-buffers":  # buffers that Pythia's files hold in addition to the weights
        for layer in range(config.num_hidden_layers):
            attention = f"gpt_neox.layers.{layer}.attention."
            weights[attention + "bias"] = torch.ones(1, 1, 8, 8, dtype=torch.bool).tril()
            weights[attention + "masked_bias"] = torch.tensor(-1e9)
            weights[attention + "rotary_emb.inv_freq"] = torch.ones(1)
    hf = {"architectures": [type(model).__name__], "model_type": family, **settings}
    (folder / "model" / "config.json").write_text(json.dumps(hf, indent=2) + "\n")
    save_file(weights, folder / "model" / "model.safetensors", metadata={"format": "pt"})
    save_file({"tokens": tokens, "targets": targets}, folder / "tokens.safetensors")
    save_file(expected, folder / "expected.safetensors")
    print(name, "loss", loss.item())


def main():
    out = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden"
    for family, cases in (("gpt_neox", CASES), ("gpt_neo", NEO_CASES)):
        for index, (name, overrides) in enumerate(cases.items()):
            if len(sys.argv) == 1 or f"{family}/{name}" in sys.argv[1:]:
                write(out / family, family, name, index, overrides)


main()
