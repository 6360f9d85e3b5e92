"""Change what was recorded of a simulated job, not what happened: rows that are missing, clocks that differ, files that are cut."""

from __future__ import annotations

import gzip
import random
import re
from pathlib import Path

from jobsim import kernels as k
from jobsim.job import Job
from jobsim.rank import Rank
from jobsim.training import FRAME_OF_STAGE

BATCH = re.compile(r"(mini|micro)_batch\d+")
STEP = re.compile(r"ProfilerStep#\d+")


def dice_of(job: Job, purpose: str) -> random.Random:
    """Return the dice of one job for one purpose."""
    return random.Random(f"{purpose} {job.name}")


def drop_stages(job: Job, ranks: list[Rank]) -> list[Rank]:
    """Drop the ranges of stages, mini-batches and micro-batches."""
    for rank in ranks:
        rank.host_rows = [row for row in rank.host_rows if not is_stage(row.name)]
    return ranks


def is_stage(name: str) -> bool:
    """Whether a range is one that the training code would have to mark itself."""
    return name in FRAME_OF_STAGE or bool(BATCH.fullmatch(name))


def drop_shapes(job: Job, ranks: list[Rank]) -> list[Rank]:
    """Drop the shapes of inputs; those of collectives stay."""
    for rank in ranks:
        for row in rank.host_rows:
            if "Input Dims" in row.args:
                row.args = ""
    return ranks


NAMES = {
    "gen": "generation", "reward": "environment", "adv": "advantage_calculation", "old_log_prob": "policy_logprobs",
    "ref": "reference_logprobs", "update_actor": "policy_training", "update_weights": "refit_generation",
    "testing": "validation", "save_checkpoint": "checkpointing",
}  # fmt: skip
"""Names of stages as another library has them."""
KERNELS = {
    k.GEMM: "nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNT",
    k.SGEMM: "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x256_8x4_tn_align1>(cutlass_80_simt_sgemm_128x256_8x4_tn_align1::Params)",
    k.CONV: "void xmma_new::gemm::kernel<implicit_gemm_bf16_nhwc_tilesize128x128x64>(implicit_gemm_params)",
    k.NORM: "triton_red_fused_native_layer_norm_3",
    k.DECODE_GEMM: "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int> > >(Params)",
    k.PAGED: "void flashinfer::BatchDecodeWithPagedKVCacheKernel<true, 2u, 8u, 16u, 8u, 4u>(Params)",
}  # fmt: skip
"""Names of kernels as other versions of libraries have them."""
ENGINE = re.compile(r"execute_context_\d+\(\d+\)_generation_(\d+)\(\d+\)")


def rename(job: Job, ranks: list[Rank]) -> list[Rank]:
    """Give stages, the rollout engine's ranges, kernels and files of Python functions other names."""
    for rank in ranks:
        for row in rank.host_rows:
            row.name = ENGINE.sub(r"decode[bs=\1 tok=\1]", NAMES.get(row.name, row.name))
        rank.device_rows = [row._replace(name=KERNELS.get(row.name, row.name)) for row in rank.device_rows]
        rank.frames = [(name.replace("verl/", "nemo_rl/algorithms/"), *frame) for name, *frame in rank.frames]
    return ranks


def drop_marks(job: Job, ranks: list[Rank]) -> list[Rank]:
    """Drop the profiler's step ranges."""
    for rank in ranks:
        rank.host_rows = [row for row in rank.host_rows if not STEP.fullmatch(row.name)]
    return ranks


def drop_all_ranges(job: Job, ranks: list[Rank]) -> list[Rank]:
    """Drop stages and step ranges."""
    return drop_marks(job, drop_stages(job, ranks))


def drop_last_step(job: Job, ranks: list[Rank]) -> list[Rank]:
    """End the recording of one rank a step earlier."""
    rank = dice_of(job, "unequal").choice(ranks)
    keep_between(rank, rank.steps[0][1] - 50_000, rank.steps[-1][1])
    rank.kept_steps = rank.kept_steps[:-1]
    return ranks


def drop_first_step(job: Job, ranks: list[Rank]) -> list[Rank]:
    """Begin the recording of one rank a step later: that step is the first of its recording, which does not count."""
    rank = dice_of(job, "unequal").choice(ranks)
    keep_between(rank, rank.steps[1][1] - 1_000, rank.now + 1)
    rank.kept_steps = rank.kept_steps[2:]
    return ranks


def drop_half_of_first_step(job: Job, ranks: list[Rank]) -> list[Rank]:
    """Begin the recording of every rank in the middle of its first step."""
    for rank in ranks:
        _, start, end = rank.steps[0]
        keep_between(rank, (start + end) // 2, rank.now + 1)
        rank.kept_steps = rank.kept_steps[1:]
    return ranks


def keep_between(rank: Rank, start: int, end: int) -> None:
    """Keep the rows that begin on the host between two times, and the device work that they launched."""
    rank.host_rows = [row for row in rank.host_rows if start <= row.start and row.end <= end]
    rank.calls = [call for call in rank.calls if start <= call[3] and call[4] <= end]
    rank.frames = [frame for frame in rank.frames if start <= frame[2] and frame[3] <= end]
    known = {frame[4] for frame in rank.frames}
    rank.frames = [(*frame[:5], frame[5] if frame[5] in known else 0) for frame in rank.frames]
    launched = {call[5] for call in rank.calls}
    rank.device_rows = [row for row in rank.device_rows if row.correlation in launched and row.end <= end]  # fmt: skip
    rank.now = min(rank.now, end)


def drop_rank(job: Job, ranks: list[Rank]) -> list[Rank]:
    """Drop one rank at which nothing is wrong, if there is one."""
    blamed = {rank for fault in job.faults for rank in fault.ranks or ()}
    healthy = [rank for rank in ranks if rank.rank not in blamed] or ranks
    lost = dice_of(job, "missing").choice(healthy)
    return [rank for rank in ranks if rank is not lost]


def write_all(job: Job, recorded: list[Rank], paths: list[Path]) -> dict[int, int]:
    """Leave the files as they are."""
    return {}


def cut_file(job: Job, recorded: list[Rank], paths: list[Path]) -> dict[int, int]:
    """Cut the file of one rank within the device rows of its last step or the step before, and count the steps that it lacks."""
    dice = dice_of(job, "truncated")
    index = dice.randrange(len(recorded))
    rank, path = recorded[index], paths[index]
    at = dice.randrange(1, 3)
    _, start, end = rank.steps[-at]
    after = start + (end - start) * 6 // 10
    row = next(work for work in sorted(rank.device_rows, key=lambda w: w.start) if work.start >= after)  # fmt: skip
    document = gzip.decompress(path.read_bytes()).decode()
    place = document.index(f'"correlation": {row.correlation}, ')
    path.unlink()
    path.with_suffix("").write_text(document[:place], encoding="utf-8")
    return {rank.rank: at}
