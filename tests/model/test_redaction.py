"""Credentials in addresses reach no output: not the screen, not a file, not the cache, not a traceback."""

import json
import os
import traceback
from pathlib import Path
from urllib.parse import quote

import fsspec
import pytest
from chrome_builder import kernel, launch, step, text
from command_line import invoke
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import assume, example, given
from hypothesis import strategies as st

import tracekit
from tracekit.discover import fetched
from tracekit.model.errors import TraceFormatError, TracekitError
from tracekit.model.text import redaction
from tracekit.model.text.labels import make_displayable
from tracekit.model.text.redaction import redact, remember_secrets
from tracekit.render.escape import make_printable

SECRET = "S3cr3tValue"
SCHEMES = st.sampled_from(["https", "http", "s3", "ssh", "hf", "ftp"])
INSIDE = st.text(st.characters(codec="ascii", exclude_characters="\"'<>`", categories=("L", "N", "P", "S")))  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_remembered():
    """Every test begins with no secret in memory."""
    redaction._remembered.clear()
    redaction._known_cache.clear()
    yield
    redaction._remembered.clear()
    redaction._known_cache.clear()


@given(SCHEMES, INSIDE, INSIDE, st.sampled_from(["", "simplecache::", "zip://a.json::"]))
@example("https", "@", "@", "")
@example("https", "/", "/x", "simplecache::")
@example("https", "1/", "", "")
def test_a_password_of_any_characters_is_removed_from_running_text(scheme, before, after, chain):
    secret = f"{before}{SECRET}{after}"
    assume("://" not in secret)
    said = f"cannot read {chain}{scheme}://me:{secret}@host/runs/a.json: refused (try again)"
    assert SECRET not in redact(said)
    assert redact(said).startswith(f"cannot read {chain}{scheme}://…@host")
    assert redact(said).endswith("refused (try again)")
    assert redact(redact(said)) == redact(said)


@given(SCHEMES, st.text(st.characters(codec="ascii", categories=("L", "N")), max_size=9))
def test_a_token_without_a_password_is_removed(scheme, rest):
    assert SECRET not in redact(f"{scheme}://{SECRET}{rest}@host/x")


@pytest.mark.parametrize(
    "address",
    [
        f"https://host/a.json?sig={SECRET}",
        f"https://host/a.json?{SECRET}",
        f"s3://bucket/a.json?X-Amz-Signature={SECRET}&x=1#y",
        f"https://host/a.json#token={SECRET}",
        f"ftp://host/a.json?x=1#token={SECRET}",
        f"abfs://container:{SECRET}@account/x",
        f"filecache::simplecache::ssh://me:{SECRET}@host/x",
        f"https://me:a@b@{SECRET}@host/x",
        f"https://me:p/{SECRET}@host/x",
    ],
)
def test_signed_addresses_and_chains_lose_their_keys(address):
    assert SECRET not in redact(address)


@pytest.mark.parametrize(
    "text_",
    [
        "s3://runs/a@b:c",
        "abfs://container@account.dfs.core.windows.net/run",
        "hf://datasets/user/set@main/rank0.json",
        "s3://runs/rank?.json",
        "http://host:8080/runs/rank0.json",
        "git+https://example.org/owner/tracekit@0123abc",
        "https://pytorch.org/docs/stable/profiler.html#torch.profiler",
        "ncclDevKernel_AllReduce::at::mm a@b ?x=1 #2",
    ],
)
def test_what_is_no_secret_stays(text_):
    assert redact(text_) == text_


@given(st.text().filter(lambda text_: "://" not in text_))
def test_text_without_an_address_stays(text_):
    assert redact(text_) == text_


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=9), st.text(max_size=9))
@example("'", '"')
@example("%40", "\u202e")
def test_the_password_of_an_argument_is_removed_wherever_it_is_quoted(before, said):
    secret = f"{SECRET}{before}".replace("://", "")
    remember_secrets(f"https://me:{quote(secret, safe='')}@host/x")
    remember_secrets(f"ssh://me:{secret}@host/x")
    for spelling in (secret, quote(secret), repr(secret)):
        for sink in (redact, make_displayable, make_printable, lambda text_: str(TracekitError(text_))):
            assert SECRET not in sink(f"{said}login of me with {spelling} failed")


def test_short_secrets_do_not_eat_other_words():
    remember_secrets("ssh://me:pw@host/x")
    assert redact("me: time pwd; me:pw@host") == "me: time pwd; …host"


