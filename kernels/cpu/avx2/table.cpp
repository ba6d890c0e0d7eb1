// SPDX-License-Identifier: Apache-2.0
// AVX2 has its own product; packing and the edges of the product are the portable ones.
#include "cpu/avx2/parts.h"
#include "cpu/portable/parts.h"

namespace flashsparse::cpu::avx2 {

const Kernels kKernels = {"avx2",
                          nullptr,
                          &kBFloat16Float32,
                          &kFloat16Float32,
                          portable::store,
                          portable::count_nonzeros,
                          portable::pack_panel,
                          portable::pack_tile_panel,
                          portable::unpack_panel,
                          portable::count_tiles,
                          portable::pack_tile,
                          decode};

}  // namespace flashsparse::cpu::avx2
