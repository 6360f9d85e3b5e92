"""Stores on this machine, each over a directory: a web server, an SFTP server, and one that speaks S3.

`python tests/support/store_servers.py DIRECTORY` serves until its standard input ends, and prints the addresses.
"""

import asyncio
import contextlib
import http.server
import json
import os
import subprocess
import sys
import threading
import urllib.request
from functools import partial
from pathlib import Path

USER, PASSWORD = "me", "secret"


class Pages(http.server.SimpleHTTPRequestHandler):
    """Files and listings; `private/` wants a login, files below `cut/` end early, `busy/` lists as other servers do."""

    def do_GET(self):
        """A file or a listing."""
        if self.path == "/asked":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(self.server.asked).encode())
            self.server.asked.clear()
            return
        self.server.asked.append(self.path)
        if self.path.startswith("/private"):
            self.send_error(401)
        elif self.path.startswith("/cut/") and not self.path.endswith("/"):
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"{")
        elif self.path in ("/busy", "/busy/"):
            names = ("?C=N;O=D", "/", "/run/", "../", "sub/", "rank%200.json", "http://elsewhere/x")
            text = "".join(f'<a href="{name}">{name}</a>\n' for name in names).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
        else:
            super().do_GET()

    def do_HEAD(self):
        """What is known of a file."""
        if self.path.startswith("/private"):
            self.send_error(401)
        elif self.path in ("/busy", "/busy/"):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
        else:
            super().do_HEAD()

    def log_message(self, *_):
        """Nothing."""


@contextlib.contextmanager
def web(root):
    """The address of a web server over a directory; its page `asked` gives what was asked for since the last time."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Pages, directory=root))
    server.asked = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def sftp(root):
    """The address of an SFTP server over a directory, for USER and PASSWORD."""
    import asyncssh

    class Login(asyncssh.SSHServer):
        def password_auth_supported(self):
            return True

        def validate_password(self, username, password):
            return (username, password) == (USER, PASSWORD)

    async def serving():
        key = asyncssh.generate_private_key("ssh-ed25519")
        factory = partial(asyncssh.SFTPServer, chroot=os.fsencode(root))
        server = await asyncssh.create_server(Login, "127.0.0.1", 0, server_host_keys=[key], sftp_factory=factory)
        return server, server.sockets[0].getsockname()[1]

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server, port = asyncio.run_coroutine_threadsafe(serving(), loop).result(30)
    try:
        yield f"{USER}:{PASSWORD}@127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(server.close)
        asyncio.run_coroutine_threadsafe(server.wait_closed(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


KEYS = {
    "AWS_ACCESS_KEY_ID": "anyone",
    "AWS_SECRET_ACCESS_KEY": "anything",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@contextlib.contextmanager
def s3(root, bucket):
    """The endpoint of a store that speaks S3 and has the files of a directory in a bucket."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        endpoint = "http://{}:{}".format(*server.get_host_and_port())
        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            aws_access_key_id="anyone",
            aws_secret_access_key="anything",
            region_name="us-east-1",
        )
        client.create_bucket(Bucket=bucket)
        for path in filter(os.path.isfile, root.rglob("*")):
            client.upload_file(str(path), bucket, path.relative_to(root).as_posix())
        yield endpoint
    finally:
        server.stop()


@contextlib.contextmanager
def served(root):
    """The addresses of a directory by scheme, and the endpoint of S3; the servers are in a process of their own."""
    command = [sys.executable, __file__, str(root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield json.loads(process.stdout.readline())
        process.stdin.close()


def asked(web):
    """The pages that were asked for since the last time."""
    with urllib.request.urlopen(f"{web}/asked", timeout=30) as answer:
        return json.load(answer)


def ask_for_keys(endpoint, after):
    """Nothing; keys are looked at from so many requests on."""
    request = urllib.request.Request(f"{endpoint}/moto-api/reset-auth", data=str(after).encode(), method="POST")
    request.add_header("Content-Type", "text/plain")
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200


def main(root):
    """Serves a directory until standard input ends."""
    with web(root) as of_web, sftp(root) as of_sftp, s3(root, "bucket") as endpoint:
        addresses = {"http": of_web, "ssh": f"ssh://{of_sftp}", "s3": "s3://bucket"}
        print(json.dumps({**addresses, "endpoint": endpoint}), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
