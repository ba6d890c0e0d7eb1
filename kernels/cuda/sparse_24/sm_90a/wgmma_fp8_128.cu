// SPDX-License-Identifier: Apache-2.0
#include "cuda/sparse_24/wgmma.cuh"

template const flashsparse::sparse_24::WgmmaCompiled*
flashsparse::sparse_24::compiled_wgmma<flashsparse::sparse_24::Fp8Values<128>>();
