// SPDX-License-Identifier: Apache-2.0
// Attention of one new token per sequence over its cached keys and values, with a unified maximum
// (FlashDecoding++, Hong et al., 2023, section 3). docs/attention.md explains it; in short:
//
// A block takes one split of a sequence's positions for up to 8 query heads (or 16, kHeadTiles)
// that share a kv head. Its warps take tiles of 16 positions round-robin, each through its own ring
// in shared memory, with no block barrier until their tiles are done:
//   load      starts copies of a tile some steps ahead (unified_max_load.cuh)
//   scores    S [16 positions, 8 heads] = K Q^T, mma; K from shared memory, Q in registers
//   terms     P = 2^(S - reference), rounded to 16 bits, transposed in registers
//   sums      O^T [head_dim, 8 heads] += V^T P, mma; and the sum of P alone, by one mma with ones
// Positions are the 16-row side of mma and heads the 8-column side: the other way round half of the
// rows would be padding.
//
// The reference is phi, the same everywhere, so that splits need not exchange it, and their sums
// simply add up. When a warp is done, one comparison per head tells whether phi was good: all terms
// are positive, so the sum bounds each of them, infinity and NaN stay in it, and a sum that is too
// small means that terms were lost. If phi was not good, the warp recomputes its own tiles with the
// online softmax and its own reference, by which its sums are weighted when they are combined.
// Without phi it is the online softmax from the start; its reference moves only when a score is
// more than 2^8 above it.
//
// The splits of a row write their partial sums to `partials`, and the block that arrives last adds
// them up in the order of splits: one launch, and the same bits every time.
#pragma once
#include "common/device.cuh"
#include "common/float32.cuh"
#include "common/memory.cuh"
#include "common/mma.cuh"
#include "common/registers.cuh"
#include "cuda/attention/unified_max_arguments.h"
#include "cuda/attention/unified_max_join.cuh"
#include "cuda/attention/unified_max_load.cuh"
#include "cuda/attention/unified_max_plan.h"
#include "cuda/attention/unified_max_scores.cuh"
#include "cuda/attention/unified_max_tile.cuh"
#include "cuda/shared/partial_sums.cuh"

namespace flashsparse::unified_max {

// Launch with a grid of (splits, kv_heads * Problem::group_blocks(), sequences), at most kMaxWarps
// whole warps, and ring_bytes for each warp.
template <class Tile, int kHeadTiles>
class DecodeBlock {
 public:
  __device__ __forceinline__ DecodeBlock(const DecodeArguments& a, uint32_t shared)
      : a_(a),
        shared_(shared),
        lane_(threadIdx.x % 32),
        warp_(threadIdx.x / 32),
        warps_(blockDim.x / 32),
        sequence_(blockIdx.z),
        kv_head_(blockIdx.y / (gridDim.y / a.kv_heads)),
        row_(blockIdx.z * gridDim.y + blockIdx.y),
        first_head_(kv_head_ * a.group + blockIdx.y % (gridDim.y / a.kv_heads) * kBlockHeads),
        heads_(min(kv_head_ * a.group + a.group - first_head_, kBlockHeads)),
        ring_(shared + warp_ * kRingBytes),
        loader_(a, ring_, sequence_, kv_head_) {
    tile_.begin(ring_, lane_);
  }

  __device__ __forceinline__ void run() {
    griddepcontrol_launch_dependents();  // its product can load weights meanwhile
    griddepcontrol_wait();               // for the query, and keys and values of the new token
    if (!find_split()) return;
    load_query();
    if constexpr (kCodes) load_scales();
    FS_NO_UNROLL
    for (bool online = a_.phi == nullptr;; online = true) {
      attend(online);
      if (online || !out_of_range()) break;
    }
    store_sums();
    __syncthreads();
    join_parts();
  }

 private:
  using Type = typename Tile::Type;
  static constexpr int kHeadDim = Tile::kHeadDim;
  static constexpr bool kCodes = Tile::kElementBytes == 1;
  static constexpr float kLog2e = 1.4426950408889634f;
  static constexpr float kHeadroom = 8;  // log2 of the largest term before rescaling
  static constexpr int kBlockHeads = kHeadTiles * kHeads;
  static constexpr int kSteps = kHeadDim / 16;  // mma steps along the head
  static constexpr int kStages = stages(kHeadDim, Tile::kElementBytes);
  static constexpr uint32_t kTileBytes = tile_bytes(kHeadDim, Tile::kElementBytes);
  static constexpr uint32_t kRingBytes = ring_bytes(kHeadDim, Tile::kElementBytes);

  // ---- which positions are this warp's ----------------------------------------------------------

