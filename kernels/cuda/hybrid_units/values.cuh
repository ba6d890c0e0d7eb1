// SPDX-License-Identifier: Apache-2.0
// The value types of hybrid_units: those of sparse_24 (cuda/sparse_24/values.cuh).
#pragma once
#include "cuda/sparse_24/values.cuh"

namespace flashsparse::hybrid_units {

using sparse_24::NativeValues;
#define FS_USING(name, ...) using sparse_24::name##Values;
FS_QUANTIZED_TYPES(FS_USING)
#undef FS_USING

}  // namespace flashsparse::hybrid_units
