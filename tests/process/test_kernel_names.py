"""Names of kernels as the libraries write them: with tensor cores, without, or silent."""

import pytest

from tracekit.process.ops.kernel_names import (
    classify_matrix_unit,
    is_gemm_kernel,
    is_plain_convolution,
    parse_loaded_elements,
)

TENSOR = (
    "volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_nn",
    "volta_h884gemm_64x128_ldg8_nn",
    "turing_fp16_s1688gemm_fp16_128x64_ldg8_f2f_nn",
    "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_nn",
    "ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_relu_f2f_stages_64x6_tn",
    "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_16x4_nt_align1>(Params)",
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_64x2_tn_align8>(Params)",
    "cutlass_tensorop_s1688tf32gemm_256x128_16x3_nn_align4",
    "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize96x64x32_stage4_warpsize2x2x1_tensor16x8x16_kernel",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
    "sm80_xmma_gemm_tf32f32_tf32f32_f32_tn_n_tilesize32x32x64_tensor16x8x8_execute_kernel",
    "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT",
    "nvjet_sm90_hss_320x128_64x3_2x1_v_bz_coopB_NNN",
    "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT16x16x256_MI16x16x1_SN_LDSB1",
    "Cijk_Ailk_Bljk_BBS_BH_MT256x112x32_MI16x16x16x1_SN_1LDSB0",
    "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x256x32_wt32x32x8",
    "_ZN2ck16tensor_operation6device12kernel_gemm_xdl_cshuffle_v3",
)
PLAIN = (
    "volta_sgemm_128x32_nt",
    "ampere_sgemm_32x32_sliced1x4_nn",
    "maxwell_fp16_sgemm_fp16_128x32_nn",
    "volta_hgemm_128x64_nn",
    "void cutlass::Kernel<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(Params)",
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x128x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4_execute_kernel__51_cublas",
    "void magma_sgemmEx_kernel<float, float, float, true, false, 6, 4, 6, 3, 4>(int)",
    "void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1, false, true, true>(int)",
    "Cijk_Ailk_Bljk_SB_MT64x64x8_SE_APM1_AF0EM1_TT4_4_USFGRO0_VAW1_WG16_16_1",
)
SILENT = (
    "triton_mm_12",
    "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1",
    "bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1",
    "ampere_dgemm_64x64_nn",
    "ampere_gcgemm_64x64_nt",
)
NO_GEMM = (
    "void at::native::vectorized_elementwise_kernel<4, fbgemm_gpu::_float_to_hfp8_gpu(at::Tensor const&)>",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float, true, true, false>(cublasLt::gemm)",
    "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 2, 2, false, false>(Params)",
    "triton_poi_fused_addmm_gelu_view_15",
    "softmax_warp_forward",
    "fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext",
    "",
)


@pytest.mark.parametrize("name", TENSOR)
def test_tensor_cores_are_told(name):
    assert classify_matrix_unit(name) == "tensor"


@pytest.mark.parametrize("name", PLAIN)
def test_other_cores_are_told(name):
    assert classify_matrix_unit(name) == "plain"


@pytest.mark.parametrize("name", SILENT)
def test_a_name_that_says_neither_is_left_out(name):
    assert classify_matrix_unit(name) is None


@pytest.mark.parametrize("name", NO_GEMM)
def test_other_kernels_are_no_matrix_products(name):
    assert not is_gemm_kernel(name)
    assert classify_matrix_unit(name) is None


@pytest.mark.parametrize("name", [*TENSOR, *PLAIN, *SILENT])
def test_matrix_products_are_told_by_name(name):
    assert is_gemm_kernel(name)


@pytest.mark.parametrize(
    "name",
    [
        "cudnn_train_volta_scudnn_128x128_stridedB_splitK_medium_nn_v1",
        "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1",
        "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int)",
        "void wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int)",
    ],
)
def test_convolutions_in_32_bits_are_told(name):
    assert is_plain_convolution(name)


@pytest.mark.parametrize(
    "name",
    [
        "volta_fp16_s884cudnn_fp16_128x128_ldg8_relu_f2f_exp_small_nhwc_tn_v1",
        "sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16",
        "void cudnn::cnn::reduce_wgrad_nchw_helper<float, float>(void*)",
        "void cudnn::cnn::wgrad2d_grouped_direct_kernel<__half, __half>(int)",
        "volta_sgemm_128x64_nn",
    ],
)
def test_other_kernels_are_no_convolution_in_32_bits(name):
    assert not is_plain_convolution(name)


def test_how_much_a_kernel_loads_is_the_least_that_it_names():
    assert parse_loaded_elements("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_nn") == 8
    assert parse_loaded_elements("sm80_xmma_gemm_f32f32_ffma_aligna4_alignc2_execute_kernel") == 2
    assert parse_loaded_elements("sm90_xmma_gemm_bf16bf16_tn_n_tilesize64x128x64") is None
    assert parse_loaded_elements("gemm_align" + "9" * 400) is None
