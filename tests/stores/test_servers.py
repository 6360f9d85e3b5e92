"""Addresses of real servers on this machine: what is read, kept and said is that of the same files here.

`make test-logs` installs what speaks to them.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import store_servers
import tools

ROOT = Path(__file__).parents[2]
RUN = ROOT / "examples/verl_cpu"
BIG_BYTES = 200_000_000
FETCH = """
import resource, sys
from tracekit.discover import fetched
path = fetched.fetch_address(sys.argv[1])
print(path.stat().st_size, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""

SIGN = """
import boto3, sys
given = {"Bucket": "bucket", "Key": sys.argv[1]}
print(boto3.client("s3").generate_presigned_url("get_object", Params=given))
"""

if tools.HERE["stores"]():

    @pytest.fixture(scope="module")
    def root(tmp_path_factory):
        """A directory with a run of verl whose driver's log lies above its profile, and a large file."""
        folder = tmp_path_factory.mktemp("root")
        shutil.copytree(RUN, folder / "runs/verl")
        for name in ("busy", "cut", "busy/sub"):
            (folder / name).mkdir(exist_ok=True)
        profile = min(RUN.glob("outputs/profile/*rank0*"))
        for name in ("busy/rank 0.json", "busy/sub/rank1.json", "cut/rank0.json"):
            shutil.copy(profile, folder / name)
        with (folder / "big.json").open("wb") as file:
            for _ in range(BIG_BYTES // 1_000_000):
                file.write(os.urandom(1_000_000))
        (folder / "small.json").write_bytes(b"{}")
        return folder

    @pytest.fixture(scope="module")
    def addresses(root):
        """The addresses of the directory, by the scheme."""
        with store_servers.served(root) as served:
            yield served

    @pytest.fixture
    def tracekit(addresses, tmp_path):
        """A function that runs the command, with a cache of this test."""

        def run(*arguments, program=("-m", "tracekit"), **variables):
            environment = {
                **os.environ,
                **store_servers.KEYS,
                "AWS_ENDPOINT_URL": addresses["endpoint"],
                "TRACEKIT_CACHE": str(tmp_path / "cache"),
                "TRACEKIT_NO_CACHE": None,
                "COLUMNS": "160",
                **variables,
            }
            return subprocess.run(
                [sys.executable, *program, *arguments],
                cwd=tmp_path,
                env={name: value for name, value in environment.items() if value is not None},
                capture_output=True,
                text=True,
                check=False,
                timeout=300,
            )

        return run

    def kept(tmp_path):
        """The copies that are kept, by name: which file of the disk each is."""
        copies = (tmp_path / "cache/fetched").rglob("*")
        return {path.name: path.stat().st_ino for path in copies if path.suffix != ""}

    def told(done):
        """A report as JSON, without what says where it is of."""
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        return {name: report[name] for name in report if name not in ("title", "identity")}

    def said(done):
        """A report without its first line, which has the path."""
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[1:]

    @pytest.mark.parametrize("scheme", ["http", "ssh", "s3"])
    @pytest.mark.parametrize("path", ["runs/verl/outputs/profile", "runs/verl/outputs/profile/"])
    def test_a_directory_is_read_with_the_log_above_it_and_kept(scheme, path, addresses, tracekit, tmp_path):
        address = f"{addresses[scheme]}/{path}"
        here, there = (
            told(tracekit("analyze", path, "-q", "--export", "json=-")) for path in (RUN / "outputs/profile", address)
        )
        assert there == here
        assert here["files"] == [["read", 13]]
        assert store_servers.PASSWORD not in json.dumps(there)
        before = kept(tmp_path)
        assert len(before) == 13
        store_servers.asked(addresses["http"])
        assert told(tracekit("analyze", address, "-q", "--export", "json=-")) == there
        assert kept(tmp_path) == before, "nothing was fetched again"
        pages = store_servers.asked(addresses["http"])
        assert not [page for page in pages if page.endswith((".gz", ".jsonl"))]

    @pytest.mark.parametrize("scheme", ["http", "ssh", "s3"])
    def test_a_whole_run_and_one_file_of_it(scheme, addresses, tracekit):
        whole = tracekit("analyze", f"{addresses[scheme]}/runs/verl")
        assert said(whole) == said(tracekit("analyze", RUN))
        name = min(RUN.glob("outputs/profile/*rank1*")).relative_to(RUN).as_posix()
        one = tracekit("analyze", f"{addresses[scheme]}/runs/verl/{name}")
        assert said(one)[1:] == said(tracekit("analyze", RUN / name))[1:]
        assert store_servers.PASSWORD not in one.stdout + one.stderr

    @pytest.mark.parametrize("scheme", ["s3", "ssh"])
    def test_a_pattern(scheme, addresses, tracekit):
        done = tracekit("inspect", f"{addresses[scheme]}/runs/verl/outputs/profile/*rank0*")
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("rank0-of-2") >= 6
        assert "rank1-of-2" not in done.stdout

    @pytest.mark.parametrize(("scheme", "most"), [("http", 40), ("ssh", 40), ("s3", 130)])
    def test_a_large_file_is_streamed(scheme, most, addresses, tracekit):
        """s3fs reads 50 MiB ahead."""
        peaks = {}
        for name in ("small.json", "big.json"):
            done = tracekit(f"{addresses[scheme]}/{name}", program=("-c", FETCH))
            assert done.returncode == 0, done.stderr
            size, peaks[name] = map(int, done.stdout.split())
        assert size == BIG_BYTES
        assert peaks["big.json"] - peaks["small.json"] < most * 1_000_000

    def refused(done):
        """The two lines that say what is wrong."""
        assert done.returncode == 2, done.stdout
        assert done.stdout == ""
        problem, hint = done.stderr.splitlines()
        assert store_servers.PASSWORD not in done.stderr
        return problem, hint.strip()

    def test_wrong_keys(addresses, tracekit):
        problem, hint = refused(tracekit("analyze", addresses["ssh"].replace(":secret", ":wrong") + "/runs"))
        assert ": access is refused: Authentication failed" in problem
        assert "wrong" not in problem
        assert hint == "try: ssh://USER@HOST/PATH, with a key in ~/.ssh or in an agent"
        problem, _ = refused(tracekit("analyze", f"{addresses['http']}/private/run"))
        assert ": access is refused: " in problem
        none = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))
        problem, hint = refused(tracekit("analyze", "s3://bucket/runs", **none))
        assert problem.endswith("s3://bucket/runs: access is refused: Unable to locate credentials")
        assert "AWS_ACCESS_KEY_ID" in hint
        store_servers.ask_for_keys(addresses["endpoint"], 0)
        try:
            problem, _ = refused(tracekit("analyze", "s3://bucket/runs"))
        finally:
            store_servers.ask_for_keys(addresses["endpoint"], 1_000_000_000)
        assert "s3://bucket/runs: access is refused: " in problem

    def test_what_is_not_there(addresses, tracekit):
        for address in ("s3://bucket/none", f"{addresses['ssh']}/none", f"{addresses['http']}/none"):
            problem, hint = refused(tracekit("analyze", address))
            assert problem.endswith("/none: nothing is there")
            assert hint == "try: check the address"
        problem, hint = refused(tracekit("analyze", "s3://other/run"))
        assert problem.endswith("s3://other/run: there is no bucket 'other'")
        assert hint == "try: check its name"

    def test_a_host_that_does_not_answer(tracekit):
        for address in ("http://127.0.0.1:9/run", "ssh://me:secret@127.0.0.1:9/run", "s3://bucket/x"):
            done = tracekit("analyze", address, AWS_ENDPOINT_URL="http://127.0.0.1:9")
            problem, hint = refused(done)
            assert ": cannot be reached: " in problem
            assert "network" in hint

    def test_a_page_may_link_what_it_likes(addresses, tracekit, tmp_path):
        done = tracekit("inspect", f"{addresses['http']}/busy")
        assert done.returncode == 0, done.stderr
        assert set(kept(tmp_path)) == {"rank 0.json", "rank1.json"}

    def test_a_signed_address_is_one_file_and_stays_a_secret(addresses, tracekit):
        key = min(RUN.glob("outputs/profile/*rank0*")).relative_to(RUN).as_posix()
        address = tracekit(f"runs/verl/{key}", program=("-c", SIGN)).stdout.strip()
        assert "Signature=" in address
        done = tracekit("analyze", address)
        assert done.returncode == 0, done.stderr
        assert "Signature" not in done.stdout + done.stderr

    def test_a_file_that_ends_early_is_no_copy(addresses, tracekit, tmp_path):
        problem, hint = refused(tracekit("analyze", f"{addresses['http']}/cut/rank0.json"))
        assert "cannot be fetched" in problem
        assert hint.startswith("try: try again")
        assert kept(tmp_path) == {}
