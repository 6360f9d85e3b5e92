"""Writers of training logs for tests, independent of the readers: console forms, event files, offline runs, MLflow."""

import json
import sqlite3
import struct
import zlib


def varint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def message(field, content):
    return varint(field << 3 | 2) + varint(len(content)) + content


# TensorBoard


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def record(body):
    length = struct.pack("<Q", len(body))
    return length + masked(length) + body + masked(body)


def scalar(tag, value, form="simple"):
    name = message(1, tag.encode())
    if form == "simple":
        return message(1, name + b"\x15" + struct.pack("<f", value))
    if form == "tensor":  # as TensorFlow 2 writes: a tensor of one float, and the plugin's name
        tensor = b"\x08\x01" + message(2, b"") + message(5, struct.pack("<f", value))
        return message(1, name + message(8, tensor) + message(9, message(1, message(1, b"scalars"))))
    return message(1, name + message(5, b"\x09" + b"\0" * 8))  # a histogram


def event(wall_time, step, values=b""):
    return record(b"\x09" + struct.pack("<d", wall_time) + (b"\x10" + varint(step) if step else b"") + values)


def event_file(steps, start=1_800_000_000.0, each=60.0, form="simple"):
    """An event file of `steps`: {step: {tag: value}}; one event per value, as add_scalar writes."""
    out = record(b"\x09" + struct.pack("<d", start) + message(3, b"brain.Event:2"))
    for position, (step, values) in enumerate(steps.items()):
        for tag, value in values.items():
            out += event(start + position * each, step, message(5, scalar(tag, value, form)))
    return out


# Weights & Biases


def history(row, step):
    items = b""
    for name, value in row.items():
        text = value if isinstance(value, str) else json.dumps(value)
        items += message(1, message(2, name.encode()) + message(16, text.encode()))
    return message(2, items + message(2, b"\x08" + varint(step)))


def offline_run(records):
    """A .wandb file of records, split at the ends of blocks of 32 KiB."""
    out = bytearray(b":W&B\xe1\xbe\x00")
    for body in records:
        rest, first = body, True
        while first or rest:
            room = 32768 - len(out) % 32768
            if room < 7:
                out += b"\0" * room
                room = 32768
            piece, rest = rest[: room - 7], rest[room - 7 :]
            kind = (1 if first else 4) if not rest else (2 if first else 3)
            out += struct.pack("<IHB", zlib.crc32(bytes([kind]) + piece), len(piece), kind) + piece
            first = False
    return bytes(out)


# MLflow


def mlflow_store(path, runs, names=(), parents=()):
    """A store with `runs`: {run: [(key, value, time in ms, step)]}, and the names and parents of runs, if given."""
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE experiments (experiment_id INTEGER PRIMARY KEY, name TEXT)")
        connection.execute(
            "CREATE TABLE metrics (key VARCHAR(250) NOT NULL, value FLOAT NOT NULL, timestamp BIGINT NOT NULL, "
            "run_uuid VARCHAR(32) NOT NULL, step BIGINT DEFAULT '0' NOT NULL, is_nan BOOLEAN DEFAULT '0' NOT NULL)"
        )
        for run, rows in runs.items():
            connection.executemany(
                "INSERT INTO metrics (key, value, timestamp, run_uuid, step) VALUES (?, ?, ?, ?, ?)",
                [(key, value, time, run, step) for key, value, time, step in rows],
            )
        if names:
            connection.execute(
                "CREATE TABLE runs (run_uuid VARCHAR(32) NOT NULL, name VARCHAR(250), experiment_id INTEGER)"
            )
            connection.execute(
                "CREATE TABLE tags (key VARCHAR(250) NOT NULL, value VARCHAR(8000), run_uuid VARCHAR(32))"
            )
            connection.executemany("INSERT INTO runs VALUES (?, ?, ?)", [(run, *name) for run, name in names.items()])
            rows = [("mlflow.parentRunId", parent, run) for run, parent in dict(parents).items()]
            connection.executemany("INSERT INTO tags VALUES (?, ?, ?)", rows)
    connection.close()


# Consoles


def verl_line(step, values, prefix="", number=str):
    pairs = " - ".join(f"{name}:{number(value)}" for name, value in values.items())
    return f"{prefix}step:{step} - {pairs}\n"


def areal_table(step, values, columns=1, total=120):
    rows = [f"20260901-10:00:0{step % 10}.123 StatsLogger INFO: Epoch 1/3 Step {step}/40 Train step {step}/{total} done.",
            "╒══════════════════╤════════════╕"]  # fmt: skip
    pairs = [f"│ {name} │ {value:.4e} " for name, value in values.items()]
    for at in range(0, len(pairs), columns):
        rows += ["".join(pairs[at : at + columns]) + "│", "├──────────────────┼────────────┤"]
    return "\n".join(rows) + "\n"
