// SPDX-License-Identifier: Apache-2.0
// Attention of the query heads of one kv head over its rows, in fp32, with vectors as wide as those
// of the instruction set. Each folder includes it once, after its codes.h, with its own flags:
// everything has internal linkage (see README.md).
#pragma once
#include <cstdint>

#include "cpu/codes.h"
#include "cpu/kernels.h"
#include "cpu/vectors.h"

namespace {

using flashsparse::cpu::DecodeRow;

constexpr int kBlock = flashsparse::cpu::kDecodeBlock;

// e^x; 0 from -87 down, 2^126 and more from 88 up, NaN of NaN. Cephes' polynomial.
FS_VECTOR_INLINE void exponential(const Floats& given, Floats& to) {
  const Floats most = Floats{} + 88.0f, least = Floats{} - 87.0f;
  const Words lost = reinterpret_cast<Words>(given < least);
  Floats x = given > most ? most : given;
  x = x < least ? least : x;
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: its fraction holds the nearest integer
  const Floats shifted = x * 1.44269504f + kRounder;
  const Floats n = shifted - kRounder;
  const Floats r = x - n * 0.693359375f + n * 2.12194440e-4f;
  Floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const Words power = (reinterpret_cast<Words>(shifted) - 0x4b400000 + 127) << 23;
  to = reinterpret_cast<Floats>(reinterpret_cast<Words>(p * reinterpret_cast<Floats>(power)) &
                                ~lost);
}

FS_VECTOR_INLINE float sum_of(const Floats& x) {
  float halves[kLanes];
  store(x, halves);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) halves[i] += halves[i + width];
  }
  return halves[0];
}

// to[d] += the sum of terms[j] * rows[j][d], for `vectors` vectors of columns at a time.
template <int vectors>
FS_VECTOR_INLINE void add_rows(const float* terms, const float* rows, int count, int head_dim,
                               float* to) {
  Floats sums[vectors];
  for (int v = 0; v < vectors; ++v) load(to + v * kLanes, sums[v]);
  for (int j = 0; j < count; ++j) {
    for (int v = 0; v < vectors; ++v) {
      Floats row;
      load(rows + j * head_dim + v * kLanes, row);
      sums[v] += terms[j] * row;
    }
  }
  for (int v = 0; v < vectors; ++v) store(sums[v], to + v * kLanes);
}

// The softmax of a head: online, or with a fixed reference.
struct Head {
  float reference, norm;
};

constexpr float kNoScore = -3.402823466e38f;

// Adds `count` positions, whose scores are in `scores` and are replaced by terms.
FS_VECTOR_INLINE void add_terms(Head& head, bool online, float* scores, int count, float* sums,
                                int head_dim) {
  for (int j = count; j < kBlock; ++j) scores[j] = -__builtin_inff();
  if (online) {
    float highest = head.reference;
    for (int j = 0; j < count; ++j) highest = scores[j] > highest ? scores[j] : highest;
    if (highest > head.reference) {
      const Floats fall = Floats{} + (head.reference - highest);
      Floats shrink;
      exponential(fall, shrink);
      head.reference = highest;
      head.norm *= shrink[0];
      for (int d = 0; d < head_dim; ++d) sums[d] *= shrink[0];
    }
  }
  Floats total = {};
  for (int j = 0; j < kBlock; j += kLanes) {
    Floats score, term;
    load(scores + j, score);
    exponential(score - head.reference, term);
    store(term, scores + j);
    total += term;
  }
  head.norm += sum_of(total);
}

FS_VECTOR_INLINE void load_row(const void* from, int first, const DecodeRow& row, Floats& to) {
  if (!row.codes) return widen(from, first, row.dtype, to);
  load_fp8(static_cast<const uint8_t*>(from) + first, to);
  to *= kUnit<ValueType::kFp8>;
}

void attend(const DecodeRow& row, bool online, Head* heads, float* keys, float* values,
            float* scores) {
  const int dim = row.head_dim;
  for (int h = 0; h < row.heads; ++h) {
    heads[h] = {online ? kNoScore : row.phi[h], 0};
    for (int d = 0; d < dim; ++d) row.out[h * dim + d] = 0;
  }
  for (int64_t first = 0; first < row.positions; first += kBlock) {
    const int64_t left = row.positions - first;
    const int count = left < kBlock ? static_cast<int>(left) : kBlock;
    for (int j = 0; j < count; ++j) {
      for (int d = 0; d < dim; d += kLanes) {
        Floats key, value;
        load_row(row.keys[first + j], d, row, key);
        load_row(row.values[first + j], d, row, value);
        store(key, keys + j * dim + d);
        store(value, values + j * dim + d);
      }
    }
    for (int h = 0; h < row.heads; ++h) {
      const float* const query = row.query + h * dim;
      for (int j = 0; j < count; ++j) {
        Floats sums = {};
        for (int d = 0; d < dim; d += kLanes) {
          Floats q, k;
          load(query + d, q);
          load(keys + j * dim + d, k);
          sums += q * k;
        }
        scores[j] = sum_of(sums);
      }
      if (row.softcap > 0) {  // tanh(x) = 1 - 2 / (e^2x + 1)
        for (int j = 0; j < kBlock; j += kLanes) {
          Floats score, e;
          load(scores + j, score);
          exponential(score * (2 / row.softcap), e);
          store(row.softcap * (1 - 2 / (e + 1)), scores + j);
        }
      }
      float* const sums = row.out + h * dim;
      add_terms(heads[h], online, scores, count, sums, dim);
      int d = 0;
      for (; d + 4 * kLanes <= dim; d += 4 * kLanes) {
        add_rows<4>(scores, values + d, count, dim, sums + d);
      }
      for (; d < dim; d += kLanes) add_rows<1>(scores, values + d, count, dim, sums + d);
    }
  }
}

// Adds a sink's term to the norm, under a reference that is not below it.
FS_VECTOR_INLINE void add_sink(Head& head, float sink, float* sums, int head_dim) {
  const float reference = sink > head.reference ? sink : head.reference;
  Floats shrink, term;
  exponential(Floats{} + (head.reference - reference), shrink);
  exponential(Floats{} + (sink - reference), term);
  head = {reference, head.norm * shrink[0] + term[0]};
  for (int d = 0; d < head_dim; ++d) sums[d] *= shrink[0];
}

void decode_row(const DecodeRow& row) {
  float* const keys = row.scratch;
  float* const values = keys + kBlock * flashsparse::cpu::kMostHeadDim;
  float* const scores = values + kBlock * flashsparse::cpu::kMostHeadDim;
  Head* const heads = reinterpret_cast<Head*>(scores + kBlock);
  const bool online = row.phi == nullptr || row.positions == 0;
  attend(row, online, heads, keys, values, scores);
  bool redo = false;
  for (int h = 0; h < row.heads; ++h) {
    const bool sound = heads[h].norm >= row.low && heads[h].norm < row.high;  // false for NaN, too
    row.recomputed[h] = !online && !sound;
    redo = redo || row.recomputed[h];
  }
  if (redo) attend(row, true, heads, keys, values, scores);
  for (int h = 0; h < row.heads; ++h) {
    if (row.sinks) add_sink(heads[h], row.sinks[h], row.out + h * row.head_dim, row.head_dim);
    const float inverse =
        heads[h].norm == 0 ? 0 : row.value_scale / heads[h].norm;  // no positions: zero
    for (int d = 0; d < row.head_dim; ++d) row.out[h * row.head_dim + d] *= inverse;
  }
}

}  // namespace
