// SPDX-License-Identifier: Apache-2.0
#include "cpu/tiled_bitmap/kernels.h"

#include "cpu/capability.h"

namespace flashsparse::tiled_bitmap {

const Kernels& kernels() {
  static const Kernels& chosen = cpu::choose<Kernels>({
#ifdef FLASHSPARSE_X86
      {cpu::Capability::kAvx512, &avx512::kKernels},
#endif
      {cpu::Capability::kPortable, &portable::kKernels},
  });
  return chosen;
}

}  // namespace flashsparse::tiled_bitmap
