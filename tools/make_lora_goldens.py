"""Makes tests/golden/lora/: random adapters as PEFT saves them, on models of the other goldens, with the logits, loss and gradients
that PEFT and transformers compute in FP32.

    pip install torch transformers safetensors peft
    python tools/make_lora_goldens.py

Each folder NAME holds adapter/ (adapter_config.json, which names the model; adapter_model.safetensors) and expected.safetensors, the
output of `octet probe --recipe fp32 --grads` for the tokens of the model's golden.
"""
import json
import pathlib
import shutil

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden"
CASES = {
    "llama-all": ("llama/gqa", dict(r=4, lora_alpha=8, target_modules="all-linear")),
    "llama-some": ("llama/mqa", dict(r=3, lora_alpha=5, target_modules=["q_proj", "v_proj", "up_proj"], use_rslora=True)),
    "llama-one-layer": ("llama/biases", dict(r=2, lora_alpha=1, target_modules=["o_proj", "gate_proj"], layers_to_transform=[1])),
    "qwen3-all": ("qwen3/head-dim-16", dict(r=4, lora_alpha=16, target_modules="all-linear")),
    "gpt_neox-all": ("gpt_neox/parallel", dict(r=4, lora_alpha=8, target_modules="all-linear")),
}


def write(name, index, base, settings):
    folder = GOLDEN / "lora" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tensors = load_file(GOLDEN / base / "tokens.safetensors")
    tokens, targets = tensors["tokens"].long(), tensors["targets"].long()
    torch.manual_seed(7000 + index)
    model = AutoModelForCausalLM.from_pretrained(GOLDEN / base / "model", dtype=torch.float32, attn_implementation="eager")
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **settings))
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.requires_grad:  # larger than a usual initialization, and B not zero, so that no gradient is tiny
                parameter.copy_(torch.randn_like(parameter) * 0.25)
    logits = model(input_ids=tokens).logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1), ignore_index=-100)
    loss.backward()
    expected = {"logits": logits.detach(), "loss": loss.detach().reshape(1)}
    for key, parameter in model.named_parameters():
        if parameter.requires_grad:
            expected["grad." + key.replace(".default", "")] = parameter.grad
    model.save_pretrained(folder / "adapter")
    (folder / "adapter" / "README.md").unlink(missing_ok=True)
    config = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = f"{base}/model"
    config["target_modules"] = sorted(config["target_modules"])
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    save_file({key: value.contiguous() for key, value in expected.items()}, folder / "expected.safetensors")


def main():
    for index, (name, (base, settings)) in enumerate(CASES.items()):
        write(name, index, base, settings)


if __name__ == "__main__":
    main()