  // False if the sequence has too few positions for this split. Split 0 always exists.
  __device__ __forceinline__ bool find_split() {
    int length = a_.positions;
    if (a_.lengths) length = max(min(load_global(a_.lengths + sequence_), length), 0);
    const int start = a_.window > 0 ? max(length - a_.window, 0) : 0;
    const int first = start / kTile, tiles = (length + kTile - 1) / kTile - first;
    const int launched = gridDim.x, split = blockIdx.x;
    const int share = max((tiles + launched - 1) / launched, least_tiles(tiles));
    splits_ = max((tiles + share - 1) / share, 1);
    begin_ = first + split * share + warp_;
    end_ = first + min((split + 1) * share, tiles);
    loader_.set_positions(start, length);
    return split < splits_;
  }

  // ---- the warp's tiles -------------------------------------------------------------------------

  // Q^T is mma's B operand: row d, column head. Missing heads are zero.
  __device__ __forceinline__ void load_query() {
    FS_UNROLL
    for (int h = 0; h < kHeadTiles; ++h) {
      const int head = h * kHeads + lane_ / 4;
      const uint16_t* const mine =
          a_.query + (sequence_ * a_.query_sequence + (first_head_ + head) * a_.query_head +
                      Tile::query_element(lane_, 0));
      FS_UNROLL
      for (int k = 0; k < kSteps; ++k) {
        FS_UNROLL
        for (int i = 0; i < 2; ++i) {
          const int further = Tile::query_element(0, i);
          const auto* const two = reinterpret_cast<const uint32_t*>(mine + k * 16 + further);
          query_[h][k][i] = head < heads_ ? load_global(two) : 0;
        }
      }
    }
  }

  // All scores are products with codes times the scale of keys, before anything else happens to
  // them; all sums are those of codes until a result is stored.
  __device__ __forceinline__ void load_scales() {
    const float* const key = a_.key_scale + kv_head_ * a_.key_scales_of_heads;
    const float* const value = a_.value_scale + kv_head_ * a_.value_scales_of_heads;
    key_scale_ = a_.key_scale ? load_global(key) : 1;
    value_scale_ = a_.value_scale ? load_global(value) : 1;
  }

  // A lane's scores are those of positions lane / 4 and lane / 4 + 8, for two heads of each tile.
  __device__ __forceinline__ int head_of(int h, int i) const {
    return h * kHeads + lane_ % 4 * 2 + i;
  }

  __device__ __forceinline__ void attend(bool online) {
    seen_ = 0;
    FS_UNROLL
    for (int h = 0; h < kHeadTiles; ++h) {
      FS_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int head = head_of(h, i);
        const bool fixed = !online && head < heads_;
        reference_[h][i] = fixed ? load_readonly(a_.phi + first_head_ + head) * kLog2e : 0;
        if (online) reference_[h][i] = kNoScore;
        limit_[h][i] = kNoScore;
      }
      FS_UNROLL
      for (int i = 0; i < 4; ++i) {
        norm_[h][i] = 0;
        FS_UNROLL
        for (int k = 0; k < kSteps; ++k) sums_[h][k][i] = 0;
      }
    }
    loader_.begin(begin_, end_, warps_);
    uint32_t slot = 0;
    FS_NO_UNROLL
    for (int tile = begin_ - (kStages - 1) * warps_; tile < end_; tile += warps_) {
      copy_async_wait<kStages - 2>();
      __syncwarp();  // this tile has arrived, and the previous one has been read
      loader_.load_next(slot);
      copy_async_commit();
      slot = slot == (kStages - 1) * kTileBytes ? 0 : slot + kTileBytes;
      const uint32_t here = loader_.looked_at(kStages - 1);  // 0 while the ring fills
      if (here != 0) multiply(slot, here, online);
    }
    __syncwarp();  // the last tile has been read, too; all copies have landed
  }

