// SPDX-License-Identifier: Apache-2.0
// Large arrays on large pages. Where Linux gives them only on request, writing to fresh memory
// waits for the kernel page by page: 3 GB/s measured, against 18 GB/s with pages of 2 MB.
#pragma once
#include <cstddef>
#include <cstdint>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace flashsparse {

// Asks for large pages under memory that has not been written yet. Only whole pages inside it are
// asked for, so no memory beyond it is taken. A hint: nothing depends on its being granted.
inline void prefer_huge_pages([[maybe_unused]] void* memory, [[maybe_unused]] size_t bytes) {
#ifdef MADV_HUGEPAGE
  constexpr uintptr_t kPage = 2 << 20;
  const uintptr_t address = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t begin = (address + kPage - 1) / kPage * kPage;
  const uintptr_t end = (address + bytes) / kPage * kPage;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

}  // namespace flashsparse
