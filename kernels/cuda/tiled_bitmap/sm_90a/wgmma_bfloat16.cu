// SPDX-License-Identifier: Apache-2.0
#include "cuda/tiled_bitmap/wgmma.cuh"

template const flashsparse::tiled_bitmap::WgmmaKernel*
flashsparse::tiled_bitmap::compiled_wgmma<flashsparse::BFloat16>();
