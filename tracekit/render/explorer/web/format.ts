// How names, times, bytes and shares are written.
import type { Snapshot } from "./data";

/** The functor of a kernel's template, where there is one. */
const FUNCTOR = /(\w*(?:Functor|_kernel_cuda|Ops?)\b)/;

/** Shortens a C++ name to the words that people use for it. */
export function shortenName(name: string): string {
  let text = name.replace(/^(?:void|at::Tensor) /, "").replace(/\(anonymous namespace\)::/g, "");
  const cut = text.search(/[<(]/);
  if (cut > 2 && /^[\w:]+$/.test(text.slice(0, cut))) {
    const functor = text[cut] === "<" ? FUNCTOR.exec(text.slice(cut)) : null;
    text = text.slice(0, cut).replace(/^.*::/, "") + (functor ? ` · ${functor[1]}` : "");
  }
  return text.length > 90 ? `${text.slice(0, 89)}…` : text;
}

const group = (n: number): string => n.toLocaleString("en");

export function formatCount(n: number): string {
  return group(Math.round(n));
}

/** Formats ns with a unit, to some significant digits. */
export function formatTime(ns: number, digits = 3): string {
  const size = Math.abs(ns);
  const [unit, scale] = size >= 1e9 ? ["s", 1e9] : size >= 1e6 ? ["ms", 1e6] : size >= 1e3 ? ["µs", 1e3] : ["ns", 1];
  const value = size / scale;
  return `${ns < 0 ? "−" : ""}${digits <= 3 && value >= 100 ? group(Math.round(value)) : Number(value.toPrecision(digits))}\u00a0${unit}`;
}

export function formatBytes(bytes: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  for (; Math.abs(bytes) >= 1024 && i < 4; i++) bytes /= 1024;
  return `${Number(bytes.toPrecision(4))}\u00a0${units[i]}`;
}

export function formatShare(share: number): string {
  return `${(share * 100).toFixed(share < 0.0995 ? 1 : 0)}\u00a0%`;
}

/** Formats a moment of a snapshot. */
export function formatMoment(snapshot: Snapshot, time: number, digits: number): string {
  return snapshot.timed === false ? `change ${formatCount(time)}` : formatTime(time, digits);
}
