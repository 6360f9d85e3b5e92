"""Names of kernels as they stand in real traces, and how long the work takes that they do."""

from __future__ import annotations

FLOP_PER_NS = 6.0e5
FP32_FLOP_PER_NS = 5.5e4
UNALIGNED_FLOP_PER_NS = 2.4e5
HBM_BYTES_PER_NS = 2.6e3
PINNED_BYTES_PER_NS = 25.0
PAGEABLE_BYTES_PER_NS = 6.0
KERNEL_START_NS = 2_500

HIDDEN, VOCAB, ODD_VOCAB = 4096, 32_000, 32_003

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas"
ALIGN1 = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_64x3_tn_align1>(cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_64x3_tn_align1::Params)"
SGEMM = "ampere_sgemm_128x128_tn"
CONV = "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_stage4_warpsize2x2x1_g1_tensor16x8x16_execute_kernel__5x_cudnn"
CONV32 = "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nhwckrsc_nchw_tilesize128x128x8_stage3_warpsize2x2x1_g1_ffma_aligna4_alignc4_execute_kernel__5x_cudnn"
FLASH = "void flash::flash_{}_kernel<Flash_{}_kernel_traits<128, 64, 64, 8, false, cutlass::bfloat16_t> >(Flash_params)"
NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float, true>(int, float, c10::BFloat16 const*, c10::BFloat16 const*, c10::BFloat16 const*, float*, float*, c10::BFloat16*)"
VECTORIZED = "void at::native::vectorized_elementwise_kernel<4, {0}, std::array<char*, {1}ul> >(int, {0}, std::array<char*, {1}ul>)"
ADD = VECTORIZED.format("at::native::CUDAFunctor_add<c10::BFloat16>", 3)
MUL = VECTORIZED.format(
    "at::native::BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >", 3
)
SILU = "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::silu_kernel(at::TensorIteratorBase&)::{lambda()#1}::operator()() const::{lambda()#4}::operator()() const::{lambda(c10::BFloat16)#1}, std::array<char*, 2ul> >(int)"
COPY = "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#12}::operator()() const::{lambda(c10::BFloat16)#1}>(at::TensorIteratorBase&)>(int)"
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<c10::BFloat16, c10::BFloat16, float, 11, false, false>(c10::BFloat16*, c10::BFloat16 const*, int, int, int, bool const*, int, bool)"
CROSS_ENTROPY = "linear_cross_entropy_fwd_kernel"
CROSS_ENTROPY_BACKWARD = "linear_cross_entropy_bwd_kernel"
REDUCE = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::NormTwoOps<float, float, float>, unsigned int, float, 4> >(at::native::ReduceOp<float>)"
MULTI = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::{}>(at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>)"
PAGED = "void vllm::paged_attention_v2_kernel<__nv_bfloat16, __nv_bfloat16, 128, 16, 128, 512>(float*, float*, __nv_bfloat16*)"
DECODE_GEMM = "nvjet_tst_64x8_64x16_4x1_v_bz_TNT"
RMS = "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, c10::BFloat16*, c10::BFloat16 const*, float, int, int)"
ACT = "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel<c10::BFloat16> >(c10::BFloat16*, c10::BFloat16 const*, int)"
SAMPLE = "void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<float, 4>(int, at::PhiloxCudaState)"

DECODE = (
    (RMS, 0.06), (DECODE_GEMM, 0.2), (PAGED, 0.16), (DECODE_GEMM, 0.14), (DECODE_GEMM, 0.34), (ACT, 0.1),
)  # fmt: skip
"""The kernels of one decode iteration and their shares of its time."""


def matmul_ns(rows: int, inner: int, columns: int, rate: float = FLOP_PER_NS) -> float:
    """How long a product takes."""
    return KERNEL_START_NS + 2 * rows * inner * columns / rate


def traffic_ns(size_bytes: float) -> float:
    """How long a kernel takes that reads and writes so many bytes."""
    return KERNEL_START_NS + size_bytes / HBM_BYTES_PER_NS