  __device__ __forceinline__ void multiply(uint32_t slot, uint32_t here, bool online) {
    seen_ = 1;
    float halves[kHeadTiles][2][4] = {};  // two accumulators shorten the chain of mma
    FS_UNROLL
    for (int first = 0; first < kSteps; first += Tile::kRead) {
      uint32_t key[Tile::kRead][4];
      tile_.keys(slot, first, key);
      FS_UNROLL
      for (int s = 0; s < Tile::kRead && first + s < kSteps; ++s) {
        const int k = first + s;
        FS_UNROLL
        for (int h = 0; h < kHeadTiles; ++h) {
          mma_m16n8k16<Type>(halves[h][k % 2], key[s], query_[h][k][0], query_[h][k][1]);
        }
      }
    }
    float scores[kHeadTiles][4];
    FS_UNROLL
    for (int h = 0; h < kHeadTiles; ++h) {
      FS_UNROLL
      for (int i = 0; i < 4; ++i) {
        scores[h][i] = halves[h][0][i] + halves[h][1][i];
        if constexpr (kCodes) scores[h][i] *= key_scale_;
      }
    }
    if (a_.scaling.cap > 0) {
      FS_UNROLL
      for (int h = 0; h < kHeadTiles; ++h) {
        FS_UNROLL
        for (int i = 0; i < 4; ++i) scores[h][i] = capped(scores[h][i], a_.scaling);
      }
    }
    if (here != kAllPositions) {
      FS_UNROLL
      for (int h = 0; h < kHeadTiles; ++h) {
        FS_UNROLL
        for (int i = 0; i < 4; ++i) {
          if (!(here >> (lane_ / 4 + i / 2 * 8) & 1)) scores[h][i] = -INFINITY;
        }
      }
    }
    if (online) {
      float top[kHeadTiles][2];
      bool above = false;
      FS_UNROLL
      for (int h = 0; h < kHeadTiles; ++h) {
        FS_UNROLL
        for (int i = 0; i < 2; ++i) {
          top[h][i] = fmaxf(scores[h][i], scores[h][i + 2]);
          above = above || top[h][i] > limit_[h][i];
        }
      }
      if (__any_sync(~0u, above)) raise_references(top);
    }
    uint32_t terms[kHeadTiles][2];
    FS_UNROLL
    for (int h = 0; h < kHeadTiles; ++h) {
      float exact[4];
      FS_UNROLL
      for (int i = 0; i < 4; ++i) {
        exact[i] = exp2_approx(fmaf(scores[h][i], a_.scaling.factor, -reference_[h][i % 2]));
      }
      // From positions by heads, the layout of mma's result, to the B operand: heads by positions.
      terms[h][0] = transpose_8x8(from_floats<Type>(exact[0], exact[1]));
      terms[h][1] = transpose_8x8(from_floats<Type>(exact[2], exact[3]));
      constexpr uint32_t kOnes = ones<Type>();  // for the sum of what was rounded
      mma_m16n8k16<Type>(norm_[h], {kOnes, kOnes, kOnes, kOnes}, terms[h][0], terms[h][1]);
    }
    FS_UNROLL
    for (int first = 0; first < kSteps; first += Tile::kRead) {
      uint32_t value[Tile::kRead][4];
      tile_.values(slot, first, value);
      FS_UNROLL
      for (int s = 0; s < Tile::kRead && first + s < kSteps; ++s) {
        FS_UNROLL
        for (int h = 0; h < kHeadTiles; ++h) {
          mma_m16n8k16<Type>(sums_[h][first + s], value[s], terms[h][0], terms[h][1]);
        }
      }
    }
  }

