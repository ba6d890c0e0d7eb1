// SPDX-License-Identifier: Apache-2.0
// Hopper's tensor core instruction (sm_90a): the four warps of a warpgroup multiply 64 rows of A by
// B, both of which the hardware reads from shared memory asynchronously.
//
// Operands are K-major tiles with rows of 64 16-bit elements, 128 bytes, 1024-byte aligned, whose
// 16-byte chunks are XOR-swizzled by the row modulo 8: the hardware's "128-byte swizzle", and the
// layout of a Tiled-CSL tile. PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate".
#pragma once
#include "common/device.cuh"
#include "common/memory.cuh"
#include "common/mma.cuh"
#include "common/wgmma_operands.cuh"

#ifndef __CUDACC__
#include <algorithm>
#include <cstring>
#include <iterator>
#endif

namespace flashsparse {

#ifdef __CUDACC__

// Descriptor of the operand at a shared address, a multiple of 1024.
__device__ __forceinline__ uint64_t wgmma_operand(uint32_t address) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kEightRows = uint64_t{1024 >> 4} << 32;  // from 8 rows to the next 8
  return kSwizzle128 | kEightRows | uint64_t{1} << 16 | (address & 0x3ffff) >> 4;
}

// Descriptor of the operand `bytes` further on, a multiple of 16.
__device__ __forceinline__ uint64_t wgmma_moved(uint64_t operand, uint32_t bytes) {
  return operand + bytes / 16;
}

