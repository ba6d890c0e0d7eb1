// SPDX-License-Identifier: Apache-2.0
// The kernels of int4 values, which compile beside the others.
#include "cuda/nm_gather/linear.cuh"

namespace flashsparse::nm_gather {

template Compiled compiled<ValueType::kInt4>(int shape);

}  // namespace flashsparse::nm_gather
