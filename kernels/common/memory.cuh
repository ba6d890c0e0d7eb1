// SPDX-License-Identifier: Apache-2.0
// Loads, stores and asynchronous copies, each with a cache behaviour. Shared memory is addressed by
// 32 bits, so that address arithmetic takes one register and one instruction. Every address must be
// a multiple of the size of the access.
#pragma once
#include <type_traits>

#include "common/device.cuh"

namespace flashsparse {

#ifdef __CUDACC__

// The 32-bit address of something in shared memory.
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

namespace detail {

__device__ __forceinline__ void load_shared(uint32_t address, uint8_t& value) {
  uint32_t wide;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(wide) : "r"(address) : "memory");
  value = static_cast<uint8_t>(wide);
}
__device__ __forceinline__ void load_shared(uint32_t address, uint16_t& value) {
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(address) : "memory");
}
__device__ __forceinline__ void load_shared(uint32_t address, uint32_t& value) {
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
}
__device__ __forceinline__ void load_shared(uint32_t address, float& value) {
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
}
__device__ __forceinline__ void load_shared(uint32_t address, uint2& value) {
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
               : "=r"(value.x), "=r"(value.y)
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_shared(uint32_t address, float2& value) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(value.x), "=f"(value.y)
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_shared(uint32_t address, uint4& value) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_shared(uint32_t address, float4& value) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void load_streaming(const uint32_t* place, uint32_t& value) {
  asm volatile("ld.global.L1::no_allocate.u32 %0, [%1];" : "=r"(value) : "l"(place));
}
__device__ __forceinline__ void load_streaming(const uint2* place, uint2& value) {
  asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
               : "=r"(value.x), "=r"(value.y)
               : "l"(place));
}
__device__ __forceinline__ void load_streaming(const uint4* place, uint4& value) {
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(place));
}

__device__ __forceinline__ void load_l2(const float* place, float& value) {
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(value) : "l"(place) : "memory");
}
__device__ __forceinline__ void load_l2(const float4* place, float4& value) {
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "l"(place)
               : "memory");
}

__device__ __forceinline__ void load_global(const uint4* place, uint4& value) {
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(place)
               : "memory");
}
__device__ __forceinline__ void load_global(const int64_t* place, int64_t& value) {
  asm volatile("ld.global.s64 %0, [%1];" : "=l"(value) : "l"(place) : "memory");
}
__device__ __forceinline__ void load_global(const uint32_t* place, uint32_t& value) {
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(value) : "l"(place) : "memory");
}
__device__ __forceinline__ void load_global(const int32_t* place, int32_t& value) {
  asm volatile("ld.global.s32 %0, [%1];" : "=r"(value) : "l"(place) : "memory");
}
__device__ __forceinline__ void load_global(const float* place, float& value) {
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(value) : "l"(place) : "memory");
}
__device__ __forceinline__ void load_global(const uint8_t* place, uint8_t& value) {
  uint32_t wide;
  asm volatile("ld.global.u8 %0, [%1];" : "=r"(wide) : "l"(place) : "memory");
  value = static_cast<uint8_t>(wide);
}

}  // namespace detail

// T is uint8_t, uint16_t, uint32_t, uint2, uint4, float, float2 or float4, as for store_shared.
template <class T>
__device__ __forceinline__ T load_shared(uint32_t address) {
  T value;
  detail::load_shared(address, value);
  return value;
}

__device__ __forceinline__ void store_shared(uint32_t address, uint8_t value) {
  asm volatile("st.shared.u8 [%0], %1;" ::"r"(address), "r"(uint32_t{value}) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t address, uint16_t value) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(value) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t address, uint32_t value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t address, uint2 value) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(value.x), "r"(value.y)
               : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t address, float2 value) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(value.x), "f"(value.y)
               : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t address, uint4 value) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t address, float4 value) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(value.x),
               "f"(value.y), "f"(value.z), "f"(value.w)
               : "memory");
}

