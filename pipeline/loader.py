"""Loads a pipeline from a user's Python file. All faults become PipelineError with the user's file and line.

The file runs in this process, under a private module name: `if __name__ == "__main__"` parts do not run.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final
from zlib import crc32

from pipeline.api import Pipeline
from pipeline.errors import PipelineError
from pipeline.graph import Graph
from pipeline.validation import suggestion

OUR_PACKAGES: Final = ("pipeline", "stages", "leader")

_OUR_FOLDER: Final = Path(__file__).resolve().parents[1]


def load_graph(target: str) -> Graph:
    """The graph of the pipeline of `target`, fit to run. Raises PipelineError, also when it is not fit."""
    return load_pipeline(target).graph()


def load_pipeline(target: str) -> Pipeline:
    """The pipeline that the file `path/to/file.py`, or its variable `path/to/file.py:name`, defines.

    The file is run anew at each call. Its folder is put at the end of the import path, so it can import the
    modules beside it. Raises PipelineError, with the cause chained, for a file that is missing, is no Python,
    fails while it runs, or does not define one such pipeline; and, before running anything, for a module
    beside it that has the name of one of our packages.
    """
    try:
        path, name = _parse(target)
        _check_file(path)
        file = path.resolve()
    except OSError as error:
        raise PipelineError(f"{target!r} cannot be read: {error.strerror}") from error
    _check_shadows(file.parent)
    return _choose(_run(file, path), name, path)


def file_of(target: str) -> Path:
    """The file of `target`. Raises PipelineError for a target that cannot be one."""
    return _parse(target)[0].resolve()


def _parse(target: str) -> tuple[Path, str | None]:
    head, colon, name = target.rpartition(":")
    if not colon or "/" in name or Path(target).exists():
        return Path(target), None
    if not name:
        raise PipelineError(f"{target!r} names no pipeline after the colon", hint=f"give {head} or {head}:name")
    return Path(head), name


def _check_file(path: Path) -> None:
    hint = "give the path of the Python file that defines the pipeline"
    if "\0" in str(path):
        raise PipelineError(f"{str(path)!r} cannot be a path", hint=hint)
    if path.is_dir():
        raise PipelineError(f"{path} is a folder, not a Python file", hint=hint)
    if not path.exists():
        beside = sorted(each.name for each in path.parent.glob("*.py")) if path.parent.is_dir() else []
        close = suggestion(path.name, beside) if beside else ""
        raise PipelineError(f"there is no file {path}", hint=close or hint)
    if path.suffix != ".py":
        raise PipelineError(f"{path} is not a Python file: its name does not end in .py", hint=hint)


def _check_shadows(folder: Path) -> None:
    """Refuses a folder with a module or package that has the name of one of ours, unless it is ours."""
    _forget_listings(folder)
    for package in OUR_PACKAGES:
        spec = PathFinder.find_spec(package, [str(folder)])
        if spec is None or spec.origin is None:  # a folder without __init__.py never wins over a package
            continue
        if Path(spec.origin).resolve() != _OUR_FOLDER / package / "__init__.py":
            raise PipelineError(
                f"{spec.origin} has the name of a package of celeriac, so `import {package}` is ambiguous",
                hint=f"rename it: a pipeline's folder must have no module named {' or '.join(OUR_PACKAGES)}",
            )


def _forget_listings(folder: Path) -> None:
    """Has Python list the folder anew: what it has kept may be older than the files.

    Of this folder only, as `importlib.invalidate_caches` reads every archive in the path again: a fifth of a second in
    the processes of Spark.
    """
    for path in list(sys.path_importer_cache):
        if Path(path).is_relative_to(folder):
            del sys.path_importer_cache[path]


def _run(file: Path, shown: Path) -> ModuleType:
    """The module that the file makes. A failed run leaves neither it nor its folder behind."""
    name = f"_celeriac_user_{re.sub(r'[^A-Za-z0-9_]', '_', file.stem)}_{crc32(os.fsencode(file)):08x}"
    loader = SourceFileLoader(name, str(file))
    code = _compile(loader, file, shown)
    spec = spec_from_file_location(name, file, loader=loader)
    assert spec is not None  # it is None only where it has to find a loader itself
    module = module_from_spec(spec)
    with _registered(module, str(file.parent)):
        try:
            exec(code, module.__dict__)
        except (Exception, SystemExit) as error:
            # Importing is running user code: whatever it raises is the user's fault to see, with its place.
            raise _import_error(error, file, shown) from error
    return module


def _compile(loader: SourceFileLoader, file: Path, shown: Path) -> CodeType:
    """The code, from the source as it is now: a cached .pyc may be stale within a second of an edit."""
    try:
        return loader.source_to_code(loader.get_data(str(file)), str(file))
    except OSError as error:
        raise PipelineError(f"{shown} cannot be read: {error.strerror}") from error
    except SyntaxError as error:
        raise _syntax_error(error, file, shown) from error
    except ValueError as error:
        raise PipelineError(f"{shown} is not Python: {error}") from error


@contextmanager
def _registered(module: ModuleType, folder: str) -> Iterator[None]:
    """Registers the module, and its folder for imports. Takes both back when the body fails."""
    before = sys.modules.get(module.__name__)
    added = folder not in sys.path
    sys.modules[module.__name__] = module
    if added:
        sys.path.append(folder)
    done = False
    try:
        yield
        done = True
    finally:
        if not done:
            del sys.modules[module.__name__]
            if before is not None:
                sys.modules[module.__name__] = before
            if added and folder in sys.path:
                sys.path.remove(folder)


def _import_error(error: BaseException, file: Path, shown: Path) -> PipelineError:
    if isinstance(error, SyntaxError) and not str(error.filename or "<").startswith("<"):
        return _syntax_error(error, file, shown)
    place = _place(error, file, shown)
    if isinstance(error, PipelineError):
        return PipelineError(f"{place}: {error}", hint=error.hint)
    if isinstance(error, SystemExit):
        return PipelineError(
            f"{place}: the file ended the program (SystemExit: {error}) while it was loaded",
            hint="put what must not run while loading under: if __name__ == '__main__':",
        )
    text = str(error)
    what = type(error).__name__ + (f": {text}" if text else "")
    return PipelineError(f"{place}: {what}", hint=_import_hint(error, text))


def _import_hint(error: BaseException, text: str) -> str:
    if isinstance(error, ModuleNotFoundError):
        return "install it, or put the module beside the pipeline's file"
    if isinstance(error, ImportError) and text.startswith("attempted relative import"):
        return "import a module beside the pipeline's file without the dot: from module import name"
    return ""


def _syntax_error(error: SyntaxError, file: Path, shown: Path) -> PipelineError:
    where = shown if error.filename in (None, str(file)) else error.filename
    place = f"{where}:{error.lineno}" if error.lineno else f"{where}"
    line = (error.text or "").strip()
    return PipelineError(f"{place}: {error.msg}" + (f"\n    {line}" if line else ""))


def _place(error: BaseException, file: Path, shown: Path) -> str:
    """file:line of the innermost frame of the user's own: the file or a module beside it, not a library."""
    place = f"{shown}"
    for frame, line in traceback.walk_tb(error.__traceback__):
        name = frame.f_code.co_filename
        if name == str(file):
            place = f"{shown}:{line}"
        elif _is_users(Path(name), file.parent):
            place = f"{name}:{line}"
    return place


