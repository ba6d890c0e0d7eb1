// SPDX-License-Identifier: Apache-2.0
#include "cpu/avx512/parts.h"

namespace flashsparse::cpu::avx512 {

const Kernels kKernels = {"avx512",     &kBFloat16Dot,  &kBFloat16Float32, &kFloat16Float32,
                          store,        count_nonzeros, pack_panel,        pack_tile_panel,
                          unpack_panel, count_tiles,    pack_tile,         decode};

}  // namespace flashsparse::cpu::avx512
