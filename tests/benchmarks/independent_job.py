"""The program of a simulated RL job, with faults that can be switched on.

A step generates, scores rewards, computes log-probabilities and values, updates the actor, and sends
the weights to the rollout. Without a fault it uses fused kernels, CUDA graphs for decoding, pinned
copies, and collectives that run beside compute.
"""

import random
from dataclasses import dataclass, field

from benchmarks.independent_world import COMM, COMPUTE, Engine, Group, Rank, Signal, Thread

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas"
SLOW_GEMM = "ampere_sgemm_128x64_tn"
FLASH = "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t> >(pytorch_flash::Flash_fwd_params)"
FLASH_BACK = "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<pytorch_flash::Flash_bwd_kernel_traits<128, 64, 128, 8, cutlass::bfloat16_t> >(pytorch_flash::Flash_bwd_params)"
NORM_BACK = "triton_red_fused_add_div_mul_native_layer_norm_backward_pow_sum_6"
ROPE_BACK = "triton_poi_fused_add_cat_neg_slice_backward_4"
SILU_BACK = "triton_poi_fused_mul_sigmoid_silu_backward_5"
NORM = "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0"
ROPE = "triton_poi_fused_add_cat_mul_neg_1"
SILU = "triton_poi_fused_mul_silu_2"
PLAIN = "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >, std::array<char*, 3ul> >(int, at::native::BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >, std::array<char*, 3ul>)"
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<c10::BFloat16, c10::BFloat16, float, 11, false, false>(c10::BFloat16*, c10::BFloat16 const*, int, int, int, bool const*, int, bool)"
SOFTMAX_BACK = "void (anonymous namespace)::softmax_warp_backward<float, c10::BFloat16, float, 11, false, false>(c10::BFloat16*, float const*, float const*, int, int, int, bool const*)"
LAYOUT = "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda(c10::BFloat16)#1}> >(int, at::native::gpu_kernel_impl_nocast)"
ADAM = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)1, false>, float const*, double, double, double>(at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>)"
REDUCE = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::NormTwoOps<float, float, float, float>, unsigned int, float, 4> >(at::native::ReduceOp<float, at::native::NormTwoOps<float, float, float, float>, unsigned int, float, 4>)"
SAMPLE = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>, unsigned int, long, 4> >(at::native::ReduceOp<float, at::native::ArgMaxOps<float>, unsigned int, long, 4>)"


@dataclass(frozen=True)
class World:
    """The size and the speeds of a job. All of it is drawn from the seed."""

    seed: int
    style: str
    ranks: int
    layers: int
    decodes: int
    copies: int
    steps: int
    scale: float
    contention: float
    rate: float
    stacks: bool
    sync_rows: bool


def draw_world(seed, style=None, ranks=None, rate=None):
    chance = random.Random(f"world {seed}")
    style = style or chance.choice(["ddp", "fsdp"])
    ranks = ranks or chance.choice([2, 2, 4] if style == "ddp" else [4, 4, 4, 8])
    return World(
        seed=seed,
        style=style,
        ranks=ranks,
        layers=chance.randint(3, 4) if ranks == 8 else chance.randint(4, 6),
        decodes=chance.randint(10, 16),
        copies=chance.randint(2, 5),
        steps=chance.randint(4, 5),
        scale=chance.uniform(1.3, 2.0),
        contention=chance.uniform(0.10, 0.25),
        rate=chance.uniform(90, 160) * (rate or 1.0),
        stacks=chance.random() < 0.5,
        sync_rows=chance.random() < 0.5,
    )


