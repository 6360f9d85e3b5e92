// Perfetto's trace processor (WebAssembly) under node: load, GPU breakdown, kernel summary.
//
//     node peer_perfetto.mjs ENGINE_FOLDER TRACE.json.gz
//
// ENGINE_FOLDER holds `engine_bundle.js` and `trace_processor.wasm` of a Perfetto UI build. The
// bundle is a web worker: it gets the few names of a browser that it asks for, and is then spoken
// to through its message port in the trace processor's RPC protocol (protobuf, written out by hand
// below; field numbers: Perfetto's protos/perfetto/trace_processor/trace_processor.proto).

import fs from "node:fs";
import path from "node:path";
import vm from "node:vm";

const READ_BYTES = 32 * 2 ** 20; // what Perfetto's own page reads at a time

// A sorted table of its own first: 1.3 times faster than one query with everything inside.
const DEVICE_OPS = `
  create perfetto table device_ops as
  select ts, ts + dur as te, case when category <> 'kernel' then 'memory'
    when name like '%nccl%' then 'communication' else 'computation' end as class
  from slice where category in ('kernel', 'gpu_memcpy', 'gpu_memset') order by ts`;

// The union of intervals: what each adds beyond the latest end so far.
const BUSY = `
  select sum(max(0, te - max(ts, ifnull(seen, ts)))) from (
    select ts, te, max(te) over (
      order by ts rows between unbounded preceding and 1 preceding) as seen from device_ops)`;

const CLASSES = `
  select class, sum(max(0, te - max(ts, ifnull(seen, ts)))) from (
    select class, ts, te, max(te) over (
      partition by class order by ts rows between unbounded preceding and 1 preceding) as seen
    from device_ops) group by class`;

const SUMMARY = `
  select name, count(*), sum(dur), avg(dur), min(dur), max(dur)
  from slice where category = 'kernel' group by name order by 3 desc`;

// ---- protobuf, as much as is needed -----------------------------------------------------------

function varint(number) {
  const bytes = [];
  let rest = BigInt(number);
  for (; rest > 127n; rest >>= 7n) bytes.push(Number(rest & 127n) | 128);
  bytes.push(Number(rest));
  return Buffer.from(bytes);
}

const number = (field, value) => Buffer.concat([varint(field << 3), varint(value)]);
const bytes = (field, value) =>
  Buffer.concat([varint((field << 3) | 2), varint(value.length), value]);

/** [value, next position] of the varint at `position`. */
function readVarint(buffer, position) {
  let value = 0n;
  for (let shift = 0n; ; shift += 7n) {
    const byte = buffer[position++];
    value |= BigInt(byte & 127) << shift;
    if (byte < 128) return [BigInt.asIntN(64, value), position];
  }
}

/** Every [field, value] of a message: a bigint, or a buffer of what is delimited or fixed. */
function* fields(buffer) {
  for (let position = 0; position < buffer.length; ) {
    let tag, value;
    [tag, position] = readVarint(buffer, position);
    const [field, wire] = [Number(tag >> 3n), Number(tag & 7n)];
    if (wire === 0) {
      [value, position] = readVarint(buffer, position);
    } else {
      let size = wire === 1 ? 8n : 4n;
      if (wire === 2) [size, position] = readVarint(buffer, position);
      value = buffer.subarray(position, position + Number(size));
      position += Number(size);
    }
    yield [field, value];
  }
}

function* varints(buffer) {
  for (let position = 0; position < buffer.length; ) {
    let value;
    [value, position] = readVarint(buffer, position);
    yield value;
  }
}

// ---- the engine -------------------------------------------------------------------------------

const APPEND_TRACE_DATA = 1, FINALIZE_TRACE_DATA = 2, QUERY_STREAMING = 3;
const NULL_CELL = 1n, VARINT_CELL = 2n, FLOAT_CELL = 3n, STRING_CELL = 4n;

/** A function request(method, body) → the replies' payloads, once the engine in `folder` runs. */
async function startEngine(folder) {
  // Nothing tells when the module is ready, and a bridge that is asked too early stays broken. The
  // first pause also lets V8 finish its optimising compile, which would else be timed too.
  for (const pause of [2000, 8000]) {
    const request = bridge(folder);
    await new Promise((resolve) => setTimeout(resolve, pause));
    try {
      if (query(request, "select 1")[0]?.[0] === 1) return request;
    } catch (error) {
      if (pause === 8000) throw error;
    }
  }
  throw new Error("the trace processor does not answer");
}

