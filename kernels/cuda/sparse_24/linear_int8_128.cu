// SPDX-License-Identifier: Apache-2.0
#include "cuda/sparse_24/linear.cuh"

template const flashsparse::sparse_24::Compiled*
flashsparse::sparse_24::compiled_linear<flashsparse::sparse_24::Int8Values<128>>();
