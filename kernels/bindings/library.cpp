// SPDX-License-Identifier: Apache-2.0
// The op library, and the ops without a kernel. Each format, the dense layers and attention add
// their schemas next to their CPU implementations (<name>_cpu.cpp); _C_cuda.so adds the CUDA
// implementations (<name>_cuda.cpp). The ops are described in flashsparse_plugin.
#include <string>

#include "bindings/torch_stable.h"
#include "cpu/capability.h"

namespace flashsparse {
namespace {

std::string cpu_capability() { return cpu::name_of(cpu::capability()); }

STABLE_TORCH_LIBRARY(flashsparse, m) {
  m.def("cpu_capability() -> str");
  // Whether to launch CUDA products with PDL from now on (early_begin.h); returns the previous
  // setting.
  m.def("begin_early(bool behind_others) -> bool");
  // What launches CUDA products of this thread take instead of the planned ones, for benchmarks;
  // end_override returns how many took the innermost (override.h).
  m.def("override_launch(str kernel, int[] launch) -> ()");
  m.def("end_override() -> int");
}

// They take no tensor from which a device could be chosen.
STABLE_TORCH_LIBRARY_IMPL(flashsparse, CompositeExplicitAutograd, m) {
  m.impl("cpu_capability", TORCH_BOX(&cpu_capability));
}

}  // namespace
}  // namespace flashsparse
