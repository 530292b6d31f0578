"""What huggingface_hub asks a Hub for when it uploads a folder and downloads files, answered over loopback.

Revisions are commits, ``main`` the last; small and large files alike come with the commit itself.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


class Hub:
    """``commits`` by name, each all files by path; ``asked`` are methods and paths, in order."""

    def __init__(self):
        self.commits, self.asked, self.address = {"0" * 40: {}}, [], ""

    def commit(self, lines):
        """As the Hub's commit API has them, a JSON document a line."""
        files = [line["value"] for line in lines if line["key"] == "file"]
        return self.put({each["path"]: base64.b64decode(each["content"]) for each in files})

    def put(self, files):
        """A commit with these files beside those that are there."""
        files = {**[*self.commits.values()][-1], **files}
        name = hashlib.sha1(repr(sorted(files)).encode() + str(len(self.commits)).encode()).hexdigest()
        self.commits[name] = files
        return name

    def resolve(self, revision):
        return [*self.commits][-1] if revision == "main" else revision


@contextlib.contextmanager
def hub():
    """A Hub with one repository, whatever its name."""
    held = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self, status, content=b"", **headers):
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def do_POST(self):
            path = urlsplit(self.path).path
            held.asked.append(("POST", path))
            text = self.rfile.read(int(self.headers["Content-Length"]))
            if path == "/api/repos/create":
                return self.answer(200, json.dumps({"url": f"{held.address}/acme/fleet"}).encode())
            if "/preupload/" in path:
                modes = [
                    {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False}
                    for f in json.loads(text)["files"]
                ]
                return self.answer(200, json.dumps({"files": modes}).encode())
            if path == "/api/validate-yaml":  # of the model card
                return self.answer(200, b'{"warnings": [], "errors": []}')
            assert "/commit/" in path, path
            name = held.commit([json.loads(line) for line in text.splitlines()])
            found = {"commitUrl": f"{held.address}/acme/fleet/commit/{name}", "commitOid": name, "pullRequestUrl": None}
            return self.answer(200, json.dumps(found).encode())

        def do_GET(self):
            path = unquote(urlsplit(self.path).path)
            held.asked.append((self.command, path))
            revision, _, file = path.partition("/resolve/")[2].partition("/")
            commit = held.resolve(revision)
            if commit not in held.commits:
                return self.answer(404, b"no such revision", X_Error_Code="RevisionNotFound")
            content = held.commits[commit].get(file)
            if content is None:
                return self.answer(404, b"no such file", X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
            etag = f'"{hashlib.sha1(content).hexdigest()}"'
            return self.answer(200, content, ETag=etag, X_Repo_Commit=commit)

        do_HEAD = do_GET

        def log_message(self, *_):
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    held.address = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield held
    finally:
        server.shutdown()
        server.server_close()
