"""Hand-made exports of Nsight Systems: rows as its exporter writes them, times in ns since the capture's start.

A row is (table, values); a value `Text("…")` goes to StringIds and its id into the row. `write` makes the
tables that the rows need, with the columns that they had in a version of the schema.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

BASE_NS = 1_700_000_000_000_000_000
PID, TID = 100, 100
HOST = "node-a"
METRICS = 0x1000000000000
"""The type of samples of GPU 0."""

SCHEMAS = {"2021": (0, 0), "2.9": (2, 9), "3.0": (3, 0), "3.7": (3, 7), "3.11": (3, 11), "3.25": (3, 25)}
PRODUCTS = {
    "2.9": "2022.1.3.3",
    "3.0": "2022.4.2.1",
    "3.7": "2023.4.4.54",
    "3.11": "2024.2.3.38",
    "3.25": "2026.2.1.210",
}

_DEVICE = "deviceId! contextId! greenContextId@3.7 streamId! correlationId globalPid"
# name, ! if it may not be NULL, :type unless INTEGER, @first version, @<first version without it
_TABLES = {
    "StringIds": "id!:KEY value!:TEXT",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"start! end! {_DEVICE} demangledName! shortName! mangledName launchType cacheConfig"
    " registersPerThread! gridX! gridY! gridZ! blockX! blockY! blockZ! staticSharedMemory! dynamicSharedMemory!"
    " localMemoryPerThread localMemoryTotal gridId sharedMemoryExecuted graphNodeId@3.0 graphId@3.24",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"start! end! {_DEVICE} bytes! copyKind! deprecatedSrcId srcKind dstKind srcDeviceId"
    " srcContextId dstDeviceId dstContextId migrationCause graphNodeId@3.0 virtualAddress copyCount@3.24",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"start! end! {_DEVICE} value! bytes! graphNodeId@3.0 memKind",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"start! end! {_DEVICE} deprecatedSyncType@3.24 syncType! eventId! eventSyncId@3.24",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE@3.11": f"start! end! {_DEVICE} graphId! graphExecId!",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start! end! eventClass! globalTid correlationId nameId! returnValue! callchainId",
    "CUPTI_ACTIVITY_KIND_OVERHEAD@3.24": "start! end! eventClass! globalTid correlationId nameId overheadType!",
    "PROFILER_OVERHEAD@2.9": "start! end! globalTid nameId! returnValue@<3.24 overheadType@3.24",
    "CUDA_GPU_MEMORY_USAGE_EVENTS@3.0": "start! globalPid! deviceId! contextId! address! pc bytes! memKind!"
    " memoryOperationType! name correlationId streamId localMemoryPoolAddress localMemoryPoolReleaseThreshold"
    " localMemoryPoolSize localMemoryPoolUtilizedSize importedMemoryPoolAddress",
    "NVTX_EVENTS": "start! end eventType! rangeId category color text:TEXT globalTid endGlobalTid textId domainId"
    " uint64Value int64Value doubleValue:REAL uint32Value int32Value floatValue:REAL jsonTextId jsonText:TEXT"
    " binaryData:TEXT@3.24",
    "NVTX_PAYLOAD_SCHEMAS@3.24": "domainId schemaId name:TEXT type flags numEntries payloadSize alignTo",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES@3.24": "domainId! schemaId! idx! flags type name:TEXT description:TEXT"
    " arrayOrUnionDetail offset",
    "OSRT_API@2.9": "start! end! eventClass! globalTid nameId! returnValue! nestingLevel callchainId! argumentsId@3.23",
    "GPU_METRICS@3.7": "timestamp! typeId! metricId! value!",
    "TARGET_INFO_GPU_METRICS@3.7": "typeId! sourceId typeName:TEXT metricId! metricName!:TEXT",
    "GENERIC_EVENTS@2.9": "rawTimestamp! timestamp typeId! data!:TEXT",
    "GENERIC_EVENT_TYPES@2.9": "typeId! sourceId! data!:TEXT",
    "GENERIC_EVENT_SOURCES@2.9": "sourceId! data!:TEXT",
    "SCHED_EVENTS@2.9": "start! cpu! isSchedIn! globalTid threadState@3.16 threadBlock@3.16",
    "COMPOSITE_EVENTS@2.9": "id!:KEY start! cpu threadState globalTid cpuCycles!",
    "SAMPLING_CALLCHAINS@2.9": "id! symbol! module! kernelMode thumbCode unresolved specialEntry originalIP"
    " unwindMethod stackDepth!",
    "DIAGNOSTIC_EVENT@3.11": "timestamp! timestampType! source! severity! text!:TEXT globalPid",
    "ANALYSIS_DETAILS@2.9": "globalVid! duration! startTime! stopTime!",
    "META_DATA_CAPTURE@3.4": "name!:TEXT value:TEXT",
    "META_DATA_EXPORT@3.4": "name!:TEXT value:TEXT",
    "EXPORT_META_DATA@2.9@<3.4": "name!:TEXT value:TEXT",
    "PROCESSES@2.9": "globalPid pid name:TEXT",
    "ThreadNames": "nameId! priority globalTid",
    "ProcessStreams": "globalPid! filenameId! contentId!",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime:TEXT localTime:TEXT systemClockNs@3.24",
    "TARGET_INFO_SYSTEM_ENV": "globalVid devStateName!:TEXT name!:TEXT nameEnum! value!:TEXT",
    "TARGET_INFO_GPU": "vmId! id! name:TEXT busLocation:TEXT isDiscrete l2CacheSize totalMemory memoryBandwidth"
    " clockRate smCount pwGpuId uuid:TEXT luid chipName:TEXT cuDevice maxRegistersPerBlock maxShmemPerBlock"
    " maxShmemPerBlockOptin maxShmemPerSm maxRegistersPerSm threadsPerWarp maxWarpsPerSm maxBlocksPerSm"
    " maxThreadsPerBlock computeMajor computeMinor",
    "TARGET_INFO_CUDA_CONTEXT_INFO@3.7": "nullStreamId! hwId! vmId! processId! deviceId! contextId!"
    " parentContextId isGreenContext numMultiprocessors@3.24",
    "TARGET_INFO_CUDA_NULL_STREAM@2.9@<3.7": "streamId! hwId! vmId! processId! deviceId! contextId!",
    "TARGET_INFO_CUDA_DEVICE@3.20": "gpuId cudaId! pid! uuid:TEXT@3.24 numMultiprocessors@3.24",
    "TARGET_INFO_CUDA_STREAM": "streamId! hwId! vmId! processId! contextId! priority! flag!",
}  # fmt: skip


class Text(str):  # noqa: SLOT000
    """A text that an export keeps in StringIds."""


def global_tid(pid=PID, tid=TID):
    return 1 << 48 | pid << 24 | tid


def global_pid(pid=PID):
    return 1 << 48 | pid << 24


def kernel(name, start, end, correlation=None, *, pid=PID, device=0, context=None, stream=7, **more):
    values = {
        **_on_device(start, end, correlation, pid, device, context, stream),
        "demangledName": Text(name), "shortName": Text(name.split("(")[0].split("<")[0]),
        "registersPerThread": 32, "staticSharedMemory": 1024, "dynamicSharedMemory": 512,
        **dict(zip(("gridX", "gridY", "gridZ"), more.pop("grid", (16, 1, 1)), strict=True)),
        **dict(zip(("blockX", "blockY", "blockZ"), more.pop("block", (128, 1, 1)), strict=True)),
    }  # fmt: skip
    return "CUPTI_ACTIVITY_KIND_KERNEL", values | more


def memcpy(
    start, end, size, correlation=None, *, kind=1, source=0, target=2, pid=PID, device=0, context=None, stream=7, **more
):
    values = {
        **_on_device(start, end, correlation, pid, device, context, stream),
        "bytes": size, "copyKind": kind, "srcKind": source, "dstKind": target,
    }  # fmt: skip
    return "CUPTI_ACTIVITY_KIND_MEMCPY", values | more


def memset(start, end, size, correlation=None, *, kind=2, pid=PID, device=0, context=None, stream=7, **more):
    values = {
        **_on_device(start, end, correlation, pid, device, context, stream),
        "bytes": size, "value": 0, "memKind": kind,
    }  # fmt: skip
    return "CUPTI_ACTIVITY_KIND_MEMSET", values | more


def graph(start, end, correlation=None, *, graph_id=5, pid=PID, device=0, context=None, stream=7, **more):
    values = {
        **_on_device(start, end, correlation, pid, device, context, stream),
        "graphId": graph_id, "graphExecId": graph_id + 1,
    }  # fmt: skip
    return "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", values | more


def sync(start, end, correlation=None, *, kind=3, pid=PID, device=0, context=None, stream=7, **more):
    values = {
        **_on_device(start, end, correlation, pid, device, context, stream),
        "syncType": kind, "eventId": 0,
    }  # fmt: skip
    return "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", values | more


def api(name, start, end, correlation=None, *, pid=PID, tid=TID, driver=False, **more):
    values = {
        "start": start, "end": end, "eventClass": int(driver), "globalTid": global_tid(pid, tid),
        "correlationId": correlation, "nameId": Text(name), "returnValue": 0,
    }  # fmt: skip
    return "CUPTI_ACTIVITY_KIND_RUNTIME", values | more


def launched(name, at, start, end, correlation, *, pid=PID, tid=TID, **more):
    """A launch of 2 µs and the kernel that it causes."""
    call = api("cudaLaunchKernel_v7000", at, at + 2000, correlation, pid=pid, tid=tid)
    return [call, kernel(name, start, end, correlation, pid=pid, **more)]


def overhead(name, start, end, *, pid=PID, tid=TID, **more):
    values = {"start": start, "end": end, "globalTid": global_tid(pid, tid), "nameId": Text(name)}
    return "PROFILER_OVERHEAD", values | {"returnValue": 0, "overheadType": 0} | more


def os_call(name, start, end, *, pid=PID, tid=TID, **more):
    values = {
        "start": start, "end": end, "eventClass": 27, "globalTid": global_tid(pid, tid),
        "nameId": Text(name), "returnValue": 0, "nestingLevel": 0, "callchainId": 0, "argumentsId": 0,
    }  # fmt: skip
    return "OSRT_API", values | more


def sampled(number, at, *names, pid=PID, tid=TID, module="/usr/lib/libx.so"):
    """A sample of what a thread ran: functions from the innermost on, None for one without a name."""
    values = {"id": number, "start": at, "cpu": 1, "threadState": 1, "globalTid": global_tid(pid, tid)}
    rows = [("COMPOSITE_EVENTS", values | {"cpuCycles": 1})]
    for depth, name in enumerate(names):
        values = {
            "id": number, "symbol": Text(name or f"0x7f{depth:02x}"), "module": Text(module),
            "unresolved": None if name else 1, "originalIP": depth, "stackDepth": depth,
        }  # fmt: skip
        rows.append(("SAMPLING_CALLCHAINS", values))
    return rows


def switch(at, enters, *, state=None, pid=PID, tid=TID):
    """A thread that enters a CPU or leaves it."""
    values = {"start": at, "cpu": 1, "isSchedIn": int(enters), "globalTid": global_tid(pid, tid)}
    return "SCHED_EVENTS", values | {"threadState": state, "threadBlock": None}


def off_cpu(start, end, **more):
    """A thread that leaves the CPU and enters it again."""
    state = more.pop("state", None)
    return [switch(start, False, state=state, **more), switch(end, True, **more)]


def nvtx(name, start, end, *, kind=59, pid=PID, tid=TID, domain=0, registered=False, **more):
    """A range: `kind` 59 pushed and popped, 60 started and ended. `end` None is as old exporters may write it."""
    values = {
        "start": start, "end": end, "eventType": kind, "globalTid": global_tid(pid, tid),
        "domainId": domain, ("textId" if registered else "text"): Text(name) if registered else name,
    }  # fmt: skip
    return "NVTX_EVENTS", values | more


def mark(name, at, **more):
    return nvtx(name, at, None, kind=34, **more)


def domain(name, number, *, pid=PID, tid=TID, at=0):
    return nvtx(name, at, None, kind=75, pid=pid, tid=tid, domain=number, registered=True)


def category(name, number, *, pid=PID, tid=TID, domain=0, at=0):
    return nvtx(name, at, None, kind=33, pid=pid, tid=tid, domain=domain, category=number)


def memory(at, size, address, *, free=False, pid=PID, device=0, kind=2, **more):
    values = {
        "start": at, "globalPid": global_pid(pid), "deviceId": device, "contextId": device + 1,
        "address": address, "bytes": size, "memKind": kind, "memoryOperationType": int(free),
    }  # fmt: skip
    return "CUDA_GPU_MEMORY_USAGE_EVENTS", values | more


def metric_name(name, number, *, gpu=0):
    values = {"typeId": METRICS | gpu, "metricId": number, "metricName": name}
    return "TARGET_INFO_GPU_METRICS", values | {"sourceId": 1, "typeName": "GPU Metrics"}


def metric(at, number, value, *, gpu=0):
    values = {"timestamp": at, "typeId": METRICS | gpu, "metricId": number, "value": value}
    return "GPU_METRICS", values


def generic_source(name, number=1, types=()):
    """What generic events come from, and types of them: GPU metrics have one for each GPU, told by its low byte."""
    told = {"sourceId": number, "data": json.dumps({"Name": name})}
    found = [("GENERIC_EVENT_SOURCES", told)]
    return found + [("GENERIC_EVENT_TYPES", {"typeId": t, "sourceId": number, "data": "{}"}) for t in types]


def generic(at, data, type_=METRICS, *, timestamp=None):
    """A generic event; `data` that is no text becomes JSON, its numbers text, its slashes with a backslash."""
    if not isinstance(data, str):
        data = json.dumps({name: str(v) for name, v in data.items()}).replace("/", "\\/")
    return "GENERIC_EVENTS", {"rawTimestamp": at, "timestamp": timestamp, "typeId": type_, "data": data}  # fmt: skip


def diagnostic(text, *, severity=2, at=0, pid=None):
    values = {
        "timestamp": at, "timestampType": 1, "source": 1, "severity": severity, "text": text,
        "globalPid": None if pid is None else global_pid(pid),
    }  # fmt: skip
    return "DIAGNOSTIC_EVENT", values


def variable(name, value, *, process=0):
    """A variable of the environment, as the capture's own metadata has it."""
    recorded = f'{name}="{value}"'
    return "META_DATA_CAPTURE", {"name": f"PROCESS_{process}:ENVIRONMENT_VARIABLE", "value": recorded}


