"""generate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .common import NEW_FOLDER, precision_options, progress, say


@click.command(short_help="Write text with a language model.")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("text")
@click.option("--max-new-tokens", type=click.IntRange(1), help="Tokens to write.  [default: as the folder says]")
@click.option("--temperature", type=float, help="Divisor of the logits; 0 takes the most likely token.")
@click.option("--top-k", type=int, help="Draw among so many tokens; 0 is all.")
@click.option("--top-p", type=float, help="Draw among the likeliest tokens that together have this share.")
@click.option("--seed", type=int, help="The same seed gives the same text.")
@click.option("--stop", multiple=True, metavar="STRING", help="End before this string. May be repeated.")
@click.option("--threads", type=click.IntRange(1), help="Threads of each call.  [default: all cores]")
@click.option("--cache-dir", type=NEW_FOLDER, help="Folder of compiled models: the same model is not compiled again.")
@precision_options
def generate(
    folder: Path,
    text: str,
    max_new_tokens: int | None,
    threads: int | None,
    cache_dir: Path | None,
    precision: str,
    weights: str | None,
    activations: str | None,
    int8: str,
    **choice: Any,
) -> None:
    """Write what follows TEXT, with the language model in FOLDER.

    \b
      tvm-byoc generate qwen "The capital of France is" --max-new-tokens 20
      tvm-byoc generate qwen "Once upon a time" --temperature 0.8 --top-p 0.95 --seed 1 --cache-dir ~/.cache/models

    FOLDER is one that onnxruntime-genai's model builder wrote. The text is printed piece by piece; the last line, on
    standard error, says how many tokens a second were read and written. It needs the package tokenizers.
    """
    from ..text.generator import TextGenerator

    with progress(f"compiling {folder.name}"):
        generator = TextGenerator(
            folder,
            precision=precision,
            weights=weights,
            activations=activations,
            int8=int8,
            threads=threads,
            cache_dir=cache_dir,
        )
    stream = generator.stream(text, max_new_tokens, **choice)
    for piece in stream:
        click.echo(piece, nl=False)
    click.echo()
    rates = [
        f"{count} tokens{f', {of / seconds:.1f} tokens/s' if seconds else ''}"
        for count, of, seconds in (
            (stream.prompt_tokens, stream.prompt_tokens, stream.prompt_seconds),
            (stream.tokens, stream.steps, stream.step_seconds),
        )
    ]
    say(f"prompt: {rates[0]}; text: {rates[1]}")
