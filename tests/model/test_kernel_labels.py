"""Short forms of kernels' names, which people recognise; names as compilers write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.model.text.kernel_labels import MAX_FUNCTION, shorten_kernel_name

AT = "void at::native::"
LAMBDA = "(at::TensorIteratorBase&)::{lambda()#2}::operator()() const"


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (f"{AT}(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16, float>(c10::BFloat16*)", "softmax (cunn_SoftMaxForward, bf16)"),
        (f"{AT}vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, int>(int)", "add (vectorized_elementwise_kernel, fp32)"),
        (f"{AT}vectorized_elementwise_kernel<4, at::native::FillFunctor<int>, int>(int)", "fill (vectorized_elementwise_kernel, int32)"),
        (f"{AT}elementwise_kernel<128, 2, at::native::gpu_kernel_impl<at::native::direct_copy_kernel_cuda{LAMBDA}> >(int)", "copy (elementwise_kernel, int32)"),
        (f"{AT}reduce_kernel<512, 1, at::native::ReduceOp<double, at::native::func_wrapper_t<double, at::native::sum_functor<double> > > >(int)", "sum (reduce_kernel, fp64)"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_tn_align8>(x::Params)", "matrix product (cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_6…, bf16)"),
        ("volta_sgemm_64x64_nt", "matrix product (volta_sgemm_64x64_nt, fp32)"),
        ("cudnn_infer_volta_scudnn_128x64_relu_small_nn_v1", "convolution (cudnn_infer_volta_scudnn_128x64_relu_small_nn_v1, fp32)"),
        ("void cudnn::bn_bw_1C11_kernel_new<float, float>(float)", "batch norm backward (bn_bw_1C11_kernel_new, fp32)"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce (ncclDevKernel_AllReduce_Sum_bf16_RING_LL, bf16)"),
        ("void flash::flash_fwd_kernel<Traits<128> >(Params)", "attention (flash_fwd_kernel)"),
        ("triton_poi_fused_add_addmm_silu_3", "fused add addmm silu (triton_poi_fused_add_addmm_silu_3)"),
        ("void vllm::scaled_quant_kernel<c10::BFloat16>(c10::BFloat16*)", "scaled_quant_kernel"),
        (f"{AT}vectorized_elementwise_kernel<8, at::native::GeluBackwardCUDAKernelImpl{LAMBDA}, c10::BFloat16>(int)", "gelu backward (vectorized_elementwise_kernel, bf16)"),
        (f"{AT}vectorized_elementwise_kernel<4, at::native::CUDAFunctorOnOther_add<float>, int>(int)", "add (vectorized_elementwise_kernel, fp32)"),
        (f"{AT}vectorized_elementwise_kernel<8, at::native::addcmul_cuda_kernel{LAMBDA}, c10::BFloat16>(int)", "addcmul (vectorized_elementwise_kernel, bf16)"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26", "attention backward (cudnn_generated_fort_native_sdpa_sm90_flash_bpr…, fp16)"),
        (f"{AT}(anonymous namespace)::multi_tensor_apply_kernel<at::native::TensorListMetadata<1>, at::native::(anonymous namespace)::BinaryOpScalarFunctor<c10::BFloat16, 1>, std::multiplies<float>, float>(int)", "foreach mul (multi_tensor_apply_kernel, bf16)"),
        (f"{AT}multi_tensor_apply_kernel<at::native::FusedOptimizerTensorListMetadata<4>, at::native::FusedAdamMathFunctor<c10::BFloat16, 4> >(int)", "foreach fused adam (multi_tensor_apply_kernel, bf16)"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>(float const*)", "split matrix product, sum (splitKreduce_kernel, fp32)"),
        ("aten::mul_", "aten::mul_"),
        ("torch::autograd::AccumulateGrad", "torch::autograd::AccumulateGrad"),
        ("replaced: aten::mul_, aten::sqrt → aten::_fused_adamw_", "replaced: aten::mul_, aten::sqrt → aten::_fused_adamw_"),
        ("gelu", "gelu"),
        ("", ""),
    ],
)  # fmt: skip
def test_known_names(name, short):
    assert shorten_kernel_name(name) == short


@given(st.text(max_size=300))
def test_any_text_has_a_bounded_form(name):
    assert len(shorten_kernel_name(name)) <= max(len(name), MAX_FUNCTION + 60)


def test_a_name_without_end_is_read_in_part():
    name = "void at::native::vectorized_elementwise_kernel<" + "(<" * 1_000_000
    assert len(shorten_kernel_name(name)) < 100
