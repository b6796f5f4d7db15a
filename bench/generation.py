"""Whole models beside the peers that are installed: ``python -m bench.language generate``, and ``... speech``.

The model is a GGUF file with random weights from a seed; onnxruntime-genai gets the same model in the form of its model
builder. Each engine answers in processes of its own, and all take turns: one for a prompt and its first token, one for
a prompt and the tokens behind it, whose difference is the time of these.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import click
import numpy as np
import onnx
from gguf import LlamaFileType

from examples.transcribe import END, PROMPT, Step, transcribe
from tests.e2e.gguf_model import GgufModel
from tvm_byoc_dnnl.core.own_process import WorkerError
from tvm_byoc_dnnl.frontends.gguf.decoder import read_decoder
from tvm_byoc_dnnl.testing.bench.engines import Engine, Load, Run
from tvm_byoc_dnnl.testing.bench.measure import EngineProcess, installed

_FOLDER = "Where the models are kept for the next time; without it they are made for this time only."
_LONGEST = 2048  # tokens of a text
_LETTERS = 128  # tokens of one letter each, from which prompts are made
_FIELDS = ("arch", "layers", "hidden", "heads", "own", "width", "wide", "words")
#: model → what distinguishes its file
SHAPES: dict[str, tuple[Any, ...]] = {
    "tiny": ("llama", 2, 256, 4, 2, 64, 512, 512),
    "SmolLM2-135M": ("llama", 30, 576, 9, 3, 64, 1536, 49152),
    "Qwen2.5-0.5B": ("qwen2", 24, 896, 14, 2, 64, 4864, 151936),
    "Llama-3.2-1B": ("llama", 16, 2048, 32, 8, 64, 8192, 128256),
}


def write(name: str, kind: str, threads: int, folder: Path) -> None:
    """The files of a model whose products have weights of this type; its tables of words have 8 bits."""
    tables = dict.fromkeys(("token_embd.weight", "output.weight"), "Q8_0")
    kinds = {"attn_output.weight": kind, **tables, ".weight": kind}
    model = GgufModel(**dict(zip(_FIELDS, SHAPES[name], strict=True)), kinds=kinds, longest=_LONGEST)
    model.write(folder / "model.gguf", lambda writer: _add_letters(writer, model.words), gives=False)
    write_for_genai(folder / "model.gguf", threads)


def _add_letters(writer: Any, words: int) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    letters = [chr(0x100 + i) if i <= 32 else chr(i) if i < 127 else chr(0x121) for i in range(_LETTERS)]
    writer.add_token_list([*letters, '!"', *(f"<{i}>" for i in range(_LETTERS + 1, words))])
    writer.add_token_types([1] * words)
    writer.add_token_merges(['! "'])  # readers want one
    for add in (writer.add_bos_token_id, writer.add_eos_token_id, writer.add_pad_token_id):
        add(words - 1)
    writer.add_add_bos_token(False)
    writer.add_file_type(LlamaFileType.MOSTLY_Q4_0)


def write_for_genai(path: Path, threads: int) -> None:
    """The same model as the folder of onnxruntime-genai's model builder, beside the file."""
    model, constants = read_decoder(path)
    shapes = {}
    for node in model.graph.node:
        if node.op_type == "MatMulNBits":
            of = {a.name: a.i for a in node.attribute}
            shapes[node.input[1]] = [of["N"], -(-of["K"] // of["block_size"]), of["block_size"] * of["bits"] // 8]
            node.attribute.append(onnx.helper.make_attribute("accuracy_level", 4))  # as the model builder writes it
    for tensor in model.graph.initializer:
        tensor.raw_data = constants[tensor.name].tobytes()
        tensor.dims[:] = shapes.get(tensor.name, tensor.dims)
    onnx.save(model, path.with_name("model.onnx"), save_as_external_data=True, location="model.onnx.data")
    (words, *_), dims = (_dims(model.graph.output[0])[2:], _dims(model.graph.input[2]))
    layers = (len(model.graph.input) - 2) // 2
    attributes = (a for n in model.graph.node if n.op_type == "GroupQueryAttention" for a in n.attribute)
    heads = next(a.i for a in attributes if a.name == "num_heads")
    pasts = {f"past_{kind}_names": f"past_key_values.%d.{kind}" for kind in ("key", "value")}
    presents = {f"present_{kind}_names": f"present.%d.{kind}" for kind in ("key", "value")}
    decoder = {
        "filename": "model.onnx",
        "session_options": {"intra_op_num_threads": threads, "provider_options": []},
        "head_size": dims[3],
        "hidden_size": heads * dims[3],
        "num_attention_heads": heads,
        "num_key_value_heads": dims[1],
        "num_hidden_layers": layers,
        "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask", **pasts},
        "outputs": {"logits": "logits", **presents},
    }
    most = 1 << 14
    of_model = {"type": "llama", "vocab_size": words, "context_length": most, "decoder": decoder}
    of_model |= {"bos_token_id": 0, "eos_token_id": words - 1, "pad_token_id": 0}
    search = {"do_sample": False, "max_length": most, "past_present_share_buffer": True}
    path.with_name("genai_config.json").write_text(json.dumps({"model": of_model, "search": search}))


def _dims(value: Any) -> list[Any]:
    return [dim.dim_value or dim.dim_param for dim in value.type.tensor_type.shape.dim]


# ---- engines: what runs `[numbers]`, the tokens of a prompt and how many to write behind it --------


def ours() -> Load:
    """`TextGenerator`, with a text of one-letter tokens."""
    import tvm_byoc_dnnl

    def load(path: str, threads: int, **options: Any) -> tuple[Run, str]:
        cache = Path(path).with_name("cache")  # each model is compiled once for all processes
        model = tvm_byoc_dnnl.TextGenerator(path, threads=threads, cache_dir=cache, **options)

        def run(inputs: list) -> list:
            *ids, count = inputs[0].tolist()
            model.generate("".join(map(chr, ids)), count)
            return []

        return run, tvm_byoc_dnnl.__version__

    return load


def llama_cpp() -> Load:
    """llama.cpp, which rounds sources to 8 bits."""
    import llama_cpp

    def load(path: str, threads: int) -> tuple[Run, str]:
        model = llama_cpp.Llama(path, n_ctx=1 << 12, n_threads=threads, n_threads_batch=threads, verbose=False)

        def run(inputs: list) -> list:
            *ids, count = inputs[0].tolist()
            model.reset()  # else it keeps the prompt of the call before
            tokens = model.generate(ids, temp=0.0)
            for _ in range(count):
                next(tokens)
            return []

        return run, llama_cpp.__version__

    return load


def genai() -> Load:
    """onnxruntime-genai; threads are those of its file."""
    import onnxruntime_genai

    def load(path: str, threads: int) -> tuple[Run, str]:
        model = onnxruntime_genai.Model(str(Path(path).parent))

        def run(inputs: list) -> list:
            *ids, count = inputs[0].tolist()
            settings = onnxruntime_genai.GeneratorParams(model)
            settings.set_search_options(max_length=len(ids) + count, min_length=len(ids) + count)
            generator = onnxruntime_genai.Generator(model, settings)
            generator.append_tokens(np.array(ids, "int32"))
            for _ in range(count):
                generator.generate_next_token()
            return []

        return run, onnxruntime_genai.__version__

    return load


def openvino_genai() -> Load:
    """OpenVINO, with the model that OpenVINO GenAI makes of a GGUF file of some architectures.

    Its own pipeline changes the model so that it gives the last logits only, and the CPU cannot compile that ("Node
    ReadValue contains dead weak ptr"). So the same change is made here, and the steps are called here.
    """
    import openvino
    import openvino_genai
    from openvino import opset13

    def load(path: str, threads: int) -> tuple[Run, str]:
        file = Path(path).with_name("openvino_model.xml")
        if not file.exists():
            with suppress(RuntimeError):  # it writes the file before it fails
                openvino_genai.LLMPipeline(path, "CPU", enable_save_ov_model=True)
        core = openvino.Core()
        model = core.read_model(file)
        head = model.outputs[0].get_node().input(0).get_source_output().get_node()
        begin, end, one = (opset13.constant(np.array([i])) for i in (-1, np.iinfo("int64").max, 1))
        last = opset13.slice(head.input(0).get_source_output(), begin, end, one, one)
        head.input(0).replace_source_output(last.output(0))
        model.validate_nodes_and_infer_types()
        request = core.compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": threads}).create_infer_request()

        def run(inputs: list) -> list:
            *prompt, count = inputs[0].tolist()
            request.reset_state()
            ids, start, beam = np.array([prompt]), 0, np.zeros(1, "int32")
            for _ in range(count):
                places = np.arange(start + ids.shape[1])[None]
                mask = np.ones_like(places)
                names = ("input_ids", "attention_mask", "position_ids", "beam_idx")
                request.infer(dict(zip(names, (ids, mask, places[:, start:], beam), strict=True)))
                start += ids.shape[1]
                ids = request.get_output_tensor(0).data.argmax(-1)
            return []

        return run, openvino.__version__

    return load


ENGINES = (
    Engine(ours, "tvm_byoc_dnnl", "tvm_byoc_dnnl"),
    Engine(ours, "tvm_byoc_dnnl, sources of 8 bits", "tvm_byoc_dnnl", {"activations": "int8"}),
    Engine(llama_cpp, "llama.cpp", "llama_cpp"),
    Engine(genai, "onnxruntime-genai", "onnxruntime_genai"),
    Engine(openvino_genai, "OpenVINO", "openvino_genai"),
)


class _Contestant(NamedTuple):
    """The two processes of an engine, and the milliseconds that each of them took."""

    label: str
    processes: list[EngineProcess]
    times: tuple[list[float], list[float]]

    @property
    def milliseconds(self) -> tuple[float, float]:
        """Until the first token, and from there to the last."""
        first, all_of_it = map(statistics.median, self.times)
        return first, max(1e-6, all_of_it - first)


@contextmanager
def _filled(kept: Path | None, fill: Callable[[Path], Any]) -> Iterator[Path]:
    """A folder with the files of a model: a temporary one, or one that is filled the first time and kept."""
    with TemporaryDirectory() as own:
        folder = kept or Path(own, "files")
        if not folder.exists():
            part = folder.with_name(f"{folder.name}.part")  # what a failure leaves has another name
            part.mkdir(parents=True, exist_ok=True)
            fill(part)
            part.rename(folder)
        yield folder


@click.command()
@click.argument("models", nargs=-1, type=click.Choice(list(SHAPES)))
@click.option("--kind", default="Q4_0", show_default=True, help="Type of the products' weights, as GGUF names it.")
@click.option("--prompts", default="128,1024", show_default=True, help="Lengths of prompts.")
@click.option("--tokens", default=64, show_default=True, help="To write behind each.")
@click.option("--threads", default=2, show_default=True)
@click.option("--rounds", default=3, show_default=True, help="Turns of each engine.")
@click.option("--folder", type=click.Path(path_type=Path), help=_FOLDER)
def generate(
    models: tuple[str, ...], kind: str, prompts: str, tokens: int, threads: int, rounds: int, folder: Path | None
) -> None:
    """Prefill and decode of whole models, beside the peers that are installed."""
    there = _installed(ENGINES)
    lengths = [int(length) for length in prompts.split(",")]
    for name in models or [name for name in SHAPES if name != "tiny"]:
        with _filled(folder and folder / f"{name}-{kind}", partial(write, name, kind, threads)) as files:
            path = files / "model.gguf"
            for length in lengths:
                prompt = np.random.default_rng(1).integers(ord("a"), ord("z") + 1, length)
                both = [[np.append(prompt, count)] for count in (1, 1 + tokens)]
                times = _times(there, path, both, threads, rounds)
                for label, (first, rest) in times.items():
                    speeds = f"prefill {1e3 * length / first:7.0f} tok/s, decode {1e3 * tokens / rest:6.1f} tok/s"
                    click.echo(f"{name}, {kind}, behind {length}: {label:33} {speeds}  {_ratios(times, label)}")


@click.command()
@click.option("--tokens", default=64, show_default=True, help="To write.")
@click.option("--precision", default="fp32", show_default=True, help="As onnxruntime-genai's model builder names it.")
@click.option("--threads", default=2, show_default=True)
@click.option("--rounds", default=3, show_default=True, help="Turns of each engine.")
@click.option("--folder", type=click.Path(path_type=Path), help=_FOLDER)
def speech(tokens: int, precision: str, threads: int, rounds: int, folder: Path | None) -> None:
    """30 seconds of speech by a model of Whisper tiny's shape, beside CTranslate2, which faster-whisper runs."""
    there = _installed(SPEECH)
    with _filled(folder and folder / f"whisper-{precision}", partial(write_speech, precision)) as files:
        sound = np.random.default_rng(1).standard_normal((1, 80, 3000), "float32")
        times = _times(there, files, [[sound, np.array(count)] for count in (1, 1 + tokens)], threads, rounds)
        for label, (first, rest) in times.items():
            speed = f"{3e4 / (first + rest):6.1f} times as fast as speech"
            line = f"first token {first:7.1f} ms, then {1e3 * tokens / rest:6.1f} tok/s, {speed}"
            click.echo(f"Whisper tiny, {precision}: {label:33} {line}  {_ratios(times, label)}")


def _installed(engines: tuple[Engine, ...]) -> list[Engine]:
    for engine in engines:
        if not installed(engine):
            click.echo(f"{engine.label}: {engine.requires} is not installed, so it is left out")
    return [engine for engine in engines if installed(engine)]


def _ratios(times: dict[str, tuple[float, float]], label: str) -> str:
    """Of our speeds to those of another."""
    mine = next(iter(times.values()))
    return "" if times[label] is mine else "{:.2f} and {:.2f} times that".format(*np.divide(times[label], mine))


def _times(
    there: list[Engine], path: Path, both: list[list[Any]], threads: int, rounds: int
) -> dict[str, tuple[float, float]]:
    """Label → milliseconds until the first token and from there on; ``both``: what is run for the one, and for both."""
    everybody = []
    with ExitStack() as stack:
        for engine in there:
            processes = []
            try:
                for inputs in both:
                    process = stack.enter_context(EngineProcess(engine, threads))
                    process.load(str(path), inputs)
                    processes.append(process)
                everybody.append(_Contestant(engine.label, processes, ([], [])))
            except WorkerError as error:
                click.echo(f"{engine.label} fails: {' '.join(str(error).split())}")
        for number in range(rounds if everybody else 0):
            for each in [*everybody[number % len(everybody) :], *everybody[: number % len(everybody)]]:
                for process, times in zip(each.processes, each.times, strict=True):
                    times += process.time(1, 2)
    return {each.label: each.milliseconds for each in everybody}


# ---- speech ------------------------------------------------------------------------------------------------

_HEARD = [1, 2, 3, 4]  # tokens in front of the text


def write_speech(precision: str, folder: Path) -> None:
    """A model of Whisper tiny's shape with random weights, by onnxruntime-genai's model builder and by CTranslate2."""
    import tokenizers
    import torch
    import transformers

    words = 51865
    names = {i: name for name, i in zip(PROMPT, _HEARD, strict=True)} | {words - 1: END}
    torch.manual_seed(0)
    sizes = {"d_model": 384, "encoder_layers": 4, "decoder_layers": 4, "vocab_size": words}
    heads = dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 6)
    wide = dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 1536)
    config = transformers.WhisperConfig(**sizes, **heads, **wide)
    source = str(folder / "source")
    transformers.WhisperForConditionalGeneration(config).save_pretrained(source)
    model = tokenizers.models.WordLevel({names.get(i, f"t{i}"): i for i in range(words)}, unk_token="t0")
    named = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), END)
    tokenizer = tokenizers.Tokenizer(model)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(source)
    transformers.WhisperFeatureExtractor(feature_size=80).save_pretrained(source)
    builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", source, "-o", str(folder)]
    builder += ["-p", precision, "-e", "cpu", "-c", str(folder / "cache"), "--extra_options", "hf_token=false"]
    subprocess.run(builder, check=True, capture_output=True)
    if installed(SPEECH[-1]):
        from ctranslate2.converters import TransformersConverter

        kind = "float32" if precision == "fp32" else "int8"
        TransformersConverter(source).convert(str(folder / "ctranslate2"), quantization=kind)


