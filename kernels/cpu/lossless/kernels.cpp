// SPDX-License-Identifier: Apache-2.0
#include "cpu/lossless/kernels.h"

#include "cpu/capability.h"

namespace flashsparse::lossless {

const Kernels& kernels() {
  static const Kernels& chosen = cpu::choose<Kernels>({
#ifdef FLASHSPARSE_X86
      {cpu::Capability::kAvx512, &avx512::kKernels},
      {cpu::Capability::kAvx2, &avx2::kKernels},
#endif
      {cpu::Capability::kPortable, &portable::kKernels},
  });
  return chosen;
}

}  // namespace flashsparse::lossless