// For a location to which other threads may store the same value at the same time. A GPU needs
// nothing special; the race detector has to know that it is intended.
__device__ __forceinline__ void store_shared_same(uint32_t address, uint16_t value) {
  store_shared(address, value);
}

// The same if `condition`: a predicated store instead of a branch, which would keep the compiler
// from interleaving the instructions of neighbouring stores.
__device__ __forceinline__ void store_shared_same_if(bool condition, uint32_t address,
                                                     uint16_t value) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.u32 p, %0, 0;\n"
      "@p st.shared.u16 [%1], %2;\n"
      "}" ::"r"(static_cast<uint32_t>(condition)),
      "r"(address), "h"(value)
      : "memory");
}

// Loads place[offset] if `condition`: a predicated load. Otherwise `value` is undefined.
template <int offset>
__device__ __forceinline__ void load_streaming_if(bool condition, const uint32_t* place,
                                                  uint32_t& value) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.u32 p, %1, 0;\n"
      "@p ld.global.L1::no_allocate.u32 %0, [%2 + %3];\n"
      "}"
      : "=r"(value)
      : "r"(static_cast<uint32_t>(condition)), "l"(place), "n"(offset * sizeof(uint32_t)));
}

// Loads global memory that is read once and not written during the kernel: bypasses the L1. T is
// uint32_t, uint2 or uint4.
template <class T>
__device__ __forceinline__ T load_streaming(const T* place) {
  T value;
  detail::load_streaming(place, value);
  return value;
}

// Loads global memory that is read again and not written during the kernel: through the L1. T is an
// integer or a vector that __ldg accepts.
template <class T>
__device__ __forceinline__ T load_readonly(const T* place) {
  return __ldg(place);
}

// Loads what the preceding kernel wrote, after griddepcontrol_wait. load_readonly would be wrong:
// that memory has changed since this kernel began, and nothing keeps the compiler from moving such
// a load to before the wait. T is uint8_t, int32_t, uint32_t, int64_t, float or uint4.
template <class T>
__device__ __forceinline__ T load_global(const T* place) {
  T value;
  detail::load_global(place, value);
  return value;
}

// Loads global memory that other blocks have written, after `arrive`: from the L2, which is
// coherent. T is float or float4.
template <class T>
__device__ __forceinline__ T load_l2(const T* place) {
  T value;
  detail::load_l2(place, value);
  return value;
}

template <class T>
__device__ __forceinline__ void store_global(T* place, T value) {
  *place = value;
}
// The same in one instruction. The compiler sometimes splits a vector store into words, and
// adjacent lanes then write to the same sectors several times.
__device__ __forceinline__ void store_global_whole(uint4* place, uint4 value) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(place), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}

// Starts a copy of 4, 8 or 16 bytes to shared memory; zeros, without reading `global`, if not
// `valid`. 16 bytes bypass the L1. This thread may read them after copy_async_wait, others after a
// barrier that follows it.
template <int bytes>
__device__ __forceinline__ void copy_async(uint32_t shared, const void* global, bool valid) {
  static_assert(bytes == 4 || bytes == 8 || bytes == 16, "what cp.async copies");
  const int read = valid ? bytes : 0;
  if constexpr (bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
                 "r"(read)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(global),
                 "n"(bytes), "r"(read)
                 : "memory");
  }
}

// L2 policy for data that is read once: evict first. For copy_async_hinted and load_hinted.
__device__ __forceinline__ uint64_t evict_first_policy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// L2 policy for data that is read again: evict normal. For load_hinted.
__device__ __forceinline__ uint64_t evict_normal_policy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// load_streaming with an L2 policy.
__device__ __forceinline__ uint4 load_hinted(const uint4* place, uint64_t policy) {
  uint4 value;
  asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(place), "l"(policy));
  return value;
}

// copy_async<16> with an L2 policy.
__device__ __forceinline__ void copy_async_hinted(uint32_t shared, const void* global,
                                                  uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(shared),
               "l"(global), "l"(policy)
               : "memory");
}

// Commits a group: all copies that this thread has started since the last commit.
__device__ __forceinline__ void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits for all groups of this thread except the latest `groups`.
template <int groups>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}

