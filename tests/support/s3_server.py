"""s3_server.py BUCKET...: serves S3 on a free port of loopback until it is stopped, with moto. The first line of its output is the port.

Beside S3 it answers GET of these paths:
  /_octet/fail?count=N&kind=K[&method=M][&path=P]   the next N requests of S3 (with this method, and with P in their path) fail: "503" is
                                                    answered, "cut" is answered with half of the bytes, "close" and "hang" are not answered,
                                                    "slow" is answered after 4 s, and succeeds
  /_octet/auth                             from now on only moto's own users are known, and there are none
  /_octet/log                              "METHOD PATH?QUERY" of all requests of S3 since the last time
  /_octet/stop
"""

import os
import socket
import sys
import threading
import time
import urllib.parse

os.environ["AWS_ACCESS_KEY_ID"] = os.environ["AWS_SECRET_ACCESS_KEY"] = "server"  # moto asks for some

import boto3  # noqa: E402
import moto.core.responses  # noqa: E402
import moto.server  # noqa: E402
import werkzeug.serving  # noqa: E402

lock = threading.Lock()
faults = {"count": 0, "kind": "", "method": "", "path": ""}
requests = []


def parts_of(body):
    yield body[: len(body) // 2]
    raise ConnectionAbortedError  # the server closes the connection


class Application:
    def __init__(self):
        self.s3 = moto.server.DomainDispatcherApplication(moto.server.create_backend_app)
        self.server = None

    def control(self, path, query):
        given = {name: values[0] for name, values in urllib.parse.parse_qs(query, keep_blank_values=True).items()}
        with lock:
            if path == "fail":
                faults.update(count=int(given["count"]), kind=given["kind"], method=given.get("method", ""), path=given.get("path", ""))
            elif path == "auth":
                moto.core.responses.ActionAuthenticatorMixin.request_count = 0
                moto.settings.INITIAL_NO_AUTH_ACTION_COUNT = 0
            elif path == "log":
                text = "".join(line + "\n" for line in requests)
                requests.clear()
                return text
            elif path == "stop":
                threading.Thread(target=self.server.shutdown).start()
        return ""

    def __call__(self, environ, start_response):
        path, query = environ["PATH_INFO"], environ.get("QUERY_STRING", "")
        if path.startswith("/_octet/"):
            body = self.control(path.removeprefix("/_octet/"), query).encode()
            start_response("200 OK", [("Content-Length", str(len(body)))])
            return [body]
        method = environ["REQUEST_METHOD"]
        with lock:
            requests.append(f"{method} {path}" + (f"?{query}" if query else ""))
            kind = ""
            if faults["count"] > 0 and faults["method"] in ("", method) and faults["path"] in path:
                faults["count"] -= 1
                kind = faults["kind"]
        if kind == "503":
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start_response("503 Slow Down", [("Content-Length", "0")])
            return [b""]
        if kind == "slow":
            time.sleep(4)
        if kind in ("close", "hang"):
            if kind == "hang":
                time.sleep(60)
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionAbortedError
        if kind == "cut":
            answer = []
            body = b"".join(self.s3(environ, lambda status, headers, *_: answer.extend((status, headers))))
            start_response(*answer)
            return parts_of(body)
        return self.s3(environ, start_response)


class Quiet(werkzeug.serving.WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *_):
        pass


def main(buckets):
    application = Application()
    server = werkzeug.serving.make_server("127.0.0.1", 0, application, threaded=True, request_handler=Quiet)
    server.daemon_threads = True
    application.server = server
    parent = os.getppid()

    def end_with_the_parent():
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(0)

    threading.Thread(target=end_with_the_parent, daemon=True).start()
    threading.Thread(target=server.serve_forever).start()
    port = server.socket.getsockname()[1]
    s3 = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1")
    for bucket in buckets:
        s3.create_bucket(Bucket=bucket)
    requests.clear()
    print(port, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
