// SPDX-License-Identifier: Apache-2.0
#include "cuda/tiled_bitmap/linear.cuh"

template const flashsparse::tiled_bitmap::Compiled*
flashsparse::tiled_bitmap::compiled_linear<flashsparse::tiled_bitmap::Operands::kNative, 0, 16>();