// Has the line of an address brought to the L2. It must be one that may be read.
__device__ __forceinline__ void prefetch(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

// Increments an arrival counter and returns how many arrived before. What the block wrote before a
// barrier that this thread passed is visible to a block whose arrival comes later, once that has
// passed a barrier, too: the pattern of "the last block reduces", with one thread of each block.
__device__ __forceinline__ uint32_t arrive(uint32_t* counter) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  return before;
}

// PDL: the next kernel in the stream may start once every block has called this or ended, if it
// was launched for that (cuda/shared/launch_early.h).
__device__ __forceinline__ void griddepcontrol_launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// PDL: waits until the preceding kernel has ended and what it wrote can be read.
__device__ __forceinline__ void griddepcontrol_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#else

// The preceding kernel ends as late as it can (emulator/last_kernel.h).
inline void griddepcontrol_launch_dependents() {}
inline void griddepcontrol_wait() { simt::wait_for_last_kernel(); }

namespace detail {

// The destination of an access; ends the program if the address is wrong.
template <class T>
T* check_shared(uint32_t address, const char* operation, simt::Place place) {
  unsigned char* const bytes = simt::current->block->shared.at(address, sizeof(T));
  if (!bytes || address % sizeof(T) != 0)
    simt::fail("%s of %zu bytes at shared address %#x, which is %s (%s:%d)", operation, sizeof(T),
               address, bytes ? "misaligned" : "out of bounds", place.file_name(), place.line);
  return reinterpret_cast<T*>(bytes);
}
template <class T>
void check_global(T* pointer, const char* operation, simt::Place place) {
  if (reinterpret_cast<uintptr_t>(pointer) % sizeof(T) != 0)
    simt::fail("%s of %zu bytes at the misaligned address %p (%s:%d)", operation, sizeof(T),
               static_cast<const void*>(pointer), place.file_name(), place.line);
}

template <class T>
T& shared_at(uint32_t address, const char* operation, simt::Place place) {
  const simt::sanitizers::Unwatched unwatched;
  simt::count(operation, place, sizeof(T), address, nullptr);
  return *check_shared<T>(address, operation, place);
}
template <class T>
T& shared_to_store(uint32_t address, simt::Place place) {
  const simt::sanitizers::Unwatched unwatched;
  T& there = shared_at<T>(address, "store_shared", place);
  simt::note_store(address, sizeof(T), place);
  return there;
}
template <class T>
T& global_at(T* pointer, const char* operation, simt::Place place) {
  const simt::sanitizers::Unwatched unwatched;
  simt::count(operation, place, sizeof(T), std::nullopt, pointer);
  check_global(pointer, operation, place);
  return *pointer;
}

// Rejects types that nvcc would reject.
template <class T, class... Allowed>
void check_type() {
  static_assert((std::is_same_v<T, Allowed> || ...), "not a type of this primitive");
}
template <class T>
void check_shared_type() {
  check_type<T, uint8_t, uint16_t, uint32_t, float, uint2, float2, uint4, float4>();
}

}  // namespace detail

inline uint32_t shared_address(const void* pointer, simt::Place place = simt::Place::here()) {
  const simt::sanitizers::Unwatched unwatched;
  const uint32_t address = simt::current->block->shared.address(pointer);
  if (address == simt::SharedMemory::kNoAddress)
    simt::fail("%p is not in the block's shared memory (%s:%d)", pointer, place.file_name(),
               place.line);
  return address;
}

template <class T>
T load_shared(uint32_t address, simt::Place place = simt::Place::here()) {
  detail::check_shared_type<T>();
  return detail::shared_at<T>(address, "load_shared", place);
}

template <class T>
void store_shared(uint32_t address, T value, simt::Place place = simt::Place::here()) {
  detail::check_shared_type<T>();
  detail::shared_to_store<T>(address, place) = value;
}

inline void store_shared_same(uint32_t address, uint16_t value,
                              simt::Place place = simt::Place::here()) {
  __atomic_store_n(&detail::shared_to_store<uint16_t>(address, place), value, __ATOMIC_RELAXED);
}

