"""What a person read of real profiles without kernels, of memory snapshots, and of files that are no profile."""

from __future__ import annotations

from benchmarks.readings.host import HostReading
from benchmarks.readings.memory import MemoryReading
from benchmarks.readings.reading import Reading

GLOO, VERL = "data/chrome/gloo_cpu/", "data/chrome/verl_cpu/"
NSYS, MEMORY = "data/nsys/", "data/memory/"
NIU = MEMORY + "NiuHuangxiaozi+assignment2-systems/cs336_systems_profile_memory_forward_"
YIYI = MEMORY + "Yiyi-philosophy+LLM-inference/"

NONE, UNFUSED = ("",), ("unfused-optimizer",)
BROADCASTS = ("weight-sync", "rank-imbalance")
TWO_CPUS = "four ranks share two CPUs, so that steps and ranks differ by chance"

HOST_READINGS = (
    HostReading(
        path="data/chrome/hta/cpu_only/rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz", rules=NONE,
        mentions=("gloo:all_reduce|waiting for collectives",),
        why="two threads of gloo are in ten all-reduces for 1,252 of 1,283 ms; no device is listed, nothing was launched",
    ),
    HostReading(
        path="data/chrome/hta/rank_non_gpu/rank_non_gpu.json.gz", rules=NONE,
        stage=("backward", "## backward ##"), op="aten::copy_",
        why="backward takes 34 of 75 ms, nothing is recorded in it; copies lead the operators",
    ),
    HostReading(
        path="data/chrome/rl_insight/torch_data/torch_profile", kinds=("start-up",), rules=NONE, layout="",
        why="stubs: one cudaMemGetInfo, or one op, per file",
    ),
    HostReading(
        path=GLOO + "base_run1", rules=BROADCASTS, stage=("gen", "gen"), op="aten::addmm",
        why=f"gen is half of the step; 29 broadcasts send the weights tensor by tensor, 9 % of it; {TWO_CPUS}",
    ),
    HostReading(
        path=GLOO + "base_run2", rules=BROADCASTS, stage=("gen", "gen"), op="aten::addmm",
        why=f"as base_run1; {TWO_CPUS}",
    ),
    HostReading(
        path=GLOO + "opt_run1", rules=BROADCASTS, stage=("update_actor", "update_actor"), op="aten::addmm",
        why=f"update_actor is half of the step; {TWO_CPUS}",
    ),
    HostReading(
        path=GLOO + "straggler", rules=("straggler",), place="rank 2", late=2, stage=("update_actor", "update_actor"),
        op="aten::addmm",
        why="rank 2 multiplies matrices for 2.0 s in update_actor, the others 0.4 to 0.5; they wait 3.9 s for it, it waits 0.6",
    ),
    HostReading(
        path=GLOO + "fault_leak", rules=(*BROADCASTS, "unfused-optimizer"), grows=True, stage=("gen", "gen"), op="aten::addmm",
        argued=(("the screen does not say that memory grows", "two pairs of steps prove no leak, and an abstention has a price in time alone so far"),),
        why="after the first step each one keeps 2.0 MiB, on both ranks: three steps are few; ranks 1 and 3 are missing, so most of a broadcast may be waiting for them",
    ),
    HostReading(
        path=GLOO + "fault_tiny_ops", rules=BROADCASTS, mentions=("small-ops",), op="aten::addmm",
        why="8,396 instead of 4,390 ops in an update, which cost less than 4 % of the step",
    ),
    HostReading(
        path=GLOO + "base_mem", rules=BROADCASTS, stage=("gen", "gen"), op="aten::addmm",
        why="as base_run1; after the first step nothing is kept",
    ),
    HostReading(
        path=GLOO + "verl_like_perstep", rules=BROADCASTS, layout="files", stage=("gen", "gen"), op="aten::addmm",
        why=f"as base_run1, one file per step; {TWO_CPUS}",
    ),
    HostReading(
        path=VERL + "v091_straggler", rules=("straggler", "unfused-optimizer"), layout="files", late=1, op="aten::addmm",
        why="rank 1 has six micro-batches, rank 0 two: log-probs take 14.5 ms, not 5.6; two steps are few",
    ),
    HostReading(
        path=VERL + "v091_e2e_all_ranks", rules=UNFUSED, layout="files",
        why="a toy of 220 ms a step, most in update_actor and update_critic; AdamW runs 10 ops per tensor",
    ),
    HostReading(
        path=VERL + "v091_discrete", rules=UNFUSED, layout="parts", op="aten::addmm",
        why="a toy: each stage in a file of its own, actor and critic update take 89 % of 178 ms",
    ),
    HostReading(
        path=VERL + "v091_contents_full", rules=UNFUSED, layout="files", stage=("update_actor", "actor_update"),
        op="aten::add_",
        why="a toy: 74 of 119 ms in update_actor; one aten::add_ waits 17 ms for a CPU",
        argued=(("step 119", "the ranges of the step, without 5 ms of Python before them"),),
    ),
    HostReading(
        path=VERL + "v080_e2e", rules=UNFUSED, layout="files", op="aten::addmm",
        why="a toy in the layout of verl 0.8: three captures per rank",
    ),
    HostReading(
        path=VERL + "v091_schedule_e2e", rules=UNFUSED, layout="files", op="aten::as_strided",
        why="a toy: one mini-batch of 36 ms",
    ),
    HostReading(
        path=VERL + "v091_disabled", kinds=("driver-log",), rules=NONE, layout="",
        why="the log of verl, no profile: gen, update_actor and so on by step",
    ),
    HostReading(
        path=VERL + "v091_torch_memory_cpu", kinds=("driver-log",), rules=NONE, layout="",
        why="the log of verl; the folders of snapshots are empty",
    ),
    HostReading(
        path=MEMORY + "CPU_torch2.13/trace.json.gz", rules=("unfused-optimizer", ""), layout="", op="aten::mm",
        why="AdamW takes 76 of 147 ms: 10 passes over each tensor, where fused=True makes one",
    ),
    HostReading(
        path=NSYS + "real_cpu/steps_nsys24.sqlite", rules=NONE, stage=("gen", "generate_sequences"),
        why="no GPU: three steps of 42 ms, half of it gen",
    ),
    HostReading(
        path=NSYS + "real_cpu/spawn_nsys24.sqlite", rules=NONE, stage=("gen", "generate_sequences"),
        why="no GPU: three processes in one file, two steps each",
    ),
    HostReading(
        path=NSYS + "real_cpu/ray_whole", rules=NONE, stage=("update_actor", "update_actor"),
        why="no GPU: two ranks, three steps of 78 ms, 59 % in update_actor",
    ),
    HostReading(
        path=NSYS + "real_cpu/torchlike_nsys22.sqlite", rules=NONE, stage=("update_actor", "update_actor"),
        why="no GPU: two steps of 20 ms",
    ),
    HostReading(
        path="more/nsys/lighttransport_gemm/profile.sqlite", kinds=("start-up",), rules=NONE, layout="",
        argued=(("the first screen has no table", "three calls of the driver and nothing else: no stage, no kernel, no operator"),),
        why="cuInit, cuCtxSetCurrent and cuStreamCreate, no launch; nsys warns that CUDA events may be missing",
    ),
    HostReading(
        path=NSYS + "amir-ghz_DynamicViT/nsys_profile.0180d4.sqlite", kinds=("empty",), rules=NONE, layout="",
        why="names of threads, no event at all",
    ),
    HostReading(
        path=NSYS + "amir-ghz_DynamicViT/nsys_profile.2fc8b7.exp24.sqlite", kinds=("empty",), rules=NONE, layout="",
        why="no event at all; nsys says that no CUDA event was collected",
    ),
    HostReading(
        path=NSYS + "nvtx_tap_verl_cpu", kinds=("driver-log",), rules=NONE, layout="",
        why="the log of verl beside lists of NVTX ranges that are no profile",
    ),
)  # fmt: skip