def test_the_environment_holds_secrets_too(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", f"hf_{SECRET}")
    redaction._known_cache.clear()
    assert redact(f"bad header: Bearer hf_{SECRET}") == "bad header: Bearer …"


def test_errors_show_no_secret_in_their_problem_hint_path_or_text():
    error = TraceFormatError(f"https://me:{SECRET}@h/x", f"at s3://a:{SECRET}@b", f"ssh://{SECRET}@h")
    said = "".join(traceback.format_exception(error))
    assert SECRET not in said + error.problem + error.hint + error.path + str(error)


# A store that takes credentials, from the command line to every output


class Leaky(MemoryFileSystem):
    """A store in memory whose addresses have credentials, and whose errors quote them decoded."""

    protocol = "leaky"
    store, pseudo_dirs = {}, [""]
    password = ""

    @classmethod
    def _strip_protocol(cls, path):
        rest = path.partition("://")[2] or path
        return "/" + rest.rpartition("@")[2].partition("?")[0].partition("#")[0].lstrip("/")

    def info(self, path, **kwargs):
        if Leaky.password:
            text_ = f"login with {Leaky.password} failed at leaky://me:{Leaky.password}@h"
            raise RuntimeError(text_)
        return super().info(path, **kwargs)


ADDRESSES = [
    (f"leaky://me:{SECRET}@pass@host/run", f"{SECRET}@pass"),
    (f"leaky://{SECRET}@host/run", SECRET),
    (f"leaky://me:a/{SECRET}@host/run", f"a/{SECRET}"),
    (f"leaky://host/run?sig={SECRET}", SECRET),
    (f"leaky://host/run#token={SECRET}", SECRET),
]
"""Addresses, and what the store's errors quote of each."""


@pytest.fixture
def leaky(tmp_path, monkeypatch):
    """A run of two ranks in that store, and a cache of its own."""
    fsspec.register_implementation("leaky", Leaky, clobber=True)
    monkeypatch.setenv("TRACEKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TRACEKIT_NO_CACHE", raising=False)
    monkeypatch.setattr(Leaky, "password", "")
    fetched.fetch_address.cache_clear()
    rows = [step(1, 0, 100), launch(5, 1), kernel("k", 10, 80, 1)]
    for rank in (0, 1):
        for top in ("host/run", "run"):
            Leaky().pipe(f"/{top}/rank{rank}.json", text(rows, rank=rank, world_size=2))
    yield tmp_path
    fetched._held.close()


def holds_secret(folder):
    """The files below a folder whose name or content, as it is or inflated, holds the secret."""
    import zlib

    found = []
    for path in Path(folder).rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        for start in range(min(len(data), 400)):
            try:
                data += zlib.decompressobj().decompress(data[start:])
                break
            except zlib.error:
                continue
        if SECRET.encode() in data or SECRET in str(path):
            found.append(path)
    return found


@pytest.mark.parametrize("address", [address for address, _ in ADDRESSES])
def test_no_output_of_a_run_holds_the_secret(address, leaky):
    out = leaky / "out"
    out.mkdir()
    outputs = [str(out / f"report.{suffix}") for suffix in ("html", "json", "md")]
    options = [part for path in outputs for part in ("-o", path)]
    options += ["--export", f"csv={out / 'tables'}", "--save", str(out / "saved.tkm")]
    done = invoke("analyze", address, "-v", *options)
    assert done.exit_code == 0, done.stderr
    said = [done.stdout, done.stderr]
    for command in (["inspect", "--json"], ["inspect"], ["doctor", "--json"], ["doctor", "-v"]):
        said += [(seen := invoke(*command, address)).stdout, seen.stderr]
    said.append(invoke("analyze", address, "--export", "json=-").stdout)
    seen = invoke("compare", address, address, "--export", "json=-")
    said += [seen.stdout, seen.stderr]
    seen = invoke("sql", address, "SELECT no_such_column FROM device_ops")
    said += [seen.stdout, seen.stderr]
    assert SECRET not in "".join(said)
    assert holds_secret(leaky) == []
    assert {path.suffix for path in out.iterdir()} >= {".html", ".json", ".md", ".tkm"}


@pytest.mark.parametrize(("address", "password"), ADDRESSES)
@pytest.mark.parametrize("command", [["analyze"], ["compare", "x"], ["collect", "-o", "x"], ["doctor"]])
def test_no_error_holds_the_secret_with_its_stack(address, password, command, leaky, monkeypatch):
    monkeypatch.setattr(Leaky, "password", password)
    done = invoke(*command, address, "-v")
    assert done.exit_code != 0
    assert SECRET not in done.stdout + done.stderr
    assert "Traceback" in done.stderr
    with pytest.raises(TracekitError) as caught:
        tracekit.analyze(address)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("chain", ["simplecache::", "filecache::simplecache::", "zip://a.json::"])
def test_a_chain_that_is_no_address_here_is_refused_without_its_secret(chain, leaky):
    for command in (["analyze"], ["collect", "-o", "x"], ["inspect"]):
        done = invoke(*command, f"{chain}leaky://me:{SECRET}@host/x.zip", "-v")
        assert done.exit_code == 2
        assert SECRET not in done.stdout + done.stderr


def test_a_saved_report_of_another_hand_is_redacted_too(leaky):
    path = leaky / "report.json"
    invoke("analyze", "leaky://host/run", "-q", "-o", path)
    report = json.loads(path.read_text())
    report["title"] = f"https://me:{SECRET}@host/run"
    path.write_text(json.dumps(report))
    for format_ in ("text", "md", "html", "json"):
        done = invoke("render", path, "-f", format_, "-o", os.fspath(leaky / f"again.{format_}"))
        assert done.exit_code == 0, done.stderr
        assert SECRET not in (leaky / f"again.{format_}").read_text()
