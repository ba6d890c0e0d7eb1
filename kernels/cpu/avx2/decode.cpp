// SPDX-License-Identifier: Apache-2.0
#include "cpu/avx2/codes.h"
#include "cpu/avx2/parts.h"
#include "cpu/decode_row.h"

namespace flashsparse::cpu::avx2 {

void decode(const DecodeRow& row) { decode_row(row); }

}  // namespace flashsparse::cpu::avx2
