// SPDX-License-Identifier: Apache-2.0
// Damages tensors of tiled_bitmap at random. Each must be refused, or read as the format says, by
// every reader alike; a sanitizer watches for anything else. Arrays have their exact sizes on the
// heap, so a read beyond one is seen.
//
// Every second weight is of codes: items of 8 bits, whose weights are marked (cpu/marked.h) as
// everything here reads them.
//
//   fuzz_tiled_bitmap [rounds] [seed]
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <random>
#include <vector>

#include "common/float16.h"
#include "cpu/capability.h"
#include "cpu/interleaved_bitmap/interleaved_bitmap.h"
#include "cpu/marked.h"
#include "cpu/tiled_bitmap/tiled_bitmap.h"
#include "cpu/tiled_csl/tiled_csl.h"
#include "formats/interleaved_bitmap.h"
#include "formats/tiled_csl.h"
#include "formats/zero.h"

using namespace flashsparse;

namespace {

using Weight = std::vector<uint16_t>;

std::mt19937 random_bits;

int64_t below(int64_t bound) { return random_bits() % bound; }

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::abort();
}

// Of code + 128.
uint16_t marked_byte(uint32_t byte) {
  const auto code = static_cast<int8_t>(byte ^ 128);
  return code ? cpu::marked(code) : uint16_t{0};
}

struct Tensors {
  std::vector<uint32_t> lines;
  std::vector<int32_t> offsets;
  int64_t rows, cols;
  int item_bytes;

  tiled_bitmap::Packed view() const {
    const auto count = static_cast<int64_t>(lines.size()) / 32;
    return {lines.data(), count, offsets.data(), rows, cols, item_bytes};
  }
};

Weight random_weight(int64_t rows, int64_t cols, int item_bytes) {
  Weight weight(rows * cols);
  const int64_t percent = below(101);
  for (uint16_t& value : weight) {
    if (below(100) >= percent) continue;
    value = item_bytes == 1 ? marked_byte(below(256))
                            : bfloat16_from_float(static_cast<float>(below(200) - 100));
  }
  return weight;
}

Tensors pack(const cpu::Blocks& blocks, int64_t rows, int64_t cols, int item_bytes) {
  tiled_bitmap::Packer packer(rows, cols, blocks, item_bytes);
  Tensors made{std::vector<uint32_t>(32 * packer.count()),
               std::vector<int32_t>(tiled_bitmap::units(rows, cols) + 1), rows, cols, item_bytes};
  packer.write(made.offsets.data(), made.lines.data());
  return made;
}

void damage(Tensors& tensors) {
  auto& lines = tensors.lines;
  auto& offsets = tensors.offsets;
  const auto unit = below(offsets.size() - 1);
  const int64_t head = static_cast<int64_t>(offsets[unit]) * 32;
  const bool known = head >= 0 && head + 160 <= static_cast<int64_t>(lines.size());
  switch (below(8)) {
    case 0:  // a bit of any word: often of a value, and sound
      if (!lines.empty()) lines[below(lines.size())] ^= 1u << below(32);
      break;
    case 1:  // a bit of a mask
      if (known) lines[head + below(128)] ^= 1u << below(32);
      break;
    case 2:  // a start
      if (known) lines[head + 128 + below(32)] ^= 1u << below(32);
      break;
    case 3:  // two lanes change their columns: sound where both find room
      if (known) std::swap(lines[head + 128 + below(32)], lines[head + 128 + below(32)]);
      break;
    case 4:  // any word, or any offset
      if (lines.empty() || below(4) == 0) {
        offsets[below(offsets.size())] = static_cast<int32_t>(random_bits());
      } else {
        lines[below(lines.size())] = random_bits();
      }
      break;
    case 5: {  // an offset, a little
      int32_t& offset = offsets[below(offsets.size())];
      offset = static_cast<int32_t>(offset + below(5) - 2);
      break;
    }
    case 6:  // lines that end early
      lines.resize(32 * below(lines.size() / 32 + 1));
      lines.shrink_to_fit();
      break;
    case 7:  // another shape
      tensors.rows = std::max<int64_t>(1, tensors.rows - below(20));
      tensors.cols = std::max<int64_t>(1, tensors.cols - below(80));
      offsets.resize(tiled_bitmap::units(tensors.rows, tensors.cols) + 1);
      offsets.shrink_to_fit();
      break;
  }
}

