"""A program for `stream.external`, in any language: a JSON line for each record in, a JSON line of outputs out.

It splits a line of the log, `time service level message`, and refuses what is none.
"""

import json
import sys

for line in sys.stdin:
    text = json.loads(line)["value"]
    parts = text.split(" ", 3)
    if len(parts) == 4:
        at, service, level, message = parts
        answer = [{"at": at, "service": service, "level": level, "message": message}]
    else:
        answer = {"error": f"not a line of the log: {text}"}
    print(json.dumps(answer), flush=True)  # an answer that is not flushed is waited for in vain
