"""Captures of nsys from two hosts on one clock: its offset is told by the collectives that both ran."""

import nsys_builder as nsys

import tracekit

QUESTIONS = ("stragglers",)
MS, COUNT = 1_000_000, 30


def capture(path, rank, host, *, ahead_ns=0, late_ns=(0,)):
    """All-reduces of 1 ms every 10 ms, on a clock that is ahead by so much; the n-th ends `late_ns` (in turn) late."""
    mine = {"pid": 100 + rank, "tid": 100 + rank}
    found = [nsys.variable("RANK", rank), nsys.variable("WORLD_SIZE", 2), nsys.variable("WG_PREFIX", "actor"),
             nsys.gpu(0), nsys.process("ray::Worker", pid=100 + rank)]  # fmt: skip
    for n in range(1, COUNT + 1):
        at = n * 10 * MS
        end = at + 2 * MS + late_ns[n % len(late_ns)]
        found += [
            nsys.nvtx(f"step {n}", at - MS, at + 5 * MS, **mine),
            *nsys.launched("ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", at, at + MS, end, n, stream=20, **mine),
        ]  # fmt: skip
    return nsys.write(path, found, duration_ns=(COUNT + 2) * 10 * MS, utc_ns=nsys.BASE_NS + ahead_ns, host=host)


def test_the_clock_of_another_host_is_off_by_what_matched_collectives_say(tmp_path):
    capture(tmp_path / "worker_process_100.sqlite", 0, "node-a")
    late = (-1000, 0, 1000)  # a third of the ends at the median: half of them are 1 µs off it, or more
    capture(tmp_path / "worker_process_101.sqlite", 1, "node-b", ahead_ns=7 * MS, late_ns=late)
    (section,) = [s for s in tracekit.analyze(tmp_path, questions=QUESTIONS).sections if s.id == "stragglers"]
    table = next(s for s in section.sheets if s.name == "clocks")
    names = [heading.name for heading in table.headings]
    told = {row["rank"]: row for row in (dict(zip(names, r, strict=True)) for r in table.rows)}
    assert (told[0]["offset_ns"], told[0]["count"]) == (0, COUNT)
    assert (told[1]["offset_ns"], told[1]["uncertainty_ns"], told[1]["count"]) == (7 * MS, 1000, COUNT)