// The format, read bit by bit; nothing where it breaks a rule.
std::optional<Weight> read_by_the_book(const Tensors& tensors) {
  const auto& offsets = tensors.offsets;
  const int64_t across = (tensors.cols + 255) / 256;
  const int bits = 8 * tensors.item_bytes;
  const uint32_t in_word = 32 / bits, most = 5 + 128 / in_word;
  if (offsets[0] != 0) return {};
  for (size_t unit = 0; unit + 1 < offsets.size(); ++unit) {
    const int64_t lines = static_cast<int64_t>(offsets[unit + 1]) - offsets[unit];
    if (lines < 5 || lines > most) return {};
  }
  if (offsets.back() != static_cast<int64_t>(tensors.lines.size()) / 32) return {};
  Weight weight(tensors.rows * tensors.cols);
  for (size_t unit = 0; unit + 1 < offsets.size(); ++unit) {
    const uint32_t* line = tensors.lines.data() + 32 * static_cast<int64_t>(offsets[unit]);
    const uint32_t lines = offsets[unit + 1] - offsets[unit];
    uint32_t columns[2] = {};
    for (int i = 0; i < 64; ++i) {
      const int lane = i % 32, run = i / 32;
      const uint32_t start = line[128 + lane] >> 16 * run & 0xffff, column = start % 32;
      uint32_t item = start / 32;
      columns[run] |= 1u << column;
      for (int k = 0; k < 64; ++k) {
        const int word = 2 * run + k / 32, j = k / 4 % 8, e = k % 4;
        if (!(line[4 * lane + word] >> (j + 8 * e) & 1)) continue;
        const int64_t row = unit / across * 16 + lane / 4 + 8 * (e / 2);
        const int64_t col = unit % across * 256 + 64 * word + 8 * j + 2 * (lane % 4) + e % 2;
        if (row >= tensors.rows || col >= tensors.cols || item >= in_word * (lines - 5)) return {};
        const uint32_t words = line[32 * (5 + item / in_word) + column];
        const uint32_t value = words >> bits * (item % in_word);
        weight[row * tensors.cols + col] =
            bits == 8 ? marked_byte(value) : static_cast<uint16_t>(value);
        ++item;
      }
      if (item > in_word * (lines - 5)) return {};  // an empty run, too, begins in its unit
    }
    if (columns[0] != ~0u || columns[1] != ~0u) return {};
  }
  return weight;
}

bool same(const Weight& a, const Weight& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i] && ((a[i] | b[i]) & 0x7fff) != 0) return false;
  }
  return true;
}

Weight unpack(const Tensors& tensors) {
  Weight weight(tensors.rows * tensors.cols, 0x7fc0);
  tiled_bitmap::unpack(tensors.view(), weight.data());
  return weight;
}

void check_bitmap(const Tensors& tensors, const std::vector<int64_t>& kept, const Weight& weight) {
  const int64_t count = panels(tensors.rows);
  std::vector<uint32_t> masks(count * column_pairs(tensors.cols));
  const int64_t promised = kept.back() + kValueSlack;
  std::vector<uint8_t> values(promised * tensors.item_bytes);
  if (!tiled_bitmap::to_interleaved_bitmap(tensors.view(), kept.data(), masks.data(),
                                           values.data())) {
    return;
  }
  const interleaved_bitmap::Weight made{tensors.rows,           tensors.cols, masks.data(),
                                        values.data(),          kept.data(),  Dtype::kBFloat16,
                                        tensors.item_bytes == 1};
  require(interleaved_bitmap::validate(made, promised).empty(), "the bitmap is not valid");
  const auto back = pack(interleaved_bitmap::blocks_of(made, 256), tensors.rows, tensors.cols,
                         tensors.item_bytes);
  require(same(unpack(back), weight), "by way of the bitmap it differs");
}

