// SPDX-License-Identifier: Apache-2.0
// The decode kernels for int4 values, in their own source file to compile in parallel.
#include "cuda/nm_gather/linear.cuh"

namespace flashsparse::nm_gather {

template Compiled compiled<ValueType::kInt4>(int shape);

}  // namespace flashsparse::nm_gather
