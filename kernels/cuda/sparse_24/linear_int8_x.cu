// SPDX-License-Identifier: Apache-2.0
#include "cuda/sparse_24/linear_codes.cuh"

template const flashsparse::sparse_24::Compiled*
flashsparse::sparse_24::compiled_codes_linear<flashsparse::sparse_24::Int8Codes>();