void check_tiled_csl(const Tensors& tensors, const Weight& weight) {
  const int64_t rows = tensors.rows, cols = tensors.cols;
  const auto blocks = tiled_bitmap::blocks_of(tensors.view(), 8, 1);
  std::vector<int64_t> counted(tiled_csl::tile_rows(rows) * tiled_csl::tile_cols(cols) + 1);
  tiled_csl::count(blocks, rows, cols, counted.data());
  const std::vector<int32_t> offsets(counted.begin(), counted.end());
  std::vector<uint32_t> words(counted.back());
  tiled_csl::pack(blocks, rows, cols, offsets.data(), words.data());
  const tiled_csl::Packed made{words.data(), counted.back(), offsets.data(), rows, cols};
  require(tiled_csl::validate(made).error.empty(), "the words are not valid");
  require(same(unpack(pack(tiled_csl::blocks_of(made, 256), rows, cols, 2)), weight),
          "by way of Tiled-CSL it differs");
}

void check_linear(const Tensors& tensors, const Weight& weight) {
  const int64_t row = below(tensors.rows), col = below(tensors.cols);
  std::vector<float> x(tensors.cols), y(tensors.rows);
  const std::vector<float> scales(tensors.rows, 2);
  const bool codes = tensors.item_bytes == 1;
  x[col] = 1;
  tiled_bitmap::linear(
      tensors.view(), {tensors.rows, tensors.cols, Dtype::kBFloat16, x.data(), 1, nullptr, y.data(),
                       Dtype::kFloat32, codes ? scales.data() : nullptr});
  if (codes) {
    const int code = cpu::code_of(weight[row * tensors.cols + col]);
    return require(y[row] == static_cast<float>(2 * code), "linear of codes is wrong");
  }
  for (int64_t c = 0; c < tensors.cols; ++c) {  // 0 * infinity is NaN
    if ((weight[row * tensors.cols + c] & 0x7f80) == 0x7f80) return;
  }
  require(y[row] == float_from_bfloat16(weight[row * tensors.cols + col]), "linear is wrong");
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 1000;
  random_bits.seed(argc > 2 ? std::atoi(argv[2]) : 0);
  int sound_tensors = 0;
  for (int round = 0; round < rounds; ++round) {
    const int64_t rows = 1 + below(40), cols = 1 + below(400);
    const int item_bytes = 1 + round % 2;
    const Weight dense = random_weight(rows, cols, item_bytes);
    const auto blocks = cpu::blocks_of(dense.data(), rows, cols, 16, 256);
    Tensors tensors = pack(blocks, rows, cols, item_bytes);
    require(same(unpack(tensors), dense), "pack and unpack lose something");
    for (int64_t i = below(3); i >= 0; --i) damage(tensors);

    const auto weight = read_by_the_book(tensors);
    std::vector<int64_t> kept(tiled_bitmap::unit_rows(tensors.rows) + 1);
    const auto validation = tiled_bitmap::validate(tensors.view(), kept.data());
    require(validation.error.empty() == weight.has_value(), "validate and the format disagree");
    if (!weight) continue;
    ++sound_tensors;
    require(same(unpack(tensors), *weight), "unpack is wrong");
    check_bitmap(tensors, kept, *weight);
    if (item_bytes == 2) check_tiled_csl(tensors, *weight);
    check_linear(tensors, *weight);
  }
  std::printf("%s: %d mutations, %d still sound\n", cpu::name_of(cpu::capability()), rounds,
              sound_tensors);
}
