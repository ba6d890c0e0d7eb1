// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels.h"

#include "cpu/capability.h"

namespace flashsparse::cpu {

const Kernels& kernels() {
  static const Kernels& chosen = choose<Kernels>({
#ifdef FLASHSPARSE_X86
      {Capability::kAvx512, &avx512::kKernels},
      {Capability::kAvx2, &avx2::kKernels},
#endif
      {Capability::kPortable, &portable::kKernels},
  });
  return chosen;
}

}  // namespace flashsparse::cpu
