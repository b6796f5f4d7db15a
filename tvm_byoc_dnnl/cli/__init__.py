"""The command line: ``tvm-byoc``, and ``python -m tvm_byoc_dnnl``.

Results go to standard output, everything else to standard error. Nothing heavy is imported before a command needs it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from .. import __version__
from ..core.errors import ArtifactError, ByocError, InputError, UnsupportedError
from . import build, inspect, measure

__all__ = ["cli", "main"]

_BAD_INPUT = (InputError, ArtifactError, UnsupportedError)
_DEBUG = "TVM_BYOC_DEBUG"
_VERBOSE = "--verbose"
#: click raises this for a bare `tvm-byoc` (from 8.2 on; before, it prints the help by itself)
_NO_ARGUMENTS = getattr(click.exceptions, "NoArgsIsHelpError", ())


_EPILOG = (
    "Exit status: 0 done, 1 failed or (check, doctor) something to look at, 2 bad input. "
    f"{_VERBOSE}, or {_DEBUG}=1, shows where an error was raised."
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog=_EPILOG)
@click.version_option(__version__, message="tvm-byoc-dnnl %(version)s")
def cli() -> None:
    """Run ONNX models on TVM with a vendor's library: compile, run, measure, and see which call runs where, and why.

    \b
      tvm-byoc explain model.onnx                     what goes to the library, and why the rest does not
      tvm-byoc inputs model.onnx                      name, dtype and shape of each input
      tvm-byoc compile model.onnx -o model.so         one file that TVM alone can load
      tvm-byoc emit model.onnx -o folder              a C program without TVM and Python
      tvm-byoc run model.so --inputs in.npz -o out.npz
      tvm-byoc bench model.onnx --peers onnxruntime   side by side, each in a process of its own
      tvm-byoc profile model.onnx                     where the time goes, primitive by primitive
      tvm-byoc tune model.onnx --compiler NAMES --database times.jsonl
      tvm-byoc generate qwen "Once upon a time"       text of a language model
      tvm-byoc serve model.so                         the Open Inference Protocol over HTTP
      tvm-byoc doctor                                 is this machine set up well?
      tvm-byoc new-backend my_npu                     a package for a backend of your own

    A command's --help has examples.
    """


for _module in (build, inspect, measure):
    for _command in vars(_module).values():
        if isinstance(_command, click.Command):
            cli.add_command(_command)
for _command in (cli, *cli.commands.values()):
    _command.params.append(
        click.Option([_VERBOSE], is_flag=True, expose_value=False, help="Show where an error was raised.")
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed or a finding to look at, 2 bad input."""
    status = 0
    try:
        status = cli.main(arguments, prog_name="tvm-byoc", standalone_mode=False)
    except click.exceptions.Abort:
        _fail("interrupted", 130)
    except click.ClickException as error:
        if isinstance(error, _NO_ARGUMENTS):
            click.echo(error.format_message())
            sys.exit(0)
        context = getattr(error, "ctx", None)
        _fail(error.format_message() + (f" ({context.command_path} --help)" if context else ""), 2)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        if os.environ.get(_DEBUG) or _VERBOSE in (sys.argv if arguments is None else arguments):
            raise
        if isinstance(error, ByocError):
            _fail(str(error), 2 if isinstance(error, _BAD_INPUT) else 1)
        _fail(f"{type(error).__name__}: {error}".splitlines()[0] + f"; {_VERBOSE} shows where", 1)
    sys.exit(status if isinstance(status, int) else 0)


def _fail(message: str, status: int) -> None:
    text = " ".join(message.splitlines()) if message.count("\n") < 2 else message
    click.echo(f"tvm-byoc: {text}", err=True)
    sys.exit(status)