@dataclass
class Job:
    """A run of the world with these faults, and its records."""

    world: World
    faults: dict
    engine: Engine = field(default_factory=Engine)

    def __post_init__(self):
        world = self.world
        chance = random.Random(f"speeds {world.seed}")
        members = range(world.ranks)
        self.ranks = [
            Rank(
                self.engine,
                number,
                world.seed,
                chance.uniform(0.95, 1.05),
                chance.uniform(0.99, 1.01),
                world.contention,
            )
            for number in members
        ]
        for kind, name in (("slow_gpu_rank", "gpu"), ("slow_host_rank", "host")):
            if kind in self.faults:
                rank = self.ranks[self.faults["rank"]]
                setattr(rank, name, getattr(rank, name) * self.faults[kind])
        self.offsets = [round(chance.uniform(-2e6, 2e6)) for _ in members]
        self.groups = [Group(self.engine, "0", tuple(members), world.rate, world.seed)]
        if world.style == "fsdp":
            half = world.ranks // 2
            for index, part in enumerate((tuple(range(half)), tuple(range(half, world.ranks)))):
                group = Group(self.engine, str(index + 1), part, world.rate, world.seed)
                if index == 1 and "slow_link" in self.faults:
                    group.rate *= self.faults["slow_link"]
                self.groups.append(group)
        if world.style == "pipeline":
            for first in range(world.ranks - 1):
                for name in (f"f{first}", f"b{first}"):
                    self.groups.append(Group(self.engine, name, (first, first + 1), world.rate, world.seed))
        self.ends = [[] for _ in members]

    def simulate(self):
        for rank in self.ranks:
            self.engine.resume(Worker(self, rank).run())
        self.engine.run()
        return self

    def mean_step(self):
        """The mean step without the warm-up step, over ranks, in ns."""
        total = 0
        for rank, ends in zip(self.ranks, self.ends, strict=True):
            done = [max(end, rank.last_end.get(step, 0)) for step, end in enumerate(ends)]
            total += (done[-1] - done[0]) / (len(done) - 1)
        return total / len(self.ranks)