def captured(name, value):
    return "META_DATA_CAPTURE", {"name": name, "value": value}


def system(name, value):
    values = {"globalVid": 1 << 48, "devStateName": "CPU", "name": name, "nameEnum": 0}
    return "TARGET_INFO_SYSTEM_ENV", values | {"value": value}


def gpu(number=0, name="NVIDIA H100", **more):
    values = {
        "vmId": 1 << 48, "id": number, "name": name, "cuDevice": number, "smCount": 132,
        "totalMemory": 80 * 2**30, "computeMajor": 9, "computeMinor": 0, "uuid": f"uuid-{number}",
    }  # fmt: skip
    return "TARGET_INFO_GPU", values | more


def context(number, device, *, pid=PID):
    values = {
        "nullStreamId": 7, "hwId": 0, "vmId": 1 << 48, "processId": pid, "deviceId": device,
        "contextId": number,
    }  # fmt: skip
    return "TARGET_INFO_CUDA_CONTEXT_INFO", values


def process(name="python", *, pid=PID):
    return "PROCESSES", {"globalPid": global_pid(pid), "pid": pid, "name": name}


def thread(name, *, pid=PID, tid=TID):
    return "ThreadNames", {"nameId": Text(name), "priority": 20, "globalTid": global_tid(pid, tid)}


