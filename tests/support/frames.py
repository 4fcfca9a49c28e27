"""What a crash reporter sends of an error: the locals of all frames, of its causes and contexts too."""

import re
import traceback
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

_TIMES = re.compile(r"datetime\.datetime\([^)]*|\b\d+\.\d+")


def shown(error: BaseException) -> Iterator[tuple[str, str]]:
    """Yield each text that a reporter sends of an error, and where it is from.

    Like Sentry's, it looks into mappings and sequences, and takes the `repr` of all else. The locals of a test module,
    which stands for the merchant's program, are left out.
    """
    todo: list[BaseException | None] = [error]
    seen = set[int]()
    while todo:
        each = todo.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield type(each).__name__, "".join(traceback.format_exception_only(each)) + repr(each)
        for frame, line in traceback.walk_tb(each.__traceback__):
            if not frame.f_globals["__name__"].rpartition(".")[2].startswith("test_"):
                where = f"{frame.f_globals['__name__']}:{line} {frame.f_code.co_name}"
                for name, value in _locals(frame).items():
                    for text in _texts(value, 3):
                        yield f"{where}: {name}", text
        todo += [each.__cause__, each.__context__]
        todo += each.exceptions if isinstance(each, BaseExceptionGroup) else ()


def leaks(error: BaseException, secrets: list[str]) -> list[str]:
    """Return where an error shows one of some secrets. Microseconds that are a code of six digits are none."""
    texts = ((where, _TIMES.sub("", text)) for where, text in shown(error))
    return [f"{where} = {text[:200]}" for where, text in texts if any(each in text for each in secrets)]


def _locals(frame: FrameType) -> dict[str, Any]:
    return dict(frame.f_locals)


def _texts(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, Mapping) and depth:
        for name, inside in value.items():
            yield from _texts(name, depth - 1)
            yield from _texts(inside, depth - 1)
    elif isinstance(value, list | tuple | set | frozenset) and depth:
        for inside in value:
            yield from _texts(inside, depth - 1)
    try:
        yield repr(value)
    except Exception as exc:  # noqa: BLE001 (as a reporter does)
        yield f"<{type(exc).__name__}>"
