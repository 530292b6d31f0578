"""In the guest: start the service, ask it over loopback, stop it by SIGTERM."""

import json
import subprocess
import sys
import time
import urllib.request

ADDRESS = "http://127.0.0.1:8080"


def ask(path: str, body: object = None) -> object:
    """A document from the service."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(ADDRESS + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)


def main() -> int:
    """0 where it answered and ended well."""
    with subprocess.Popen(["edgepeft", "serve", "/bundle"]) as server:
        for _ in range(600):
            try:
                ask("/readyz")
                break
            except OSError:
                if server.poll() is not None:
                    return 1
                time.sleep(1)
        tasks = [task["name"] for task in ask("/v1/tasks")["tasks"]]
        rows = [{"text": "The soup was cold, and still we laughed all evening.", "task": task} for task in tasks]
        answers = ask("/v1/predict", {"rows": rows})["answers"]
        print([answer["prediction"] for answer in answers], flush=True)
        server.terminate()
        return server.wait(60)


if __name__ == "__main__":
    sys.exit(main())