function bridge(folder) {
  class FileRequest { // the bundle fetches its .wasm like a page does
    open(_method, url) { this.url = url; }
    send() {
      const file = fs.readFileSync(path.join(folder, path.basename(this.url)));
      this.response = new Uint8Array(file).buffer; // a copy: the file may share a pooled buffer
      this.status = 200;
      this.onload?.();
    }
  }
  const silent = () => {};
  const scope = {
    self: { location: { href: "file:///engine_bundle.js" } },
    XMLHttpRequest: FileRequest,
    WorkerGlobalScope: class {},
    console: { log: silent, warn: silent, error: silent },
    process: undefined, // else the bundle takes this for node, and itself for a command
  };
  // A function and no context of its own: the bundle catches errors of WebAssembly by their class.
  const code = fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8");
  vm.compileFunction(code, Object.keys(scope))(...Object.values(scope));
  const replies = [];
  const port = { onmessage: null, postMessage: (reply) => replies.push(Buffer.from(reply)) };
  scope.self.onmessage({ data: port });

  let sequence = 0;
  return (method, body = Buffer.alloc(0)) => {
    replies.length = 0;
    const message = Buffer.concat([number(1, ++sequence), number(2, method), body]);
    port.onmessage({ data: new Uint8Array(bytes(1, message)) }); // returns when all is answered
    return replies.flatMap((reply) => [...fields(reply)].map(([, rpc]) => new Map(fields(rpc))));
  };
}

/** Rows of an SQL query. */
function query(request, sql) {
  const rows = [];
  for (const reply of request(QUERY_STREAMING, bytes(103, bytes(1, Buffer.from(sql))))) {
    const result = reply.get(203);
    if (!result) throw new Error(`no result: ${[...reply.keys()]}`);
    let width = rows.width ?? 0;
    for (const [field, value] of fields(result)) {
      if (field === 1) width += 1;
      if (field === 2) throw new Error(value.toString());
      if (field === 3) rows.push(...batchRows(value, width));
    }
    rows.width = width;
  }
  return rows;
}

function batchRows(batch, width) {
  const parts = new Map(fields(batch));
  const empty = Buffer.alloc(0);
  const integers = varints(parts.get(2) ?? empty);
  const texts = (parts.get(5) ?? empty).toString().split("\0")[Symbol.iterator]();
  let floatAt = 0;
  const read = {
    [NULL_CELL]: () => null,
    [VARINT_CELL]: () => Number(integers.next().value),
    [FLOAT_CELL]: () => parts.get(3).readDoubleLE((floatAt += 8) - 8),
    [STRING_CELL]: () => texts.next().value,
  };
  const cells = [...varints(parts.get(1) ?? empty)].map((kind) => read[kind]());
  const rows = [];
  for (let at = 0; at < cells.length; at += width) rows.push(cells.slice(at, at + width));
  return rows;
}

// ---- one measurement --------------------------------------------------------------------------

function memoryMb(field) {
  const lines = fs.readFileSync("/proc/self/status", "ascii").split("\n");
  const line = lines.find((text) => text.startsWith(field + ":"));
  return (parseInt(line.split(/\s+/)[1], 10) * 1024) / 1e6;
}

function forgetPeak() {
  try {
    fs.writeFileSync("/proc/self/clear_refs", "5");
  } catch {
    // kernels without it: the peak of the start stays in
  }
}

function load(request, file) {
  const handle = fs.openSync(file, "r");
  const buffer = Buffer.alloc(READ_BYTES);
  for (let size; (size = fs.readSync(handle, buffer, 0, READ_BYTES, null)) > 0; ) {
    const [reply] = request(APPEND_TRACE_DATA, bytes(101, buffer.subarray(0, size)));
    for (const [field, value] of fields(reply.get(201) ?? Buffer.alloc(0))) {
      if (field === 2) throw new Error(value.toString());
    }
  }
  fs.closeSync(handle);
  request(FINALIZE_TRACE_DATA);
}

async function main(folder, file) {
  const request = await startEngine(folder);
  forgetPeak();
  const resident = memoryMb("VmRSS");
  const cpuBefore = process.cpuUsage();
  const start = performance.now();
  load(request, file);
  const loaded = performance.now();
  query(request, DEVICE_OPS);
  const [[busy]] = query(request, BUSY);
  const classes = query(request, CLASSES);
  const summary = query(request, SUMMARY);
  const seconds = (performance.now() - start) / 1e3;
  const cpu = process.cpuUsage(cpuBefore);
  const sum = (column) => summary.reduce((total, row) => total + row[column], 0);
  console.log(JSON.stringify({
    seconds: +seconds.toFixed(4),
    cpu: +((cpu.user + cpu.system) / 1e6).toFixed(4),
    peak_mb_net_of_imports: +(memoryMb("VmHWM") - resident).toFixed(1),
    load_seconds: +((loaded - start) / 1e3).toFixed(4),
    kernels: sum(1),
    kernel_ns: sum(2),
    busy_ns: busy,
    classes: Object.fromEntries(classes),
    version: `WASM under node ${process.versions.node}`,
  }));
}

main(...process.argv.slice(2)).then(
  () => process.exit(0), // the engine keeps timers
  (error) => {
    console.error(String(error.stack)); // the uncaught form would print the bundle's one long line
    process.exit(1);
  },
);
