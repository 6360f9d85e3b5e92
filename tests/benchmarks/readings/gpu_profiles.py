"""What a person read of real programs with GPU rows."""

from __future__ import annotations

from benchmarks.readings.gpu import GpuReading

HTA, LENS = "data/chrome/hta/", "data/chrome/tracelens/"
MORE, NSYS = "more/chrome/", "data/nsys/"
RESNET = "data/chrome/kineto_tb_plugin/samples/resnet50_num_workers_"

START_UP, NONE = ("start-up",), ("",)
IN_PROGRESS = "in progress when the recording began"

GPU_READINGS = (
    GpuReading(
        path=HTA + "ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
        steps=(103, 104, 105), rules=("no-tensor-cores",), place="convolutions",
        why="V100, float32: scudnn and sgemm kernels take 60 % of a GPU that is never idle; the host ran ahead in 101 and 102",
    ),
    GpuReading(
        path=HTA + "nccl_parser_config/nccl_data.json.gz",
        steps=(5, 6), rules=("launch-bound",), place="forward",
        why="kernels of 43 µs, the GPU idle between them while the host is in ops of the forward pass",
    ),
    GpuReading(
        path=HTA + "trace_diff/control/control.json.gz",
        steps=tuple(range(1010, 1015)), rules=("launch-bound", "exposed-communication"), place="ward",
        why="all-to-all alone for 20 % of the step, which half batches may hide in part; idle is 15 %, most in backward",
    ),
    GpuReading(
        path=HTA + "negative_queue_length_values_check/rank0.json.gz",
        steps=(551, 552, 553, 554), rules=("low-gpu-utilization",), place="launched but not started",
        why="63 of the 64 % in which the GPU idles come after the launch of what follows, 12 to 176 ms ahead: not the host",
    ),
    GpuReading(
        path=HTA + "trace_filter/sampled_rank-0.json.gz",
        steps=(551, 552), rules=("low-gpu-utilization", "exposed-communication"),
        mentions=("rows were removed", "launched but not started"),
        why="idle 55 %, of which 32 % come after the launch; one of 70 numbers of operators is left: the file is a sample",
    ),
    GpuReading(
        path=HTA + "trace_filter/sampled_rank-1.json.gz",
        steps=(551, 552), rules=("host-silence", "low-gpu-utilization", "exposed-communication"),
        mentions=("rows were removed",),
        why="idle 53 %, exposed all-to-all 25 %; the file is a sample, so no one cause of the idle time is certain",
    ),
    GpuReading(
        path=HTA + "triton_example/triton_example.json.gz",
        steps=(1,), rules=("low-gpu-utilization", "host-silence"), place="cudaDeviceSynchronize",
        why="one kernel of 1.8 µs, then 13.3 s without any row after cudaDeviceSynchronize",
    ),
    GpuReading(
        path=RESNET + "0/worker0.1623143089861.pt.trace.json.gz",
        steps=tuple(range(6, 11)), rules=("data-loader-wait",), place="40 %",
        why="the host is in the loader's __next__ for 40 % of the step, with no worker",
        argued=(
            (
                "in the largest idle time (62.34 ms) the host is in {('data loader', 'aten::copy_')}",
                "the table says what it was in halfway: the copy of a batch inside the loader",
            ),
        ),
    ),
    GpuReading(
        path=RESNET + "0/worker0.1623143566756.pt.trace.json.gz",
        steps=tuple(range(17, 22)), rules=("launch-bound",), place="1,462 kernels",
        why="of 152 ms the host is in ops and the loader for 136 and waits for 3, the GPU works for 100: faster convolutions alone bring nothing",
    ),
    GpuReading(
        path=RESNET + "4/worker0.1623212756351.pt.trace.json.gz",
        steps=tuple(range(6, 11)), rules=("launch-bound",), place="1,478 kernels",
        why="four workers: the loader is hidden; of 126 ms the host is in ops for 107 and waits for 4, the GPU works for 101",
    ),
    GpuReading(
        path=RESNET + "4/worker0.1623213129365.pt.trace.json.gz",
        steps=tuple(range(17, 22)), rules=("launch-bound",), place="1,478 kernels",
        why="as the capture before; step 17 takes 207 ms, the others 118 to 134",
    ),
    GpuReading(
        path=LENS + "b200/eager_trace.json.gz", rules=("launch-bound",), place="gpt_oss.py:276",
        why="694 kernels of 12.6 µs in 87 ms, launched one by one under forward",
    ),
    GpuReading(
        path=LENS + "h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", steps=(6,), rules=("layout-copies",),
        why="busy 91 %; 2.77 ms of copies by contiguous(); a quarter of the GPU's time was launched before the recording",
    ),
    GpuReading(
        path=LENS + "h100/gaunernst_bert-small-uncased__1016001.json.gz",
        steps=(6,), rules=("launch-bound",), place="modeling_bert.py", why="60 kernels of 5 µs in 4.4 ms",
    ),
    GpuReading(
        path=LENS + "mi300/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", steps=(6,), rules=("layout-copies",),
        why="as on H100: busy 91 %, 1.45 ms of copies by contiguous(), a quarter launched before the recording",
    ),
    GpuReading(
        path=LENS + "mi210/gpu_only_trace/gpu_only_trace.json.gz", begin="device", rules=NONE,
        why="busy 89 %, gaps of a few µs: nothing to name",
    ),
    GpuReading(
        path=LENS + "inference/sglang_decode/sglang_Qwen3-8B_decode.json.gz",
        start_up=(463, 464), rules=("start-up", ""), mentions=(IN_PROGRESS,),
        why="a blocking copy of 463 of 474 ms was in progress when the recording began, and waits for work before it; then busy 93 %",
    ),
    GpuReading(
        path=LENS + "inference/vllm_decode_full/graph_execution.json.gz", begin="device", rules=NONE,
        why="one graph, the GPU is never idle",
    ),
    GpuReading(
        path=LENS + "inference/xdit_sd_3.5/profile_trace_rank_0.json.gz",
        steps=(3,), rules=("launch-bound",), place="pipeline_stable_diffusion_3.py",
        why="8,042 kernels of 88 µs under compiled graphs that take 875 ms on the host; gaps of 0.1 to 1 ms add to 298 of 482 ms idle",
    ),
    GpuReading(path=LENS + "torch_compile_triton/trace.json.gz", rules=NONE, why="busy 97 %"),
    GpuReading(
        path=HTA + "critical_path/simple_add/benchmark_result_493459_1694039959_trace.json.gz",
        start_up=(40_700, 41_150), rules=START_UP, place="cudaDeviceGetStreamPriorityRange",
        why="41 s in which the driver starts and loads code, 0.05 s of work",
    ),
    GpuReading(
        path=MORE + "hta/critical_path/alexnet/benchmark_result_2869224_1695835535_trace.json.gz",
        start_up=(43_200, 43_300), rules=START_UP, place="cudaDeviceGetStreamPriorityRange",
        why="as simple_add: 29.9 s of context creation, 6.6 s cudaFree, 3.1 s first launch, 2.0 s cudaMalloc; 0.07 s of work",
    ),
    GpuReading(
        path=MORE + "tracelens/inference/sglang_prefilldecode/sglang_Qwen3-8B_prefilldecode.json.gz",
        start_up=(493, 494), rules=("start-up", ""), mentions=(IN_PROGRESS,),
        why="a copy of 493 of 987 ms was in progress when the recording began; then the GPU is never idle",
    ),
    GpuReading(
        path=MORE + "tracelens/inference/vllm_prefilldecode_piecewise/graph_execution.json.gz",
        begin="device", rules=NONE, why="the GPU is never idle",
    ),
    GpuReading(
        path=MORE + "tracelens/h100/google_owlv2-large-patch14-ensemble__1016001.json.gz",
        steps=(6,), rules=("data-loader-wait",), place="pt_utils.py",
        why="the GPU waits half of the step for the processing of images inside the loader, in this process",
    ),
    GpuReading(
        path=MORE + "tracelens/h100/facebook_timesformer-base-finetuned-k400__1016002.json.gz",
        steps=(6,), rules=("host-silence",), place="video_classification.py:129",
        why="216 of 383 ms in which Python prepares the video before anything is launched; then busy 99 %, half of it unfused attention",
    ),
    GpuReading(
        path=MORE + "hta/df_index_resolver/df_index_resolver.json.gz",
        steps=(3, 4, 5, 6), rules=("launch-bound",),
        place="3,470 kernels of 35.8 µs on average one by one, most in CompiledFunctionBackward",
        why="of 145 ms idle a step 107 are gaps below 1 ms that end with a launch made in them, 6 of those in Optimizer.step; the host is in the compiled backward for 77",
    ),
    GpuReading(
        path=MORE + "hta/critical_path/cuda_event_sync/event_sync_trace.json.gz",
        steps=(100,), rules=START_UP, place="aten::empty",
        why="a toy: 2.2 of 3.2 ms in the first allocation, four kernels",
    ),
    GpuReading(
        path=MORE + "hta/amd_trace/mi250_minitoy_train_ROCm6_2_kineto.json.gz",
        steps=(1,), rules=START_UP, place="hipLaunchKernel",
        why="a toy: 6.5 of 9.3 ms in the first launch of one kernel, which loads its code",
    ),
    GpuReading(
        path=MORE + "param/linear_kineto.json.gz",
        loop="Optimizer.step#SGD.step", steps=tuple(range(1, 40)), rules=("launch-bound",), mentions=("start-up takes 98[12] ms",),
        why="995 of 2,004 ms until the context is there (cudaFree 981 ms); then 40 steps of short kernels, 37 % busy",
    ),
    GpuReading(
        path=MORE + "param/resnet_kineto.json.gz",
        loop="Optimizer.step#SGD.step", steps=tuple(range(2, 30)), rules=("data-loader-wait", "start-up"),
        why="the loader takes 8.2 of 16.2 s, half of it where the GPU has nothing to do; start-up (2.2 s) lies before the second step",
    ),
    GpuReading(
        path=MORE + "particle_transformer/single_epoch_forward_pass_batch_size_256.json.gz",
        start_up=(299, 303), rules=START_UP, place="delta_r2",
        why="two kernels are compiled while the program runs, 149 and 147 ms each, in the first call of delta_r2; then busy 93 %",
    ),
    GpuReading(
        path=MORE + "switch_transformers/trace.json.gz", start_up=(500, 530), rules=START_UP, place="cudaLaunchKernel",
        why="the first launch takes 347 of 593 ms, first launches of seven more kernels 10 to 24 ms each: code is loaded on first use",
    ),
    GpuReading(
        path=NSYS + "GindaChen_nsys-ai/mfu_2gpu_before.sqlite", begin="own", rules=NONE,
        why="two GPUs busy 90 %; gaps of 10 µs to 4 ms without one cause",
    ),
    GpuReading(
        path=NSYS + "GindaChen_nsys-ai/mfu_2gpu_after.sqlite", begin="own", rules=NONE,
        why="one capture: that rank 0 comes later (13.6 ms, of which one cudaMemsetAsync 4.4) cannot be told from chance",
    ),
    GpuReading(path=NSYS + "GindaChen_nsys-ai/healthy_1pct.sqlite", begin="device", rules=NONE, why="busy 99 %"),
    GpuReading(path=NSYS + "GindaChen_nsys-ai/healthy_judged_1pct.sqlite", begin="device", rules=NONE, why="busy 99 %"),
    GpuReading(
        path=NSYS + "GindaChen_nsys-ai/mock.sqlite", start_up=(213, 236), rules=START_UP,
        argued=(("most time in copy", "both kernels run during start-up; one copy follows it"),
                ("no idle time of 0.65 ms", "0.65 ms are left of 236 after start-up")),
        why="204 of 236 ms until the first launch, which takes 17.8 ms, as does the second; two kernels of 4 µs",
    ),
    GpuReading(
        path="more/nsys/flameox/nsight-2025.5.2.sqlite", start_up=(94.7, 95.0), rules=START_UP, mentions=("--(capture-range|delay)",),
        why="94.8 of 95.1 ms in which the driver makes a context; 3 kernels and 2 graphs of 7 µs in all",
    ),
    GpuReading(
        path=NSYS + "frasertajima_WeatherBench2/report1.sqlite", kinds=("start-up",), start_up=(129.5, 131),
        rules=START_UP, place="cudaFree",
        why="119 of 131 ms in cudaFree, which starts the runtime; the work is one memset",
    ),
)  # fmt: skip
