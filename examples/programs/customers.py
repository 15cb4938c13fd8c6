"""A web service that knows the region of each customer, and says 503 every fifth time that it is asked about one.

python examples/programs/customers.py PORT
"""

from __future__ import annotations

import itertools
import json
import sys
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

REGIONS = ("north", "east", "south", "west")
UNKNOWN = "c13"

requests: defaultdict[str, itertools.count[int]] = defaultdict(lambda: itertools.count(1))


class Customers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:  # the name that http.server calls
        customer = self.path.strip("/")
        if next(requests[customer]) % 5 == 0:
            self.send_error(503)
        elif customer == UNKNOWN or not customer[1:].isdecimal():
            self.send_error(404)
        else:
            body = json.dumps({"region": REGIONS[int(customer[1:]) % len(REGIONS)]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing: the run shows what matters."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Customers)
    print(f"customers are served on port {server.server_port}", flush=True)
    server.serve_forever()
