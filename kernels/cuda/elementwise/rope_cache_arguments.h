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

// Without a cache: key_cache.data is null, and value is not read. Without a rotation: rotary_dim is
// 0, query_heads too. In place: query_to is query, and key_to key.
struct RopeCacheArguments {
  const uint16_t* query;        // [tokens, query_heads, head_dim]
  const uint16_t* key;          // [tokens, kv_heads, head_dim]
  uint16_t *query_to, *key_to;  // rotated
  const uint16_t* value;        // [tokens, kv_heads, value_dim]
  const int64_t* positions;     // [tokens]
  const uint16_t* cos_sin;      // [max_positions, rotary_dim]: cosines, then sines
  const int64_t* slots;         // [cached_tokens]: block * page_size + position; < 0: not cached
  PagedCache key_cache, value_cache;
  int64_t query_token, query_head, key_token, key_head, value_token, value_head;
  int64_t query_to_token, query_to_head, key_to_token, key_to_head;
  int64_t max_positions, all_slots;
  int tokens, cached_tokens;
  int query_heads, kv_heads, head_dim, value_dim, rotary_dim, page_size;
  bool is_neox;  // pairs are (i, i + rotary_dim / 2), or else (2i, 2i + 1)

  // Work of one token, an item a thread: 8 pairs of a head, or 8 elements that are only copied.
  FS_HOST_DEVICE int rotated(int heads) const { return heads * (rotary_dim / 16); }
  // Of elements that are not rotated.
  FS_HOST_DEVICE int rest_of_queries() const {
    return query_to != query ? query_heads * ((head_dim - rotary_dim) / 8) : 0;
  }
  FS_HOST_DEVICE int rest_of_keys() const {
    return key_to != key || key_cache.data ? kv_heads * ((head_dim - rotary_dim) / 8) : 0;
  }
  FS_HOST_DEVICE int values() const { return key_cache.data ? kv_heads * (value_dim / 8) : 0; }
  int items() const {
    return rotated(query_heads) + rotated(kv_heads) + rest_of_queries() + rest_of_keys() + values();
  }
  int blocks() const { return (items() + kRopeThreads - 1) / kRopeThreads; }
};

}  // namespace flashsparse::elementwise