MEMORY_READINGS = (
    MemoryReading(
        path=NIU + "and_backward_memory_snapshot_100.pickle", site="linear.py:36",
        categories=(("activation", 313_330_420), ("optimizer_state", 181_571_584), ("parameter", 90_785_792), ("temporary", 80_000_004), ("workspace", 17_039_360), ("input", 8_080)),
        why="complete from the first segment on: 651 MiB requested of 750",
    ),
    MemoryReading(
        path=NIU + "and_backward_memory_snapshot_200.pickle", site="softmax.py:14",
        categories=(("activation", 780_340_820), ("optimizer_state", 181_571_584), ("temporary", 160_000_004), ("parameter", 90_785_792), ("workspace", 17_039_360), ("input", 16_080)),
        why="twice the context: softmax holds a quarter of 1.15 GiB",
    ),
    MemoryReading(
        path=NIU + "and_backward_memory_snapshot_200_mixed_precision.pickle", site="softmax.py:14",
        categories=(("activation", 523_820_500), ("optimizer_state", 181_571_584), ("temporary", 134_144_004), ("parameter", 90_785_792), ("gradient", 29_790_208), ("workspace", 17_039_360), ("input", 16_080)),
        why="mixed precision: 932 MiB",
    ),
    MemoryReading(
        path=NIU + "memory_snapshot_150.pickle", site="softmax.py:14", categories=(("activation", 527_625_616), ("parameter", 90_785_792), ("workspace", 8_519_680), ("input", 12_000)),
        why="forward alone: 598 MiB",
    ),
    MemoryReading(
        path=MEMORY + "MAGMA27+assignment2-systems/memory_snapshot.pickle", site="model.py:39",
        categories=(("activation", 12_877_758_464), ("parameter", 514_501_632), ("gradient", 514_501_632), ("workspace", 17_039_360), ("other", 196_612)),
        argued=(("parameter", "in use before the recording began, with an empty stack: only the sizes tell, twice the shapes of the model"),
                ("gradient", "the same")),
        why="13.0 GiB requested of 13.2; activations of model.py:39 hold most",
    ),
    MemoryReading(
        path=MEMORY + "bcrafton+assignment2-systems/memory_snapshot.pickle", site="optimizer.py:78",
        categories=(("optimizer_state", 1_832_460_288), ("parameter", 761_840_640), ("gradient", 761_840_640), ("temporary", 463_168_512), ("workspace", 17_039_360), ("activation", 12_865_792), ("input", 1_024), ("other", 16_384)),
        argued=(("parameter", "in use before the recording began, with an empty stack: only the sizes tell, twice the shapes of the model"),
                ("gradient", "the same")),
        why="3.6 GiB requested of 3.9, most before the recording; a step of AdamW makes temporaries",
    ),
    MemoryReading(
        path=MEMORY + "LfieLike+SketchKV2/my_snapshot.pickle", site="cache_utils_V2.py:224",
        categories=(("parameter", 13_477_032_064), ("kv_cache", 2_894_524_416), ("workspace", 8_519_680), ("other", 32_016)),
        argued=(("parameter", "in use before the recording began, with an empty stack: only the sizes tell, those of a Llama of 7 billion"),),
        why="15.3 GiB requested of 16.0; four fifths without a Python frame: weights",
    ),
    MemoryReading(
        path=YIYI + "1.3b_snapshot.pickle", site="pytorch_backend.py:195",
        categories=(("parameter", 5_674_860_544), ("activation", 8_962_048), ("workspace", 8_519_680), ("other", 4_104)),
        why="5.3 GiB requested of 7.1, all by one line of FlexGen",
    ),
    MemoryReading(
        path=YIYI + "log1_1.3b_snapshot.pickle", site="pytorch_backend.py:195",
        categories=(("parameter", 799_096_832), ("workspace", 8_519_680), ("activation", 2_224_128), ("other", 8_688)),
        argued=(("workspace", "8,519,680 bytes, the size of cuBLAS' default workspace; the stack has no C++ frame"),),
        why="774 MiB requested of 1,766",
    ),
    MemoryReading(
        path=YIYI + "oom_snapshot.pickle", site="pytorch_backend.py:190",
        categories=(("parameter", 11_840_159_744),),
        why="all of 11.0 GiB is in use, by one line of FlexGen",
    ),
    MemoryReading(
        path=MEMORY + "SIMULATED_cpu_allocsim", rules=("memory-growth",), place="simgen.py:13 leak", site="simgen.py:14",
        categories=(("optimizer_state", 42_106_968), ("temporary", 33_562_636), ("parameter", 21_053_472), ("gradient", 21_053_472), ("other", 4_055_040), ("input", 403_456), ("activation", 6_304)),
        why="one line keeps half a MiB per step, as planted",
    ),
    MemoryReading(
        path=MEMORY + "CPU_torch2.13/cpu_profile_snapshot.pickle", site="",
        categories=(("optimizer_state", 10_567_768), ("temporary", 8_392_708), ("parameter", 5_283_872), ("gradient", 5_283_872), ("input", 65_544), ("activation", 6_148)),
        why="made of a profile: categories by torch, and a square root and a quotient of Adam that torch calls unknown",
    ),
    MemoryReading(
        path=MEMORY + "facebookresearch+mosaic/SYNTHETIC_output.pickle", site="foo.py:1483",
        categories=(("context2", 1_212_434_191), ("context1", 528_274_631), ("context3", 514_689_310), ("other", 466)),
        why="made by a script: frames without a meaning, names of compiled code",
    ),
    MemoryReading(
        path="data/chrome/hta/memory_analysis/memory_timeline.raw.gz", kinds=("memory-timeline",),
        why="2.87 GiB at the peak, activations 84 % of it",
    ),
    MemoryReading(path=MEMORY + "CPU_torch2.13/tl.json", kinds=("memory-timeline",), why="28 MiB at the peak"),
    MemoryReading(path=MEMORY + "CPU_torch2.13/tl.raw.json.gz", kinds=("memory-timeline",), why="the same as events"),
)  # fmt: skip

LOG_READINGS = (
    Reading(
        path=VERL + "v091_e2e_all_ranks/ray_timeline.json", kinds=("ray-timeline",), rules=NONE,
        mentions=("94 tasks on 5 workers", "no task running .* 81 %"), why="94 tasks; most of the time the driver is at work",
    ),
)  # fmt: skip

REFUSED = (
    Reading(
        path=NSYS + "sidvijay10_ml_cloud_hw2/nsys_report.405936.sqlite", kinds=(), rules=NONE,
        mentions=("Git LFS pointer",), why="a pointer of Git LFS",
    ),
    Reading(
        path=MEMORY + "kbjiang+cs336-assignment2-systems-mine/cs336_systems_memory_256.pickle", kinds=(), rules=NONE,
        mentions=("Git LFS pointer",), why="a pointer of Git LFS",
    ),
)  # fmt: skip
