"""The processes of a server: one loads the models, those that it forks answer with them and share their memory."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from ..core.errors import ByocError, InputError, did_you_mean
from . import FOLDER
from .models import Model, Models, Settings, Source

_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD}


@dataclass(frozen=True)
class Options:
    """Of a server.

    Attributes
    ----------
    host, port : str, int
        Where it listens; port 0 is a free one.
    grpc_port : int, optional
        Of gRPC; none without it.
    workers : int
        Processes.
    largest : int
        Bytes that a request may have.
    reload : float
        Seconds between two looks at the models' files; 0 is never.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int | None = None
    workers: int = 1
    largest: int = 1 << 28
    reload: float = 5.0
    settings: Settings = field(default_factory=Settings)


def read(source: Source, settings: Settings) -> Any:
    """The model of a place, loaded."""
    if not source.path.is_dir() and source.path.suffix != ".gguf":
        return Model(source, settings)
    from .language import LanguageModel

    return LanguageModel(source, settings)


class Supervisor:
    """Loads the models, starts the workers, replaces those that die, and all of them when a model changes.

    ``say`` takes a line about what happens.
    """

    def __init__(self, sources: Sequence[Source], options: Options, say: Callable[[str], None]) -> None:
        names = [source.name for source in sources]
        if twice := [name for name in names if names.count(name) > 1]:
            raise InputError(f"two models have the name {twice[0]!r}; give them others: NAME=PATH")
        self._sources, self._options, self._say = sources, options, say
        self._workers: set[int] = set()
        self._alive, self._held = os.pipe()  # a worker sees the end of the one when nobody holds the other

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT; SIGHUP looks for changed models. The value is the exit status."""
        options, settings = self._options, self._options.settings
        with contextlib.ExitStack() as stack:
            self._http = stack.enter_context(bound(options.host, options.port))
            self._grpc = None
            if options.grpc_port is not None:
                self._grpc = stack.enter_context(bound(options.host, options.grpc_port, shared=True))
            os.environ[FOLDER] = tempfile.mkdtemp(prefix="tvm_byoc_serve.")
            stack.callback(shutil.rmtree, os.environ[FOLDER], ignore_errors=True)
            stack.callback(os.environ.pop, FOLDER, None)
            self._states = [source.state() for source in self._sources]
            self._models = [read(source, settings) for source in self._sources]
            known = [name for model in self._models for name in model.input_names]
            for name in settings.shapes:
                if name not in known:
                    raise InputError(f"no model has an input {name!r} to prepare{did_you_mean(name, known)}")
            self._http.listen(512)
            signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
            stack.callback(self._end, set())
            self._start(options.workers)
            for model in self._models:
                self._say(f"{model.name}, version {model.version}")
            places = [f"http://{address(self._http)}", *([f"grpc://{address(self._grpc)}"] if self._grpc else [])]
            self._say(f"serving on {' and '.join(places)}")
            while self._wait():
                pass
        return 0

    def _wait(self) -> bool:
        """Wait for a signal or the next look at the files, and do what it asks for; false at the end."""
        period = self._options.reload or 3600.0
        about = signal.sigtimedwait(_SIGNALS, period)
        number = None if about is None else about.si_signo
        if number in (signal.SIGTERM, signal.SIGINT):
            return False
        if number == signal.SIGCHLD:
            self._replace_dead()
        elif number == signal.SIGHUP or self._options.reload:
            self._reload()
        return True

    def _replace_dead(self) -> None:
        for process in sorted(self._workers):
            found, status = os.waitpid(process, os.WNOHANG)
            if found:
                self._workers.discard(process)
                forget_counters(process)
                self._say(f"worker {process} ended with status {os.waitstatus_to_exitcode(status)}; another starts")
        self._start(self._options.workers - len(self._workers))

    def _reload(self) -> None:
        """Load what has changed, and let new workers take the place of all."""
        models, changed = list(self._models), []
        for index, source in enumerate(self._sources):
            try:
                state = source.state()
                if state == self._states[index]:
                    continue
                self._states[index] = state
                if source.content() == models[index].version:
                    continue
                models[index] = read(source, self._options.settings)
            except (ByocError, OSError) as error:
                self._say(f"{source.name} stays at version {models[index].version}: {error}")
                continue
            changed.append(models[index])
        if not changed:
            return
        before, self._models, old = self._models, models, set(self._workers)
        try:
            self._start(self._options.workers)
        except ByocError as error:
            self._models = before
            self._end(old)
            self._say(f"the models stay as they are: {error}")
            return
        self._end(self._workers - old)
        for model in changed:
            self._say(f"{model.name} is at version {model.version}")

    def _start(self, count: int) -> None:
        """Fork workers, and wait until they answer."""
        gc.unfreeze()
        gc.collect()
        gc.freeze()  # else the first collection of a worker would write to, and so copy, all of Python's objects
        for _ in range(count):
            is_ready, ready = os.pipe()
            process = os.fork()
            if process == 0:
                os.close(is_ready)
                os.close(self._held)
                self._work(ready)
            os.close(ready)
            self._workers.add(process)
            with os.fdopen(is_ready) as said:
                if not said.read(1):
                    raise ByocError(f"worker {process} ended before it answered; the lines above say why")

    def _end(self, kept: set[int]) -> None:
        """Let workers answer what they have begun, and end."""
        ending = self._workers - kept
        for process in ending:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)
        for process in ending:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process, 0)
            forget_counters(process)
        self._workers -= ending

    def _work(self, ready: int) -> NoReturn:
        """Be a worker."""
        status = 1
        try:
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            asyncio.run(self._serve(ready))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)

    async def _serve(self, ready: int) -> None:
        from . import Metrics
        from .application import GRACE, Server, application

        models = Models(self._models, Metrics())

        @contextlib.asynccontextmanager
        async def started() -> AsyncIterator[None]:
            grpc = None
            if self._grpc is not None:
                from .grpc_service import serving  # which must not be there when a process forks

                grpc = await serving(models, address(self._grpc), self._options.largest)
            os.write(ready, b"1")
            os.close(ready)
            yield
            if grpc is not None:
                await grpc.stop(GRACE)

        server = Server(application(models, self._options.largest, started), models)

        def end() -> None:
            asyncio.get_running_loop().remove_reader(self._alive)
            server.should_exit = True

        asyncio.get_running_loop().add_reader(self._alive, end)  # the supervisor is gone
        await server.serve(sockets=[self._http])


def bound(host: str, port: int, shared: bool = False) -> socket.socket:
    """A socket that has the port; ``shared`` with other sockets of this user.

    Raises `InputError` if the port is taken, or the host is none of this machine.
    """
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT if shared else socket.SO_REUSEADDR, 1)
        made.bind(place)
    except OSError as error:
        raise InputError(f"cannot listen on {host}, port {port}: {error.strerror or error}; choose another") from error
    return made


def address(of: socket.socket) -> str:
    """``host:port``."""
    host, port = of.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def forget_counters(process: int) -> None:
    """Drop what a process that has ended says of the present."""
    from prometheus_client.multiprocess import mark_process_dead

    mark_process_dead(process)
