// SPDX-License-Identifier: Apache-2.0
// Damages packed tensors at random. Each must be refused, or read as the format says, by every
// reader alike; a sanitizer watches for anything else. Arrays have their exact sizes on the heap,
// so a read beyond one is seen.
//
//   fuzz_tiled_csl [rounds] [seed]
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "common/float16.h"
#include "cpu/capability.h"
#include "cpu/interleaved_bitmap/interleaved_bitmap.h"
#include "cpu/tiled_csl/tiled_csl.h"
#include "formats/interleaved_bitmap.h"
#include "formats/tiled_csl.h"

using namespace flashsparse;

namespace {

std::mt19937 random_bits;

int64_t below(int64_t bound) { return random_bits() % bound; }

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::abort();
}

struct Tensors {
  std::vector<uint32_t> words;
  std::vector<int32_t> offsets;
  int64_t rows, cols;

  tiled_csl::Packed view() const {
    return {words.data(), static_cast<int64_t>(words.size()), offsets.data(), rows, cols};
  }
  int64_t tiles() const { return tiled_csl::tile_rows(rows) * tiled_csl::tile_cols(cols); }
};

std::vector<uint16_t> random_weight(int64_t rows, int64_t cols) {
  std::vector<uint16_t> weight(rows * cols);
  const int64_t percent = below(101);
  for (uint16_t& value : weight) {
    if (below(100) < percent) value = bfloat16_from_float(static_cast<float>(below(200) - 100));
  }
  return weight;
}

Tensors pack(const std::vector<uint16_t>& weight, int64_t rows, int64_t cols) {
  Tensors made{{}, {}, rows, cols};
  std::vector<int64_t> counted(made.tiles() + 1);
  const auto blocks = cpu::blocks_of(weight.data(), rows, cols, tiled_csl::kBlockRows, 64);
  tiled_csl::count(blocks, rows, cols, counted.data());
  made.offsets.assign(counted.begin(), counted.end());
  made.words.resize(counted.back());
  tiled_csl::pack(blocks, rows, cols, made.offsets.data(), made.words.data());
  return made;
}

void damage(Tensors& tensors) {
  auto& words = tensors.words;
  auto& offsets = tensors.offsets;
  switch (below(9)) {
    case 0:  // a bit of a word
      if (!words.empty()) words[below(words.size())] ^= 1u << below(32);
      break;
    case 1:  // any word
      if (!words.empty()) words[below(words.size())] = random_bits();
      break;
    case 2:  // a copy of another word: often sound
      if (!words.empty()) words[below(words.size())] = words[below(words.size())];
      break;
    case 3: {  // two words of a tile change places: sound
      const int64_t tile = below(tensors.tiles());
      const int64_t begin = offsets[tile], count = offsets[tile + 1] - begin;
      if (begin >= 0 && count > 0 && begin + count <= static_cast<int64_t>(words.size())) {
        std::swap(words[begin + below(count)], words[begin + below(count)]);
      }
      break;
    }
    case 4:  // an offset
      offsets[below(offsets.size())] = static_cast<int32_t>(random_bits());
      break;
    case 5:  // an offset, a little
      offsets[below(offsets.size())] += static_cast<int32_t>(4 * below(5) - 8);
      break;
    case 6:  // a stream that ends early
      words.resize(below(words.size() + 1));
      words.shrink_to_fit();
      break;
    case 7: {  // another shape with as many tiles
      tensors.rows = std::max<int64_t>(1, tensors.rows - below(40));
      tensors.cols = std::max<int64_t>(1, tensors.cols - below(40));
      offsets.resize(tensors.tiles() + 1);
      offsets.shrink_to_fit();
      break;
    }
    case 8:  // an explicit zero
      if (!words.empty()) words[below(words.size())] &= 0x8000ffffu;
      break;
  }
}

// The format, read word by word; nothing where it breaks a rule.
std::optional<std::vector<uint16_t>> read_by_the_book(const Tensors& tensors) {
  const auto& offsets = tensors.offsets;
  if (offsets[0] != 0 || offsets.back() != static_cast<int64_t>(tensors.words.size())) return {};
  for (size_t t = 0; t + 1 < offsets.size(); ++t) {
    if (offsets[t + 1] < offsets[t] || offsets[t + 1] % 4) return {};
  }
  std::vector<uint16_t> weight(tensors.rows * tensors.cols);
  std::vector<bool> written(weight.size());
  const int64_t across = tiled_csl::tile_cols(tensors.cols);
  for (int64_t t = 0; t < tensors.tiles(); ++t) {
    for (int64_t i = offsets[t]; i < offsets[t + 1]; ++i) {
      const uint32_t location = tensors.words[i] & 0xffff;
      const uint16_t value = static_cast<uint16_t>(tensors.words[i] >> 16);
      if (location >= 128 * 64) return {};
      const int64_t row = t / across * 128 + location / 64;
      const int64_t col = t % across * 64 + ((location / 8 ^ location / 64) % 8 * 8 + location % 8);
      if (row >= tensors.rows || col >= tensors.cols) return {};
      const int64_t at = row * tensors.cols + col;
      if (written[at] && weight[at] != value) return {};
      weight[at] = value;
      written[at] = true;
    }
  }
  return weight;
}