inline void store_shared_same_if(bool condition, uint32_t address, uint16_t value,
                                 simt::Place place = simt::Place::here()) {
  if (condition) store_shared_same(address, value, place);
}

template <int offset>
void load_streaming_if(bool condition, const uint32_t* pointer, uint32_t& value,
                       simt::Place place = simt::Place::here()) {
  if (condition) value = detail::global_at(pointer + offset, "load_global", place);
}

template <class T>
T load_streaming(const T* pointer, simt::Place place = simt::Place::here()) {
  detail::check_type<T, uint32_t, uint2, uint4>();
  return detail::global_at(pointer, "load_global", place);
}

template <class T>
T load_readonly(const T* pointer, simt::Place place = simt::Place::here()) {
  return detail::global_at(pointer, "load_global", place);
}

template <class T>
T load_global(const T* pointer, simt::Place place = simt::Place::here()) {
  detail::check_type<T, uint8_t, int32_t, uint32_t, int64_t, float, uint4>();
  return detail::global_at(pointer, "load_global", place);
}

template <class T>
T load_l2(const T* pointer, simt::Place place = simt::Place::here()) {
  detail::check_type<T, float, float4>();
  return detail::global_at(pointer, "load_global", place);
}

template <class T>
void store_global(T* pointer, T value, simt::Place place = simt::Place::here()) {
  detail::global_at(pointer, "store_global", place) = value;
}

inline void store_global_whole(uint4* pointer, uint4 value,
                               simt::Place place = simt::Place::here()) {
  store_global(pointer, value, place);
}

template <int bytes>
void copy_async(uint32_t shared, const void* global, bool valid,
                simt::Place place = simt::Place::here()) {
  static_assert(bytes == 4 || bytes == 8 || bytes == 16, "what cp.async copies");
  struct alignas(bytes) Piece {
    unsigned char bytes_[bytes];
  };
  Piece* to = nullptr;
  const Piece* const from = valid ? static_cast<const Piece*>(global) : nullptr;
  {
    const simt::sanitizers::Unwatched unwatched;
    simt::count("copy_async", place, bytes, shared, from);
    to = detail::check_shared<Piece>(shared, "copy_async", place);
    detail::check_global(from, "copy_async", place);
    simt::note_store(shared, bytes, place);
  }
  simt::current->copies.start(to->bytes_, from ? from->bytes_ : nullptr, bytes, place);
}

inline uint64_t evict_first_policy() { return 0; }
inline uint64_t evict_normal_policy() { return 1; }

inline uint4 load_hinted(const uint4* pointer, uint64_t, simt::Place place = simt::Place::here()) {
  return load_streaming(pointer, place);
}

inline void copy_async_hinted(uint32_t shared, const void* global, uint64_t,
                              simt::Place place = simt::Place::here()) {
  copy_async<16>(shared, global, true, place);
}

inline void copy_async_commit() { simt::current->copies.commit(); }

template <int groups>
void copy_async_wait() {
  simt::current->copies.wait(groups, [](unsigned char* to, size_t bytes, simt::Place place) {
    simt::note_store(simt::current->block->shared.address(to), bytes, place);
  });
}

inline void prefetch(const void*) {}

inline uint32_t arrive(uint32_t* counter) {
  return __atomic_fetch_add(counter, 1, __ATOMIC_ACQ_REL);
}

#endif

// The same where the number of groups is no constant: 0 to 7.
__device__ __forceinline__ void copy_async_wait(int groups) {
  switch (groups) {
    case 0:
      return copy_async_wait<0>();
    case 1:
      return copy_async_wait<1>();
    case 2:
      return copy_async_wait<2>();
    case 3:
      return copy_async_wait<3>();
    case 4:
      return copy_async_wait<4>();
    case 5:
      return copy_async_wait<5>();
    case 6:
      return copy_async_wait<6>();
    default:
      return copy_async_wait<7>();
  }
}

}  // namespace flashsparse