def _is_users(path: Path, folder: Path) -> bool:
    if not path.is_relative_to(folder) or "site-packages" in path.parts:
        return False
    others = [Path(sysconfig.get_path("stdlib")), *(_OUR_FOLDER / package for package in OUR_PACKAGES)]
    return not any(path.is_relative_to(other) for other in others)


def _choose(module: ModuleType, name: str | None, shown: Path) -> Pipeline:
    found = {key: value for key, value in vars(module).items() if isinstance(value, Pipeline)}
    if name is not None:
        return _named(module, name, found, shown)
    distinct = {id(value): value for value in found.values()}
    if not distinct:
        raise PipelineError(f"{shown} defines no pipeline", hint="assign one to a variable: flow = Pipeline('name')")
    if len(distinct) > 1:
        names = ", ".join(found)
        raise PipelineError(
            f"{shown} defines several pipelines: {names}", hint=f"choose one: {shown}:{next(iter(found))}"
        )
    return next(iter(distinct.values()))


def _named(module: ModuleType, name: str, found: dict[str, Pipeline], shown: Path) -> Pipeline:
    if name in found:
        return found[name]
    hint = suggestion(name, list(found))
    if name in vars(module):
        kind = type(vars(module)[name]).__name__
        raise PipelineError(f"{name!r} in {shown} is no pipeline but of type {kind}", hint=hint)
    raise PipelineError(f"{shown} has no {name!r}", hint=hint or "assign one: flow = Pipeline('name')")
