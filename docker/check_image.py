"""The last layer of an image: everything imports, and `specdec doctor` finds nothing amiss.

An image that fails this is never made. The doctor looks at a model that is made here and thrown
away, since the weights are not in the image.
"""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator

PACKAGES = ("specdec", "deployments")


def module_names() -> Iterator[str]:
    """All modules of ours, but those that are a program."""
    for package in PACKAGES:
        yield package
        folders = importlib.import_module(package).__path__
        for module in pkgutil.walk_packages(folders, f"{package}."):
            if not module.name.endswith("__main__"):
                yield module.name


def save_model(folder: str) -> None:
    """The smallest model that the doctor takes for one."""
    from transformers import LlamaConfig

    sizes = {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 64}
    heads = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = LlamaConfig(**sizes, **heads, architectures=["LlamaForCausalLM"])
    config.save_pretrained(folder)


def main() -> None:
    names = list(module_names())
    for name in names:
        importlib.import_module(name)
    print(f"{len(names)} modules import", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        save_model(folder)
        doctor = [sys.executable, "-m", "specdec.cli", "doctor", "--target", folder]
        sys.exit(subprocess.run(doctor, check=False).returncode)


if __name__ == "__main__":
    main()