def write(
    path: Path,
    rows,
    *,
    schema="3.11",
    utc_ns=BASE_NS,
    duration_ns=None,
    host=HOST,
    tables=(),
    exported=(),
    journal="delete",
):
    """The path of an export with these rows; `tables` exist even if empty.

    `utc_ns` None leaves the clock unknown, `duration_ns` None does so with the end of the capture.
    `exported` are more (name, value) of what the exporter says of itself.
    """
    version = SCHEMAS[schema]
    columns = {name: specs for name, specs in (_of_version(*item, version) for item in _TABLES.items()) if specs}
    rows = [*rows]
    if host is not None:
        rows.append(system("Hostname", host))
    rows.append(("TARGET_INFO_SESSION_START_TIME", {"utcEpochNs": utc_ns, "utcTime": "", "localTime": ""}))
    if duration_ns is not None:
        times = {"globalVid": 1 << 48, "duration": duration_ns, "startTime": 5, "stopTime": 5 + duration_ns}
        rows.append(("ANALYSIS_DETAILS", times))
    if schema != "2021":
        about = "META_DATA_EXPORT" if version >= (3, 4) else "EXPORT_META_DATA"
        said = {"EXPORT_PRODUCT_VERSION": PRODUCTS[schema], "EXPORT_SCHEMA_VERSION": f"{schema}.0"}
        rows += [(about, {"name": n, "value": v}) for n, v in {**said, **dict(exported)}.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"PRAGMA journal_mode = {journal}")
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("BEGIN")
    strings: dict[str, int] = {}
    made = set()
    for table in ("StringIds", *tables):
        made.add(table)
        connection.execute(_create(table, columns[table]))
    for table, values in rows:
        if table not in made:
            made.add(table)
            connection.execute(_create(table, columns[table]))
        kept = {
            name: strings.setdefault(str(value), len(strings) + 1) if isinstance(value, Text) else value
            for name, value in values.items()
            if name in columns[table]
        }
        names, marks = ", ".join(f'"{name}"' for name in kept), ", ".join("?" * len(kept))
        connection.execute(f'INSERT INTO "{table}" ({names}) VALUES ({marks})', [*kept.values()])
    connection.executemany("INSERT INTO StringIds VALUES (?, ?)", [(i, s) for s, i in strings.items()])
    connection.execute("COMMIT")
    connection.close()
    return path