def our_speech() -> Load:
    """The encoder and the decoder, by the loop of the example."""
    import tvm_byoc_dnnl

    def load(path: str, threads: int) -> tuple[Run, str]:
        files = (Path(path) / f"{name}.onnx" for name in ("encoder", "decoder"))
        encoder, decoder = (tvm_byoc_dnnl.Runner(tvm_byoc_dnnl.compile(file, threads=threads)) for file in files)

        def run(inputs: list) -> list:
            encoded = encoder.named({"audio_features": inputs[0]})
            transcribe(encoded, [Step(decoder.inputs, decoder.named)], _HEARD, int(inputs[1]), -1)
            return []

        return run, tvm_byoc_dnnl.__version__

    return load


def ctranslate2() -> Load:
    """CTranslate2, greedy, with the tokens that it would not choose allowed."""
    import ctranslate2 as engine

    def load(path: str, threads: int) -> tuple[Run, str]:
        model = engine.models.Whisper(str(Path(path) / "ctranslate2"), "cpu", intra_threads=threads)

        def run(inputs: list) -> list:
            features = engine.StorageView.from_array(inputs[0])
            most = len(_HEARD) + int(inputs[1])
            model.generate(features, [_HEARD], beam_size=1, max_length=most, suppress_blank=False, suppress_tokens=None)
            return []

        return run, engine.__version__

    return load


SPEECH = (
    Engine(our_speech, "tvm_byoc_dnnl", "onnxruntime_genai"),
    Engine(ctranslate2, "CTranslate2", "ctranslate2"),
)
