// SPDX-License-Identifier: Apache-2.0
#include "cpu/avx512/codes.h"
#include "cpu/avx512/parts.h"
#include "cpu/decode_row.h"

namespace flashsparse::cpu::avx512 {

void decode(const DecodeRow& row) { decode_row(row); }

}  // namespace flashsparse::cpu::avx512
