"""A collector of traces: decodes what it gets with OpenTelemetry's own messages and prints it, a line of JSON a request.

Its arguments are the statuses of its first answers; after them it answers 200."""

import http.server
import json
import sys

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

statuses = [int(status) for status in sys.argv[1:]]


class Collector(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        request = ExportTraceServiceRequest()
        request.ParseFromString(body)
        # Fields this version does not know would come back as unknown ones.
        exact = request.SerializeToString() == body
        status = statuses.pop(0) if statuses else 200
        answer = ExportTraceServiceResponse().SerializeToString() if status == 200 else b"no"
        self.send_response(status)
        if status == 503:
            self.send_header("Retry-After", "0")
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
        seen = {
            "path": self.path,
            "type": self.headers["content-type"],
            "key": self.headers["x-key"],
            "status": status,
            "exact": exact,
            "request": MessageToDict(request),
        }
        # One write, because several threads print.
        print(json.dumps(seen) + "\n", end="", flush=True)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
print(json.dumps({"port": server.server_address[1]}), flush=True)
server.serve_forever()
