// SPDX-License-Identifier: Apache-2.0
// Which kernels run on this machine.
#include "cpu/kernels.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace flashsparse::cpu {
namespace {

#ifdef FLASHSPARSE_X86
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi2");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512bf16");
}
#endif

struct Choice {
  const Kernels* kernels;
  bool supported;
};

const Kernels& choose() {
  const Choice choices[] = {
#ifdef FLASHSPARSE_X86
      {&avx512::kKernels, has_avx512()},
      {&avx2::kKernels, has_avx2()},
#endif
      {&portable::kKernels, true},
  };
  const char* forced = std::getenv("FLASHSPARSE_CPU_CAPABILITY");
  std::string supported;
  for (const Choice& choice : choices) {
    if (!choice.supported) continue;
    if (!forced || !*forced || choice.kernels->name == std::string(forced)) return *choice.kernels;
    supported += (supported.empty() ? "" : ", ") + std::string(choice.kernels->name);
  }
  throw std::runtime_error("FLASHSPARSE_CPU_CAPABILITY=" + std::string(forced) +
                           " names no kernels that this CPU can run. It can run: " + supported +
                           ". Unset the variable to use the first of them.");
}

}  // namespace

const Kernels& kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

}  // namespace flashsparse::cpu
