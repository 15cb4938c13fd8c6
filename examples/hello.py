"""grep "hello", then replace it with "hi": of three lines two are written.

celeriac run examples/hello.py
"""

from pipeline import Pipeline, read, write

flow = Pipeline("hello")
(
    flow.source(read.iterable(["hello world", "goodbye", "say hello"]), name="lines")
    .external(["grep", "hello"], protocol="lines", exit_codes=(0, 1), name="grep")
    .external(["sed", "s/hello/hi/"], protocol="lines", name="replace")
    .sink(write.text("out/hello"), name="result")
)
