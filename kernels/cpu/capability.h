// SPDX-License-Identifier: Apache-2.0
// Which instruction set the kernels of this process use, and how it selects a table of kernels.
#pragma once
#include <initializer_list>

namespace flashsparse::cpu {

enum class Capability { kPortable, kAvx2, kAvx512 };  // each includes the previous ones

// The widest instruction set that this CPU has, or the one that
// FLASHSPARSE_CPU_CAPABILITY=avx512|avx2|portable names; decided at the first call. Throws
// std::runtime_error for a name that is unknown or that this CPU or build lacks, so call it before
// any thread starts.
Capability capability();
const char* name_of(Capability capability);

// Kernels compiled for one instruction set.
template <typename Kernels>
struct CompiledFor {
  Capability capability;
  const Kernels* kernels;
};

// The first of `compiled` (widest first, the last one portable) that this process may use. A table
// need not have an entry for every instruction set: the next narrower one is used instead.
template <typename Kernels>
const Kernels& choose(std::initializer_list<CompiledFor<Kernels>> compiled) {
  const CompiledFor<Kernels>* chosen = compiled.begin();
  while (chosen->capability > capability()) ++chosen;
  return *chosen->kernels;
}

}  // namespace flashsparse::cpu