def execute(path: Path, *statements):
    """The path, after these statements (or (statement, parameters)) were run on the file."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    for statement in statements:
        connection.execute(*((statement,) if isinstance(statement, str) else statement))
    connection.close()
    return path


def _on_device(start, end, correlation, pid, device, context, stream):
    return {
        "start": start, "end": end, "deviceId": device,
        "contextId": device + 1 if context is None else context, "streamId": stream,
        "correlationId": correlation, "globalPid": global_pid(pid),
    }  # fmt: skip


def _of_version(table, columns, version):
    """(name of a table, its columns and types in this version); no columns where it did not exist."""
    name, *since = table.split("@")
    if not _existed(since, version):
        return name, {}
    found = {}
    for spec in columns.split():
        column, *when = spec.split("@")
        if _existed(when, version):
            column, _, kind = column.partition(":")
            null = " NOT NULL" if column.endswith("!") else ""
            found[column.rstrip("!")] = "INTEGER PRIMARY KEY" if kind == "KEY" else (kind or "INTEGER") + null
    return name, found


def _existed(when, version):
    return all(version < _version(bound[1:]) if bound.startswith("<") else version >= _version(bound) for bound in when)


def _version(text):
    major, minor = text.split(".")
    return int(major), int(minor)


def _create(table, columns):
    return f'CREATE TABLE "{table}" ({", ".join(f"{name!r} {kind}" for name, kind in columns.items())})'.replace(
        "'", '"'
    )