bool same(uint16_t a, uint16_t b) { return a == b || ((a | b) & 0x7fff) == 0; }

void check_bitmap(const Tensors& tensors, const std::vector<uint16_t>& weight, bool sound) {
  std::vector<int64_t> tile_row_values(tiled_csl::tile_rows(tensors.rows) + 1);
  const std::string error = tiled_csl::count_values(tensors.view(), tile_row_values.data());
  require(error.empty() || !sound, "count_values refuses sound tensors");
  if (!error.empty()) return;
  const int64_t panels = flashsparse::panels(tensors.rows);
  std::vector<uint32_t> masks(panels * column_pairs(tensors.cols));
  std::vector<uint16_t> values(tile_row_values.back() + kValueSlack);
  std::vector<int64_t> panel_offsets(panels + 1);
  const auto result = tiled_csl::to_interleaved_bitmap(
      tensors.view(), tile_row_values.data(), masks.data(), values.data(), panel_offsets.data());
  require(result.error.empty() == sound, "to_interleaved_bitmap and validate disagree");
  if (!sound || !result.counted) return;
  std::vector<uint16_t> back(weight.size(), 0x7fc0);
  interleaved_bitmap::unpack({tensors.rows, tensors.cols, masks.data(), values.data(),
                              panel_offsets.data(), Dtype::kBFloat16},
                             back.data());
  for (size_t i = 0; i < weight.size(); ++i) require(same(back[i], weight[i]), "bitmap differs");
}

void check_linear(const Tensors& tensors, const std::vector<uint16_t>& weight, bool sound) {
  const int64_t tokens = 1 + below(9);
  std::vector<float> x(tokens * tensors.cols), y(tokens * tensors.rows);
  for (float& value : x) value = static_cast<float>(below(7) - 3);
  const std::string error = tiled_csl::linear(tensors.view(), Dtype::kBFloat16, x.data(), tokens,
                                              nullptr, y.data(), Dtype::kFloat32);
  require(error.empty() == sound, "linear and validate disagree");
  if (!sound) return;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t r = 0; r < tensors.rows; ++r) {
      double exact = 0, magnitude = 0;
      for (int64_t c = 0; c < tensors.cols; ++c) {
        const double product = static_cast<double>(x[t * tensors.cols + c]) *
                               float_from_bfloat16(weight[r * tensors.cols + c]);
        exact += product;
        magnitude += std::fabs(product);
      }
      // Damaged values may be infinite, NaN or too large to add up in fp32.
      if (!(magnitude < 1e37)) continue;
      const double error_bound = magnitude * static_cast<double>(tensors.cols) * 0x1p-23 + 1e-37;
      require(std::fabs(y[t * tensors.rows + r] - exact) <= error_bound, "linear is wrong");
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 1000;
  random_bits.seed(argc > 2 ? std::atoi(argv[2]) : 0);
  int sound_tensors = 0;
  for (int round = 0; round < rounds; ++round) {
    const int64_t rows = 1 + below(200), cols = 1 + below(150);
    Tensors tensors = pack(random_weight(rows, cols), rows, cols);
    for (int64_t i = below(3); i >= 0; --i) damage(tensors);

    const auto expected = read_by_the_book(tensors);
    const bool sound = expected.has_value();
    sound_tensors += sound;
    const auto validation = tiled_csl::validate(tensors.view());
    require(validation.error.empty() == sound, "validate and the format disagree");
    const std::vector<uint16_t> weight =
        expected.value_or(std::vector<uint16_t>(tensors.rows * tensors.cols));
    std::vector<uint16_t> unpacked(weight.size(), 0x7fc0);
    require(tiled_csl::unpack(tensors.view(), unpacked.data()).error == validation.error,
            "unpack and validate disagree");
    if (sound) {
      int64_t nonzeros = 0;
      for (size_t i = 0; i < weight.size(); ++i) {
        require(same(unpacked[i], weight[i]), "unpack is wrong");
        nonzeros += !is_zero(weight[i]);
      }
      require(nonzeros == validation.nonzeros, "nonzeros are miscounted");
    }
    check_bitmap(tensors, weight, sound);
    check_linear(tensors, weight, sound);
  }
  std::printf("%s: %d mutations, %d still sound\n", cpu::name_of(cpu::capability()), rounds,
              sound_tensors);
}
