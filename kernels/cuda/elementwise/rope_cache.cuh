// SPDX-License-Identifier: Apache-2.0
// Rotary embeddings of queries and keys, in place or not, and the write of keys and values into
// vLLM's paged cache, in one kernel. Products of the rotation are rounded like sums of torch's ops,
// so the bits are those of transformers and of vLLM's own implementation in torch.
#pragma once
#include "common/memory.cuh"
#include "cuda/elementwise/eight.cuh"
#include "cuda/elementwise/rope_cache_arguments.h"

namespace flashsparse::elementwise {

// Where a token's keys or values go, or null if it is not cached.
__device__ __forceinline__ uint16_t* cached_at(const PagedCache& cache, int64_t slot,
                                               int page_size) {
  if (slot < 0) return nullptr;
  return cache.data + (slot / page_size * cache.block + slot % page_size * cache.position);
}

// Rotates 8 pairs of a head and stores them, in `copy`, too, if it is not null.
template <class Type>
__device__ __forceinline__ void rotate(const RopeCacheArguments& a, const uint16_t* head,
                                       uint16_t* to, uint16_t* copy, const uint16_t* cosines,
                                       int item) {
  const int half = a.rotary_dim / 2, column = item * 8;
  // Offsets of the two vectors that hold the pairs.
  const int low = a.is_neox ? column : column * 2, high = low + (a.is_neox ? half : 8);
  const auto load = [](const uint16_t* from) {
    return Eight<Type>(load_global(reinterpret_cast<const uint4*>(from)));
  };
  const Eight<Type> cosine = load(cosines + column), sine = load(cosines + half + column);
  const Eight<Type> in_low = load(head + low), in_high = load(head + high);
  // Of pair i; interleaved, it is elements 2i and 2i + 1 of the 16.
  Eight<Type> first, second;
  FS_UNROLL
  for (int i = 0; i < 8; ++i) {
    const int even = i % 4 * 2;
    const Eight<Type>& both = i < 4 ? in_low : in_high;
    const float x = a.is_neox ? in_low.of[i] : both.of[even];
    const float y = a.is_neox ? in_high.of[i] : both.of[even + 1];
    first.of[i] = rounded<Type>(x * cosine.of[i]) - rounded<Type>(y * sine.of[i]);
    second.of[i] = rounded<Type>(y * cosine.of[i]) + rounded<Type>(x * sine.of[i]);
  }
  Eight<Type> out_low, out_high;
  FS_UNROLL
  for (int i = 0; i < 8; ++i) {
    const Eight<Type>& one = i % 2 == 0 ? first : second;
    out_low.of[i] = a.is_neox ? first.of[i] : one.of[i / 2];
    out_high.of[i] = a.is_neox ? second.of[i] : one.of[4 + i / 2];
  }
  const auto store = [](uint16_t* place, const Eight<Type>& vector) {
    store_global(reinterpret_cast<uint4*>(place), vector.bits());
  };
  store(to + low, out_low);
  store(to + high, out_high);
  if (!copy) return;
  store(copy + low, out_low);
  store(copy + high, out_high);
}

__device__ __forceinline__ void copy_eight(uint16_t* to, const uint16_t* from) {
  store_global(reinterpret_cast<uint4*>(to), load_global(reinterpret_cast<const uint4*>(from)));
}

// Launch with a.tokens x a.blocks() blocks of kRopeThreads threads.
template <class Type>
__global__ void __launch_bounds__(kRopeThreads) rope_cache_kernel(const RopeCacheArguments a) {
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();
  const int64_t token = blockIdx.x;
  int item = blockIdx.y * kRopeThreads + threadIdx.x;
  int64_t slot = -1;
  if (a.key_cache.data && token < a.cached_tokens) slot = load_global(a.slots + token);
  if (slot >= a.all_slots) slot = -1;
  const uint16_t* cosines = nullptr;
  if (a.rotary_dim > 0) {
    const int64_t position = load_global(a.positions + token);
    cosines = a.cos_sin + max(min(position, a.max_positions - 1), int64_t{0}) * a.rotary_dim;
  }
  const uint16_t* const query = a.query + token * a.query_token;
  const uint16_t* const key = a.key + token * a.key_token;
  uint16_t* const query_to = a.query_to + token * a.query_to_token;
  uint16_t* const key_to = a.key_to + token * a.key_to_token;
  uint16_t* const cached = cached_at(a.key_cache, slot, a.page_size);
  const int pairs = a.rotary_dim / 16;
  if (item < a.rotated(a.query_heads)) {
    const int head = item / pairs;
    return rotate<Type>(a, query + head * a.query_head, query_to + head * a.query_to_head, nullptr,
                        cosines, item % pairs);
  }
  item -= a.rotated(a.query_heads);
  if (item < a.rotated(a.kv_heads)) {
    const int head = item / pairs;
    uint16_t* const copy = cached ? cached + head * a.key_cache.head : nullptr;
    return rotate<Type>(a, key + head * a.key_head, key_to + head * a.key_to_head, copy, cosines,
                        item % pairs);
  }
  item -= a.rotated(a.kv_heads);
  const int rest = (a.head_dim - a.rotary_dim) / 8;
  if (item < a.rest_of_queries()) {
    const int head = item / rest, column = a.rotary_dim + item % rest * 8;
    return copy_eight(query_to + (head * a.query_to_head + column),
                      query + (head * a.query_head + column));
  }
  item -= a.rest_of_queries();
  if (item < a.rest_of_keys()) {
    const int head = item / rest, column = a.rotary_dim + item % rest * 8;
    const uint16_t* const from = key + (head * a.key_head + column);
    if (key_to != key) copy_eight(key_to + (head * a.key_to_head + column), from);
    if (cached) copy_eight(cached + (head * a.key_cache.head + column), from);
    return;
  }
  item -= a.rest_of_keys();
  if (item >= a.values() || slot < 0) return;
  const int head = item / (a.value_dim / 8), column = item % (a.value_dim / 8) * 8;
  copy_eight(cached_at(a.value_cache, slot, a.page_size) + (head * a.value_cache.head + column),
             a.value + (token * a.value_token + head * a.value_head + column));
}

}  // namespace flashsparse::elementwise