// Proxy fence: makes this thread's stores and copies to shared memory visible to wgmma. Each thread
// that wrote calls it, before the barrier at which the readers wait.
__device__ __forceinline__ void fence_for_wgmma() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Keeps the compiler from moving earlier writes of `d` past wgmma_begin.
template <int count>
__device__ __forceinline__ void wgmma_hold(float (&d)[count]) {
  FS_UNROLL
  for (int i = 0; i < count; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int count>
__device__ __forceinline__ void wgmma_hold(int32_t (&d)[count]) {
  FS_UNROLL
  for (int i = 0; i < count; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

// Before the first wgmma of a group: orders it after the warps' accesses to its registers.
__device__ __forceinline__ void wgmma_begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// Commits a group.
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits for all groups of this warp: `d` may be read and operands may be overwritten.
template <class Sum, int count>
__device__ __forceinline__ void wgmma_wait(Sum (&d)[count]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  wgmma_hold(d);
}

// Waits for all groups of this warp except the latest `batches`: their operands may be overwritten.
// Registers of a later group must not be touched.
template <int batches>
__device__ __forceinline__ void wgmma_wait_but() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(batches) : "memory");
}

// d [64, tokens] += a [64, 16] times b [tokens, 16] transposed. Warp w of the warpgroup has rows 16
// w to 16 w + 15: d[4 j + 2 r + c] of lane l is row 16 w + l / 4 + 8 r, column 8 j + l % 4 * 2 + c.
// tokens is 8, 16, 32, 64, 96 or 128.
template <class Type, int tokens>
__device__ __forceinline__ void wgmma(float (&d)[tokens / 2], uint64_t a, uint64_t b);

#define FS_WGMMA(tokens, Type, name)                                                         \
  template <>                                                                                \
  __device__ __forceinline__ void wgmma<Type, tokens>(float (&d)[tokens / 2], uint64_t left, \
                                                      uint64_t right) {                      \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #tokens "k16.f32." name "." name        \
                 " " FS_WGMMA_SHARED_##tokens ", 1, 1, 1, 0, 0;"                             \
                 : FS_WGMMA_SUMS_##tokens("f")                                               \
                 : "l"(left), "l"(right));                                                   \
  }
#define FS_WGMMA_TYPE(Type, name) \
  FS_WGMMA(8, Type, name)         \
  FS_WGMMA(16, Type, name)        \
  FS_WGMMA(32, Type, name)        \
  FS_WGMMA(64, Type, name)        \
  FS_WGMMA(96, Type, name)        \
  FS_WGMMA(128, Type, name)
FS_WGMMA_TYPE(Float16, "f16")
FS_WGMMA_TYPE(BFloat16, "bf16")
#undef FS_WGMMA_TYPE
#undef FS_WGMMA

#else

inline uint64_t wgmma_operand(uint32_t address, simt::Place place = simt::Place::here()) {
  if (address >> 18)
    simt::fail(
        "wgmma_operand(%#x): a descriptor holds 18 bits of an address, and the emulator's "
        "are that small in dynamic shared memory only (%s:%d)",
        address, place.file_name(), place.line);
  return uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 16 | address >> 4;
}

inline uint64_t wgmma_moved(uint64_t operand, uint32_t bytes,
                            simt::Place place = simt::Place::here()) {
  if (bytes % 16 != 0)
    simt::fail("wgmma_moved by %u bytes, which is no multiple of 16 (%s:%d)", bytes,
               place.file_name(), place.line);
  return operand + bytes / 16;
}

// A store is visible once a fence, and then a barrier, follow it in the thread that stored.
inline void fence_for_wgmma() { simt::current->fenced = simt::Stores::now; }

template <class Sum, int count>
void wgmma_hold(Sum (&)[count]) {}

inline void wgmma_begin() { simt::current->products.begun = true; }

inline void wgmma_commit() {
  const simt::sanitizers::Unwatched unwatched;
  simt::Products& products = simt::current->products;
  products.begun = false;
  products.committed.push_back(std::move(products.open));
  products.open.clear();
}

namespace detail {

inline constexpr int kWgmmaRows = 64, kWgmmaDepth = 16, kWgmmaRowBytes = 128;
inline constexpr int kMostWgmmaTokens = 256;

// Address of element k of a row in the operand that begins at a shared address.
SIMT_UNWATCHED inline uint32_t wgmma_address(uint32_t operand, int row, int k) {
  const uint32_t plain = operand + row * kWgmmaRowBytes + k * sizeof(uint16_t);
  return plain ^ (plain / kWgmmaRowBytes % 8) << 4;
}

// The shared address in the descriptor of an operand of `rows` rows. The hardware does not report
// wrong descriptors.
inline uint32_t check_wgmma_operand(uint64_t operand, int rows, const char* name,
                                    simt::Place place) {
  const uint32_t address = (operand & 0x3fff) << 4, step = address % 1024;
  const uint32_t tile = address - step;
  const char* wrong = nullptr;
  if (operand != wgmma_operand(address, place)) wrong = "no operand that wgmma_operand describes";
  if (step >= kWgmmaRowBytes || step % (kWgmmaDepth * sizeof(uint16_t)) != 0)
    wrong = "neither on 1024 bytes nor 32, 64 or 96 bytes after";
  if (!simt::current->block->shared.at(tile, rows * kWgmmaRowBytes)) wrong = "out of bounds";
  if (wrong)
    simt::fail(
        "%s of wgmma, %d rows of 128 bytes, descriptor %#llx, shared address %#x: %s (%s:%d)", name,
        rows, static_cast<unsigned long long>(operand), address, wrong, place.file_name(),
        place.line);
  return address;
}

// Checks that the latest store to a shared address is visible to wgmma.
SIMT_UNWATCHED inline void check_wgmma_fence(uint32_t address, simt::Place place) {
  simt::Block& block = *simt::current->block;
  const simt::Stores::Store& store = block.shared.stores.latest(address);
  if (store.time <= block.thread(store.thread / 32, store.thread % 32).visible) return;
  const simt::Place from{store.file, store.line};
  simt::fail(
      "wgmma reads shared address %#x, to which thread %u has stored (%s:%d) with no "
      "fence_for_wgmma and barrier after it (%s:%d)",
      address, store.thread, from.file_name(), from.line, place.file_name(), place.line);
}

SIMT_UNWATCHED inline void check_wgmma_fences(uint32_t operand, int rows, simt::Place place) {
  for (int i = 0; i < rows * kWgmmaDepth; ++i)
    check_wgmma_fence(wgmma_address(operand, i / kWgmmaDepth, i % kWgmmaDepth), place);
}

// Reads the rows that this thread's accumulators need: 2 of A, then tokens / 4 of B. They are read
// in its name, so that the race detector sees it.
inline std::vector<uint16_t> read_wgmma_operands(const simt::Product& product) {
  constexpr int kChunk = sizeof(uint4) / sizeof(uint16_t);
  const unsigned warp = simt::current->warp % simt::kWarpgroup, lane = simt::current->lane;
  const unsigned char* const shared = simt::dynamic_shared();
  // A vector's constructor would write its elements one by one, and the race detector look at each.
  uint16_t operands[(2 + kMostWgmmaTokens / 4) * kWgmmaDepth];
  const int count = (2 + product.tokens / 4) * kWgmmaDepth;
  for (int i = 0; i < count; i += kChunk) {
    const int number = i / kWgmmaDepth, k = i % kWgmmaDepth, token = number - 2;
    const uint32_t address =
        number < 2 ? wgmma_address(product.a, 16 * warp + lane / 4 + 8 * number, k)
                   : wgmma_address(product.b, token / 2 * 8 + lane % 4 * 2 + token % 2, k);
    const uint4 chunk = *reinterpret_cast<const uint4*>(shared + address);
    std::memcpy(&operands[i], &chunk, sizeof chunk);
  }
  return {operands, operands + count};
}

SIMT_UNWATCHED inline simt::Products::Sums* find_wgmma_sums(const float* d, size_t count,
                                                            simt::Place place) {
  for (simt::Products::Sums& sums : simt::current->products.sums) {
    if (sums.d != d) continue;
    bool poison = true;
    for (size_t i = 0; i < count; ++i) poison = poison && __float_as_uint(d[i]) == ~uint32_t{0};
    if (!poison || sums.values.size() != count)
      simt::fail("the sums of a wgmma in flight have been changed, or are %zu, not %zu (%s:%d)",
                 sums.values.size(), count, place.file_name(), place.line);
    return &sums;
  }
  return nullptr;
}

inline void check_wgmma_begun(simt::Place place) {
  if (!simt::current->products.begun)
    simt::fail("wgmma without the wgmma_begin of its batch (%s:%d)", place.file_name(), place.line);
}

SIMT_UNWATCHED inline void check_same_wgmma(const simt::Product& one, const simt::Product& other) {
  if (other.a != one.a || other.b != one.b || other.slab != one.slab ||
      other.tokens != one.tokens || other.floats != one.floats)
    simt::fail("the threads of a warpgroup give wgmma different operands (%s:%d)",
               one.place.file_name(), one.place.line);
}

// Reads the operands, as the hardware may from now on, and hides the accumulators from the thread.
inline void start_wgmma(simt::Product& product) {
  product.operands = product.read(product);
  const simt::sanitizers::Unwatched unwatched;
  simt::Products& products = simt::current->products;
  float* const d = product.d;
  const size_t count = product.tokens / 2;
  if (!find_wgmma_sums(d, count, product.place)) products.sums.push_back({d, {d, d + count}});
  std::memset(d, simt::kPoison, count * sizeof(float));
  products.open.push_back(std::move(product));
}

inline void issue_wgmma(float* d, int tokens, const float* floats, uint64_t a, uint64_t b,
                        simt::Place place) {
  simt::Product product{read_wgmma_operands, tokens, floats, d, place};
  {
    const simt::sanitizers::Unwatched unwatched;
    check_wgmma_begun(place);
    product.a = check_wgmma_operand(a, kWgmmaRows, "A", place);
    product.b = check_wgmma_operand(b, tokens, "B", place);
    simt::warpgroup_collective("wgmma", place, product, [&](simt::Product* const* all) {
      for (unsigned i = 0; i < simt::kWarpgroup * simt::kWarpSize; ++i)
        check_same_wgmma(product, *all[i]);
      check_wgmma_fences(product.a, kWgmmaRows, place);
      check_wgmma_fences(product.b, tokens, place);
    });
  }
  start_wgmma(product);
}

// Accumulates exactly (to fp64) and rounds once, as mma_m16n8k16.
SIMT_UNWATCHED inline void add_wgmma(const simt::Product& product, float* sums) {
  const uint16_t* const operands = product.operands.data();
  for (int i = 0; i < product.tokens / 2; ++i) {
    const int row = i / 2 % 2, token = i / 4 * 2 + i % 2;
    const uint16_t* const a = operands + row * kWgmmaDepth;
    const uint16_t* const b = operands + (2 + token) * kWgmmaDepth;
    double sum = sums[i];
    for (int k = 0; k < kWgmmaDepth; ++k)
      sum += double{product.floats[a[k]]} * product.floats[b[k]];
    sums[i] = static_cast<float>(sum);
  }
}

// Reads the operands of all groups except the latest again, as the hardware may until now.
inline void land_wgmma(size_t batches, simt::Place place) {
  std::vector<std::vector<simt::Product> > landing;
  {
    const simt::sanitizers::Unwatched unwatched;
    simt::Products& products = simt::current->products;
    if (!products.open.empty())
      simt::fail("wgmma_wait with no wgmma_commit after the wgmma of line %d (%s:%d)",
                 products.open.back().place.line, place.file_name(), place.line);
    int nothing = 0;
    simt::collective(~uint32_t{0}, "wgmma_wait", simt::Lines::kSame, simt::Order::kNone, place,
                     nothing, [](auto, uint32_t) {});
    auto& all = products.committed;
    const auto end = all.end() - std::min(batches, all.size());
    landing.assign(std::make_move_iterator(all.begin()), std::make_move_iterator(end));
    all.erase(all.begin(), end);
  }
  for (const std::vector<simt::Product>& batch : landing) {
    for (const simt::Product& product : batch) {
      const std::vector<uint16_t> operands = product.read(product);
      const simt::sanitizers::Unwatched unwatched;
      if (operands != product.operands)
        simt::fail("the operands of a wgmma (%s:%d) were overwritten before its wgmma_wait (%s:%d)",
                   product.place.file_name(), product.place.line, place.file_name(), place.line);
      for (simt::Products::Sums& sums : simt::current->products.sums) {
        if (sums.d == product.d)
          (product.add ? product.add : add_wgmma)(product, sums.values.data());
      }
    }
  }
}

// Returns the accumulators to the thread.
inline void wait_wgmma(float* d, size_t count, simt::Place place) {
  land_wgmma(0, place);
  const simt::sanitizers::Unwatched unwatched;
  std::vector<simt::Products::Sums>& all = simt::current->products.sums;
  if (simt::Products::Sums* const sums = find_wgmma_sums(d, count, place)) {
    std::copy(sums->values.begin(), sums->values.end(), d);
    all.erase(all.begin() + (sums - all.data()));
  }
}

}  // namespace detail

template <class Sum, int count>
void wgmma_wait(Sum (&d)[count], simt::Place place = simt::Place::here()) {
  static_assert(sizeof(Sum) == sizeof(float), "sums are kept as bits of floats");
  detail::wait_wgmma(reinterpret_cast<float*>(d), count, place);
}

template <int batches>
void wgmma_wait_but(simt::Place place = simt::Place::here()) {
  detail::land_wgmma(batches, place);
}

template <class Type, int tokens>
void wgmma(float (&d)[tokens / 2], uint64_t a, uint64_t b,
           simt::Place place = simt::Place::here()) {
  static_assert(
      tokens == 8 || tokens == 16 || tokens == 32 || tokens == 64 || tokens == 96 || tokens == 128,
      "as for the GPU");
  static_assert(std::is_same_v<Type, Float16> || std::is_same_v<Type, BFloat16>, "as for the GPU");
  detail::issue_wgmma(d, tokens, detail::kFloats<Type>.data(), a, b, place);
}

#endif

}  // namespace flashsparse