class Worker:
    """The program of one rank."""

    def __init__(self, job, rank):
        self.job, self.world, self.rank, self.faults = job, job.world, rank, job.faults
        pid = 4000 + rank.number
        self.main, self.autograd = Thread(rank, pid), Thread(rank, pid + 500)
        self.everyone = job.groups[0]
        self.shard = next((g for g in job.groups[1:] if rank.number in g.ranks), None)
        self.length = 1.0

    # structure

    def run(self):
        main, job = self.main, self.job
        usual = self.rank.host
        for step in range(self.world.steps):
            self.rank.step = step
            self.rank.host = usual * (1.8 if step == 0 else 1.0)
            self.rank.reseed("step")
            main.enter(f"ProfilerStep#{step + 3}", "user_annotation")
            yield from self.work_step()
            main.leave()
            job.ends[self.rank.number].append(job.engine.now)
            yield main.host(8)
        yield from main.sync_device()

    def within(self, name, body, python=None):
        """Run a part of the step in its range, and in its Python frame."""
        self.rank.reseed(name)
        if self.world.stacks and python:
            self.main.enter(python, "python_function")
        self.main.enter(name, "user_annotation")
        yield self.main.host(25)
        yield from body
        self.main.leave()
        if self.world.stacks and python:
            self.main.leave()

    def work_step(self):
        self.length = self.draw_length()
        yield from self.load()
        yield from self.edge()
        yield from self.within("gen", self.generate(), "verl/workers/fsdp_workers.py(890): generate_sequences")
        yield from self.edge()
        yield from self.within("reward", self.reward(), "verl/trainer/ppo/reward.py(142): compute_reward")
        yield from self.edge()
        yield from self.within(
            "old_log_prob", self.passes("old_log_prob", 2), "verl/workers/actor/dp_actor.py(301): compute_log_prob"
        )
        yield from self.within(
            "values", self.passes("values", 1), "verl/workers/critic/dp_critic.py(190): compute_values"
        )
        yield from self.edge()
        yield from self.within("update_actor", self.update(), "verl/workers/actor/dp_actor.py(370): update_policy")
        yield from self.within(
            "update_weights", self.send_weights(), "verl/workers/sharding_manager/fsdp_vllm.py(120): update_params"
        )
        if self.rank.step == self.faults.get("checkpoint_at"):
            yield from self.within(
                "save_checkpoint",
                self.checkpoint(),
                "verl/utils/checkpoint/fsdp_checkpoint_manager.py(88): save_checkpoint",
            )

    def draw_length(self):
        """The share of tokens of this rank in this step."""
        if "unequal_lengths" not in self.faults:
            return 1.0
        # The ranks together have as many tokens as without the fault.
        longest = random.Random(f"{self.world.seed} longest {self.rank.step}").randrange(self.world.ranks)
        share = self.world.ranks / (self.world.ranks - 1 + self.faults["unequal_lengths"])
        return share * (self.faults["unequal_lengths"] if longest == self.rank.number else 1.0)

    def silent(self, milliseconds, key):
        """Host time without any record."""
        noise = random.Random(f"{self.world.seed} {self.rank.number} {self.rank.step} {key}").gauss(1, 0.05)
        return round(milliseconds * 1e6 * max(0.5, noise))

    def edge(self):
        if "stage_edges" in self.faults:
            yield self.silent(self.faults["stage_edges"], "edge")
        yield self.main.host(30)

    # stages

    def load(self):
        main, faults = self.main, self.faults
        self.rank.reseed("load")
        main.enter("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "user_annotation")
        yield main.host(90)
        if "slow_loader" in faults:
            yield self.silent(faults["slow_loader"], "load")
        if faults.get("late_loader") and self.rank.number == faults["rank"]:
            yield self.silent(faults["late_loader"], "load")
        main.leave()
        for _ in range(3):
            yield from main.copy("H", 2_000_000)
        for _ in range(self.world.copies):
            yield from main.copy("H", 6_000_000, pinned="pageable_copies" not in faults)

    def generate(self):
        main, world = self.main, self.world
        main.enter("execute_context_8(4096)_generation_0(0)", "user_annotation")
        for layer in range(world.layers):
            yield from self.forward_layer("prefill", layer)
        main.leave()
        before = None
        for number in range(world.decodes + self.faults.get("short_batches", 0)):
            tail = number >= world.decodes
            self.rank.reseed("decode", number)
            requests = 2 if tail else 64
            main.enter(f"execute_context_0(0)_generation_{requests}({requests})", "user_annotation")
            yield from self.decode(number)
            main.leave()
            signal = yield from main.record_event()
            if before is not None:
                yield from main.sync_event(before)
            before = signal
        yield from main.copy("D", 500_000, block=True)

    def decode(self, number):
        """One token for each request: one CUDA graph, or one launch per kernel."""
        main, scale = self.main, self.world.scale
        kernels = [("aten::rms_norm", NORM, 5), ("aten::mm", GEMM, 11), ("vllm::attention", FLASH, 9)]
        kernels += [("aten::mm", GEMM, 8), ("vllm::silu_and_mul", SILU, 4), ("aten::mm", GEMM, 14)]
        kernels = kernels * self.world.layers + [("aten::mm", GEMM, 30), ("aten::argmax", SAMPLE, 12)]
        if "python_rollout" in self.faults:
            yield self.silent(self.faults["python_rollout"], f"decode {number}")
        yield main.host(60)
        yield from main.copy("H", 4096)
        if "eager_decode" in self.faults:
            for op, name, median in kernels:
                yield main.host(self.faults["eager_decode"])
                yield from main.kernel(op, name, median * scale)
        else:
            yield from main.graph([(name, median * scale) for _, name, median in kernels])

    def reward(self):
        main = self.main
        yield main.host(250)
        if "cpu_reward" in self.faults:
            yield self.silent(self.faults["cpu_reward"], "reward")
        if "drift" in self.faults:
            yield self.silent(self.faults["drift"] * (self.rank.step + 1), "drift")
        yield from main.copy("H", 300_000)
        yield from main.kernel("aten::mul", PLAIN, 8)
        if "gc_pauses" in self.faults:
            yield from self.collect_garbage("reward")

    def collect_garbage(self, place):
        chance = random.Random(f"{self.world.seed} gc {place} {self.rank.step} {self.rank.number}")
        if chance.random() < 0.5:
            yield round(self.faults["gc_pauses"] * 1e6 * chance.uniform(0.8, 1.2))
        else:
            yield 1

    def passes(self, stage, count):
        for number in range(count):
            for layer in range(self.world.layers):
                yield from self.forward_layer(f"{stage} {number}", layer)
            yield from self.main.kernel(
                "aten::log_softmax", "triton_per_fused__log_softmax_gather_3", 60 * self.world.scale
            )
            if "gc_pauses" in self.faults:
                yield from self.collect_garbage(f"{stage} {number}")

    def forward_layer(self, stage, layer, sharded=True):
        main, faults = self.main, self.faults
        self.rank.reseed(stage, layer)
        if self.world.style == "fsdp" and sharded:
            yield from self.gather(stage, layer)
        yield from self.forward_kernels(main)
        for number in range(3):
            yield from main.kernel("aten::mean", REDUCE, 6)
            if number < faults.get("metric_items", 0):
                yield from main.item()
        if "sync_layers" in faults:
            yield from main.sync_device()
        if "allocator" in faults and layer % 2 == 0 and stage.startswith("update"):
            yield from main.allocate("cudaFree", faults["allocator"])
            yield from main.allocate("cudaMalloc", faults["allocator"] / 2)
        if self.world.stacks and self.rank.random.random() < 0.2:
            main.enter("torch/nn/modules/module.py(1747): _call_impl", "python_function")
            yield main.host(6)
            main.leave()

    def product(self, thread, median, backward=False):
        """A matrix product. Its shapes follow from its length, as equal shapes take equal time."""
        single = self.faults.get("single_precision")
        kind, name = ("float", SLOW_GEMM) if single else ("c10::BFloat16", GEMM)
        tokens, width = round(1024 * self.length), round(4096 * median / 45)
        dims = [[tokens, width], [width, 4096]] if backward else [[tokens, 4096], [4096, width]]
        shapes = {"Input Dims": dims, "Input type": [kind, kind]}
        yield from thread.kernel("aten::mm", name, median * self.world.scale * self.length * (single or 1), shapes)

    def forward_kernels(self, thread):
        scale = self.world.scale * self.length
        yield from thread.kernel("aten::rms_norm", NORM, 14 * scale)
        yield from self.product(thread, 95)
        yield from self.sync_inside(thread, 3)
        if "layout_copies" in self.faults:
            for _ in range(4):
                dims, half = [4, 32, 2048, 128], ["c10::BFloat16", "c10::BFloat16", "Scalar"]
                shapes = {"Input Dims": [dims, dims, []], "Input type": half}
                shapes["Input Strides"] = [[8388608, 262144, 128, 1], [8388608, 128, 4096, 1], []]
                for op in ("aten::contiguous", "aten::clone"):
                    thread.enter(op, args={"Input Dims": [dims, []], "Input type": half[1:]})
                yield from thread.kernel("aten::copy_", LAYOUT, self.faults["layout_copies"] * scale, shapes)
                thread.leave()
                thread.leave()
        yield from thread.kernel("RotaryEmbedding", ROPE, 12 * scale)
        yield from self.attention(thread)
        yield from self.sync_inside(thread, 2)
        yield from self.product(thread, 45)
        yield from thread.kernel("aten::rms_norm", NORM, 14 * scale)
        yield from self.product(thread, 150)
        yield from self.sync_inside(thread, 4)
        yield from thread.kernel("SiluAndMul", SILU, 22 * scale)
        yield from self.product(thread, 85)

    def sync_inside(self, thread, level):
        if self.faults.get("sync_layers", 0) >= level:
            yield from thread.sync_device()

    def attention(self, thread):
        scale = self.world.scale * self.length
        eager = self.faults.get("eager_attention")
        if not eager:
            thread.enter("aten::scaled_dot_product_attention")
            yield from thread.kernel("aten::_flash_attention_forward", FLASH, 70 * scale)
            thread.leave()
            return
        heads, length = [32, 2048, 2048], scale * eager
        half = ["c10::BFloat16", "c10::BFloat16"]
        first = {"Input Dims": [[32, 2048, 128], [32, 128, 2048]], "Input type": half}
        last = {"Input Dims": [heads, [32, 2048, 128]], "Input type": half}
        softmax = {"Input Dims": [heads, [], []], "Input type": [half[0], "Scalar", "Scalar"]}
        yield from thread.kernel("aten::bmm", GEMM, 40 * length, first)
        yield from thread.kernel("aten::div", PLAIN, 30 * length, {"Input Dims": [heads, []], "Input type": half})
        yield from thread.kernel("aten::add", PLAIN, 35 * length, {"Input Dims": [heads, heads], "Input type": half})
        softmax["Concrete Inputs"] = ["", "-1", "False"]
        yield from thread.kernel("aten::_softmax", SOFTMAX, 45 * length, softmax)
        yield from thread.kernel("aten::bmm", GEMM, 41 * length, last)

    # training

    def gather(self, stage, layer):
        """Gather the weights of a layer. Without a fault, the next layer's gather has begun before."""
        main, ahead = self.main, "late_gathers" not in self.faults
        wanted = [layer] if not ahead else [0, 1] if layer == 0 else [layer + 1]
        if layer == 0:
            self.gathered = {}
        for index in wanted:
            if index < self.world.layers:
                done = yield from main.collective(
                    self.shard,
                    "_allgather_base",
                    self.layer_bytes(),
                    (self.rank.step, stage, "gather", index),
                    after=not ahead,
                )
                self.gathered[index] = done
        yield from main.wait_event(self.gathered[layer], COMPUTE)

    def layer_bytes(self):
        return 40_000_000

    def update(self):
        faults, main = self.faults, self.main
        if "offload" in faults:
            yield from self.move_state("H")
        if self.world.style == "pipeline":
            yield from self.pipeline()
        else:
            for number in range(2):
                yield from self.micro_batch(number, last=number == 1)
        yield from self.step_optimizer()
        if "offload" in faults:
            yield from self.move_state("D")
        for _ in range(2):
            yield from main.item()

    def micro_batch(self, number, last):
        main, faults = self.main, self.faults
        stage = f"update {number}"
        main.enter(f"micro_batch{number}", "user_annotation")
        for layer in range(self.world.layers):
            yield from self.forward_layer(stage, layer)
        yield from main.kernel("aten::log_softmax", "triton_per_fused__log_softmax_gather_3", 60 * self.world.scale)
        if "gc_pauses" in faults:
            yield from self.collect_garbage(stage)
        yield from self.backward(stage, last)
        main.leave()

    def backward(self, stage, last):
        """Run the backward pass on the thread of autograd. The main thread waits."""
        main, done = self.main, Signal()
        if self.world.stacks:
            main.enter("torch/autograd/graph.py(825): _engine_run_backward", "python_function")
        yield main.host(30)
        main.engine.resume(self.backward_thread(stage, last, done))
        yield done
        yield main.host(30)
        if self.world.stacks:
            main.leave()

    def backward_thread(self, stage, last, finished):
        thread, world, faults = self.autograd, self.world, self.faults
        yield thread.host(25)
        reductions, late = [], "late_reduction" in faults
        for layer in reversed(range(world.layers)):
            self.rank.reseed(stage, "backward", layer)
            around = ("autograd::engine::evaluate_function: CheckpointFunctionBackward", "CheckpointFunctionBackward")
            around = around if "recompute" in faults else ()
            for name in around:
                thread.enter(name)
            if around:
                yield from self.forward_kernels(thread)
            thread.enter("autograd::engine::evaluate_function: MmBackward0")
            yield from self.backward_kernels(thread)
            for _ in (*around, "MmBackward0"):
                thread.leave()
            if not late:
                reductions += yield from self.reduce_layer(stage, layer, last)
        if late:
            for layer in reversed(range(world.layers)):
                reductions += yield from self.reduce_layer(stage, layer, last)
        for signal in reductions:
            yield from thread.wait_event(signal, COMPUTE)
        finished.fire()

    def reduce_layer(self, stage, layer, last):
        """Reduce the gradients of a layer: of each micro-batch with shards, else of the last one."""
        thread, tag = self.autograd, (self.rank.step, stage, "reduce", layer)
        if self.world.style == "pipeline" or (self.world.style == "ddp" and not last):
            return []
        if self.world.style == "fsdp":
            done = yield from thread.collective(self.shard, "_reduce_scatter_base", self.layer_bytes(), tag)
            return [done]
        count = self.faults.get("small_collectives", 1)
        volume = self.layer_bytes()
        found = []
        for part in range(count):
            done = yield from thread.collective(self.everyone, "allreduce", volume // count, (*tag, part))
            found.append(done)
        return found

    def backward_kernels(self, thread):
        scale, eager = self.world.scale * self.length, self.faults.get("eager_attention")
        for median in (85, 85, 150, 150):
            yield from self.product(thread, median, backward=True)
        yield from thread.kernel("SiluAndMulBackward", SILU_BACK, 40 * scale)
        yield from thread.kernel("aten::rms_norm_backward", NORM_BACK, 30 * scale)
        for median in (45, 45):
            yield from self.product(thread, median, backward=True)
        if eager:
            for name, median in (
                (GEMM, 40),
                (GEMM, 40),
                (SOFTMAX_BACK, 50),
                (PLAIN, 35),
                (PLAIN, 30),
                (GEMM, 40),
                (GEMM, 40),
            ):
                op = {GEMM: "aten::bmm", SOFTMAX_BACK: "aten::_softmax_backward_data", PLAIN: "aten::mul"}[name]
                yield from thread.kernel(op, name, median * scale * eager)
        else:
            yield from thread.kernel("aten::_flash_attention_backward", FLASH_BACK, 170 * scale)
        yield from thread.kernel("RotaryEmbeddingBackward", ROPE_BACK, 14 * scale)
        for median in (95, 95):
            yield from self.product(thread, median, backward=True)

    def pipeline(self):
        """Forward passes of all micro-batches, then backward passes, over the ranks as stages."""
        rank, world, main = self.rank, self.world, self.main
        groups = {group.name: group for group in self.job.groups}
        here, last = rank.number, world.ranks - 1
        for direction in ("f", "b"):
            source = here - 1 if direction == "f" else here
            target = here if direction == "f" else here - 1
            for number in range(6):
                tag = (rank.step, direction, number)
                if 0 <= source < last:
                    done = yield from main.collective(
                        groups[f"{direction}{source}"], "recv", 30_000_000, tag, after=False
                    )
                    yield from main.wait_event(done, COMPUTE)
                stage = f"update {number}"
                if direction == "f":
                    for layer in range(2):
                        yield from self.forward_layer(stage, layer)
                else:
                    yield from self.backward_pair(stage)
                if 0 <= target < last:
                    yield from main.collective(groups[f"{direction}{target}"], "send", 30_000_000, tag)

    def backward_pair(self, stage):
        for layer in range(2):
            self.rank.reseed(stage, "backward", layer)
            yield from self.backward_kernels(self.main)

    def step_optimizer(self):
        main, world = self.main, self.world
        self.rank.reseed("optimizer")
        yield from main.kernel("aten::linalg_vector_norm", REDUCE, 45)
        done = yield from main.collective(self.everyone, "allreduce", 8, (self.rank.step, "norm"))
        yield from main.wait_event(done, COMPUTE)
        main.enter("Optimizer.step#AdamW.step", "user_annotation")
        yield main.host(60)
        slow = self.faults.get("slow_optimizer")
        if slow:
            steps = ("mul_", "lerp_", "mul_", "addcmul_", "sqrt", "div", "add_", "addcdiv_")
            for _ in range(world.layers * slow):
                for op in steps:
                    yield from main.kernel(f"aten::{op}", PLAIN, 1500 * world.scale / (8 * slow * world.layers) + 3)
        else:
            main.enter("aten::_fused_adamw_")
            for _ in range(4):
                yield from main.kernel("aten::_fused_adamw_", ADAM, 150 * world.scale)
            main.leave()
        main.leave()

    def move_state(self, direction):
        """Move the optimizer's state between host and GPU, through pinned memory."""
        for _ in range(4):
            yield from self.main.copy(direction, self.faults["offload"])
        yield from self.main.sync_device()

    def send_weights(self):
        main, faults = self.main, self.faults
        count = faults.get("weight_sync")
        if not count:
            for part in range(2):
                done = yield from main.collective(
                    self.everyone, "broadcast", 20_000_000, (self.rank.step, "weights", part)
                )
            yield from main.wait_event(done, COMPUTE)
            return
        for part in range(count):
            done = yield from main.collective(
                self.everyone, "broadcast", 40_000_000 // count, (self.rank.step, "weights", part)
            )
            yield from main.wait_event(done, COMPUTE)
            yield from main.sync_stream(COMPUTE)
            yield main.host(40)
        yield from main.sync_stream(COMM)

    def checkpoint(self):
        main = self.main
        for _ in range(4):
            yield from main.copy("D", 20_000_000, pinned=False)
        yield self.silent(self.faults["checkpoint"], "checkpoint")
