// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "common/host_device.h"

namespace flashsparse::elementwise {

inline constexpr int kRopeThreads = 128;

// Keys or values of a paged cache [blocks, page_size, heads, dim].
struct PagedCache {
  uint16_t* data;
  int64_t block, position, head;
};

// Without a cache: keys_cache.data is null, and value is not read. Without a rotation: rotary_dim
// is 0, query_heads too.
struct RopeCacheArguments {
  uint16_t* query;           // [tokens, query_heads, head_dim], rotated in place
  uint16_t* key;             // [tokens, kv_heads, head_dim], rotated in place
  const uint16_t* value;     // [tokens, kv_heads, value_dim]
  const int64_t* positions;  // [tokens]
  const uint16_t* cos_sin;   // [max_positions, rotary_dim]: cosines, then sines
  const int64_t* slots;      // [cached_tokens]: block * page_size + position; < 0: not cached
  PagedCache key_cache, value_cache;
  int64_t query_token, query_head, key_token, key_head, value_token, value_head;
  int64_t max_positions, all_slots;
  int tokens, cached_tokens;
  int query_heads, kv_heads, head_dim, value_dim, rotary_dim, page_size;
  bool is_neox;  // pairs are (i, i + rotary_dim / 2), or else (2i, 2i + 1)

  // Work of one token, an item a thread: 8 pairs of a head, or 8 elements that are only cached.
  FS_HOST_DEVICE int rotated(int heads) const { return heads * (rotary_dim / 16); }
  FS_HOST_DEVICE int rest_of_keys() const { return kv_heads * ((head_dim - rotary_dim) / 8); }
  FS_HOST_DEVICE int values() const { return kv_heads * (value_dim / 8); }
  int items() const {
    const int cached = key_cache.data ? rest_of_keys() + values() : 0;
    return rotated(query_heads) + rotated(kv_heads) + cached;
  }
  int blocks() const { return (items() + kRopeThreads - 1) / kRopeThreads; }
};

}  // namespace flashsparse::elementwise
