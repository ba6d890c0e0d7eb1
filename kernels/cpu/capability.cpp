// SPDX-License-Identifier: Apache-2.0
#include "cpu/capability.h"

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
         __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
         __builtin_cpu_supports("avx512bf16");
}
#else
bool has_avx2() { return false; }
bool has_avx512() { return false; }
#endif

Capability decide() {
  const struct {
    Capability capability;
    bool supported;
  } choices[] = {{Capability::kAvx512, has_avx512()},
                 {Capability::kAvx2, has_avx2()},
                 {Capability::kPortable, true}};
  const char* forced = std::getenv("FLASHSPARSE_CPU_CAPABILITY");
  std::string supported;
  for (const auto& choice : choices) {
    if (!choice.supported) continue;
    const std::string name = name_of(choice.capability);
    if (!forced || !*forced || name == forced) return choice.capability;
    supported += (supported.empty() ? "" : ", ") + name;
  }
  throw std::runtime_error("FLASHSPARSE_CPU_CAPABILITY=" + std::string(forced) +
                           " names no kernels that this CPU can run. It can run: " + supported +
                           ". Unset the variable to use the first of them.");
}

}  // namespace

Capability capability() {
  static const Capability decided = decide();
  return decided;
}

const char* name_of(Capability capability) {
  switch (capability) {
    case Capability::kAvx512:
      return "avx512";
    case Capability::kAvx2:
      return "avx2";
    default:
      return "portable";
  }
}

}  // namespace flashsparse::cpu
