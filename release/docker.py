"""Runs the lines of a Dockerfile without Docker: in a root file system that debootstrap makes. Needs root.

    python release/docker.py DOCKERFILE CONTEXT --root FOLDER [--wheels FOLDER]

Only what release/Dockerfile uses is understood: FROM debian:SUITE-slim, RUN, ENV, WORKDIR, COPY, USER and CMD.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path


def lines_of(text: str) -> Iterator[tuple[str, str]]:
    """Instruction and argument of each line."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            instruction, _, argument = line.partition(" ")
            yield instruction.upper(), argument.strip()


class Image:
    """A root file system and the settings that a Dockerfile makes.

    Parameters
    ----------
    root : Path
        Its folder.
    context : Path
        Where COPY takes files from.
    wheels : Path, optional
        With it, pip installs from this folder, and not from an index.
    """

    def __init__(self, root: Path, context: Path, wheels: Path | None) -> None:
        self.root, self.context, self.wheels = root, context, wheels
        self.env = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp"}
        self.folder, self.user = "/", "root"

    def execute(self, instruction: str, argument: str) -> None:
        """Run one line."""
        print(f"{instruction} {argument}", flush=True)
        getattr(self, f"_{instruction.lower()}")(argument)

    def _from(self, argument: str) -> None:
        suite = argument.removeprefix("debian:").removesuffix("-slim")
        subprocess.run(["debootstrap", "--variant=minbase", suite, self.root], check=True, stdout=subprocess.DEVNULL)
        for name in "resolv.conf", "hosts":
            shutil.copy(f"/etc/{name}", self.root / "etc" / name)
        if self.wheels is not None:
            shutil.copytree(self.wheels, self.root / "wheels")
            self.env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels"}

    def _run(self, argument: str) -> None:
        self._inside("sh", "-c", argument)

    def _env(self, argument: str) -> None:
        name, _, value = argument.partition("=")
        self.env[name] = value.replace("$PATH", self.env["PATH"])

    def _workdir(self, argument: str) -> None:
        self.folder = argument
        (self.root / argument.lstrip("/")).mkdir(parents=True, exist_ok=True)

    def _copy(self, argument: str) -> None:
        *names, _ = argument.split()
        files = [file for name in names for file in self.context.glob(name)]
        assert files, f"{self.context} has no {argument}"
        for file in files:
            shutil.copy(file, self.root / self.folder.lstrip("/"))

    def _user(self, argument: str) -> None:
        self.user = argument

    def _cmd(self, argument: str) -> None:
        self._inside(*json.loads(argument))

    def _inside(self, *command: str) -> None:
        change = ["chroot", f"--userspec={self.user}", str(self.root), "env", "-i", f"--chdir={self.folder}"]
        # /proc is mounted for this command alone.
        isolated = ["unshare", "--mount", "--pid", "--fork", f"--mount-proc={self.root}/proc", *change]
        subprocess.run([*isolated, *(f"{k}={v}" for k, v in self.env.items()), *command], check=True)


def main() -> None:
    """Read the arguments, and run all lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dockerfile", type=Path)
    parser.add_argument("context", type=Path)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--wheels", type=Path)
    arguments = parser.parse_args()
    shutil.rmtree(arguments.root, ignore_errors=True)
    image = Image(arguments.root.resolve(), arguments.context, arguments.wheels)
    for instruction, argument in lines_of(arguments.dockerfile.read_text()):
        image.execute(instruction, argument)


if __name__ == "__main__":
    main()
