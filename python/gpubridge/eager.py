"""Keeps torch.compile away from code that C++ calls."""

import types

try:
    from torch._C._dynamo import eval_frame

    _SKIP = eval_frame._FrameExecStrategy(
        eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP
    )
except (ImportError, AttributeError):  # torch built without it, or another one
    _SKIP = None


def eager(cls):
    """Class decorator: the class's methods, and what they call, always run as
    Python.

    DDP's reducer and functional collectives call groups and works from C++. When
    that happens inside a compiled model, torch.compile takes such a method for
    user code at top level, traces it, and fails: a group is opaque to it.
    ``torch.compiler.disable`` would do, but imports the whole compiler.
    """
    if _SKIP is not None:
        for member in vars(cls).values():
            if isinstance(member, types.FunctionType):
                eval_frame.set_code_exec_strategy(member.__code__, _SKIP)
    return cls