  // Sets the reference of each head to its highest score, and rescales the accumulators to it.
  __device__ __forceinline__ void raise_references(const float (&top)[kHeadTiles][2]) {
    FS_UNROLL
    for (int h = 0; h < kHeadTiles; ++h) {
      FS_UNROLL
      for (int i = 0; i < 2; ++i) {
        float highest = top[h][i];
        FS_UNROLL
        for (int lanes = 4; lanes < 32; lanes *= 2) {
          highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, lanes));
        }
        const float raised = fmaxf(reference_[h][i], highest * a_.scaling.factor);
        const float shrink = exp2_approx(reference_[h][i] - raised);
        reference_[h][i] = raised;
        limit_[h][i] = (raised + kHeadroom) * a_.scaling.inverse;
        FS_UNROLL
        for (int half = 0; half < 4; half += 2) {
          norm_[h][i + half] *= shrink;
          FS_UNROLL
          for (int k = 0; k < kSteps; ++k) sums_[h][k][i + half] *= shrink;
        }
      }
    }
  }

  // Whether the reference was out of range for a head of this warp. Every lane has the whole norm
  // of its heads.
  __device__ __forceinline__ bool out_of_range() {
    bool any = false;
    FS_UNROLL
    for (int h = 0; h < kHeadTiles; ++h) {
      FS_UNROLL
      for (int i = 0; i < 2; ++i) {
        const bool sound = norm_[h][i] >= a_.low && norm_[h][i] < a_.high;  // false for NaN, too
        redone_[h][i] = seen_ && head_of(h, i) < heads_ && !sound;
        any = any || redone_[h][i];
      }
    }
    return __any_sync(~0u, any);
  }

  // ---- joining ----------------------------------------------------------------------------------

  static constexpr int kRecord = record_floats(kHeadDim);
  static constexpr uint32_t kRecordBytes = kRecord * sizeof(float);
  static constexpr int kQuads = kHeadDim / 4;  // of four sums, which a thread combines at a time
  static_assert(kBlockHeads * kRecordBytes <= kRingBytes);

  // Writes the warp's partial sums to its own ring, which no other warp accesses before a barrier.
  __device__ __forceinline__ void store_sums() {
    FS_UNROLL
    for (int h = 0; h < kHeadTiles; ++h) {
      FS_UNROLL
      for (int i = 0; i < 2; ++i) {
        const uint32_t to = ring_ + head_of(h, i) * kRecordBytes + Tile::sums_place(lane_);
        FS_UNROLL
        for (int k = 0; k < kSteps; ++k) {
          Tile::store_sums(to + k * 64, sums_[h][k][i], sums_[h][k][i + 2]);
        }
        if (lane_ / 4 == 0) {
          const float reference = seen_ ? reference_[h][i] : kNoScore;
          store_shared(to + kAbout<kHeadDim>,
                       make_float4(reference, norm_[h][i], redone_[h][i], 0));
        }
      }
    }
  }

  // Combines the partial sums of the block's warps and then, in the block that arrives last, those
  // of the row's splits. The latter are fetched all at once to hide the latency of memory, and
  // combined by the same code, which is in the instruction cache.
  __device__ __forceinline__ void join_parts() {
    // Of the row: a record for each head of each split.
    float* const partials =
        a_.partials + static_cast<int64_t>(row_) * gridDim.x * kBlockHeads * kRecord;
    int parts = warps_;
    uint32_t records = shared_, stride = kRingBytes;
    FS_NO_UNROLL
    for (bool complete = splits_ == 1;; complete = true) {
      FS_NO_UNROLL
      for (int i = threadIdx.x; i < heads_ * kQuads; i += blockDim.x) {
        const int head = i / kQuads, quad = i % kQuads;
        const Joined joined = join<kHeadDim>(parts, records + head * kRecordBytes, stride, quad);
        if (complete) {
          store_result(head, quad, joined);
        } else {
          const int record = blockIdx.x * heads_ + head;
          float4* const to = reinterpret_cast<float4*>(partials + record * kRecord);
          store_global(to + quad, joined.sums);
          if (quad == 0) store_global(to + kQuads, joined.about());
        }
      }
      if (complete || !last_block(a_.arrivals + row_, splits_ - 1, shared_)) return;
      records = shared_ + kSplitsAt;
      const auto* const chunks = reinterpret_cast<const float4*>(partials);
      FS_NO_UNROLL
      for (int i = threadIdx.x; i < splits_ * heads_ * (kRecord / 4); i += blockDim.x) {
        copy_async<16>(records + i * 16, chunks + i, true);
      }
      copy_async_commit();
      copy_async_wait<0>();
      __syncthreads();
      parts = splits_;
      stride = heads_ * kRecordBytes;
    }
  }

  __device__ __forceinline__ void store_result(int head, int quad, Joined joined) const {
    if (a_.sinks) joined = joined.with_sink(sink_of(first_head_ + head));
    const int64_t row =
        static_cast<int64_t>(sequence_) * a_.kv_heads * a_.group + first_head_ + head;
    const float inverse = joined.norm == 0
                              ? 0.0f
                              : (kCodes ? value_scale_ : 1.0f) / joined.norm;  // no positions: zero
    const float4& sums = joined.sums;
    store_global(reinterpret_cast<uint2*>(a_.out + (row * kHeadDim + quad * 4)),
                 make_uint2(from_floats<Type>(sums.x * inverse, sums.y * inverse),
                            from_floats<Type>(sums.z * inverse, sums.w * inverse)));
    if (quad == 0) store_global(a_.recomputed + row, static_cast<int32_t>(joined.redone));
  }

  // In units of references. It joins a row's result and none of its parts, so it counts once.
  __device__ __forceinline__ float sink_of(int head) const {
    if (a_.sinks_float32) return load_readonly(static_cast<const float*>(a_.sinks) + head) * kLog2e;
    return to_float<Type>(load_readonly(static_cast<const uint16_t*>(a_.sinks) + head)) * kLog2e;
  }

  const DecodeArguments& a_;
  const uint32_t shared_;
  const int lane_, warp_, warps_;
  const int sequence_, kv_head_, row_, first_head_, heads_;
  const uint32_t ring_;  // of the warp
  TileLoader<row_bytes(kHeadDim, Tile::kElementBytes)> loader_;
  Tile tile_;

  int splits_;       // of the sequence
  int begin_, end_;  // the warp's tiles: every warps_-th

  uint32_t query_[kHeadTiles][kSteps][2];
  float sums_[kHeadTiles][kSteps][4], norm_[kHeadTiles][4];
  float reference_[kHeadTiles][2];  // log2
  float limit_[kHeadTiles][2];      // of unscaled scores: above it the reference has to move
  float key_scale_, value_scale_;   // of codes
  bool redone_[kHeadTiles][2] = {};
  int seen_;  // whether there was a position to attend to
};

}  // namespace flashsparse::unified_max
