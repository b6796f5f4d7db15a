"""The times of the engines, divided by ours, as bars."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tvm_byoc_dnnl.testing.bench import ENGINES

from .page import ratios

__all__ = ["draw"]


def draw(machine: Mapping[str, Any], file: Path) -> None:
    """Write the picture of one machine."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams.update({"svg.hashsalt": "tvm-byoc-dnnl", "svg.fonttype": "none", "font.size": 9})
    by_engine = {name: found for name in ENGINES if name != "byoc" and (found := ratios(machine, name))}
    models = list(machine["models"])
    height = 0.8 / max(len(by_engine), 1)
    figure, axes = pyplot.subplots(figsize=(8, 0.8 + 0.36 * len(models)), layout="constrained")
    for number, (name, found) in enumerate(by_engine.items()):
        known = [i for i, model in enumerate(models) if model in found]
        places = [i - 0.4 + (number + 0.5) * height for i in known]
        axes.barh(places, [found[models[i]] for i in known], height, label=ENGINES[name].label)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(range(len(models)), models)
    axes.invert_yaxis()
    axes.set_xlabel("time ÷ ours (right of 1: this package is faster)")
    axes.set_title(f"{machine['cpu']}, {machine['isa']}, {machine['threads']} threads")
    axes.legend(loc="lower right")
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)
