// SPDX-License-Identifier: Apache-2.0
#include "cpu/decode_row.h"
#include "cpu/portable/codes.h"
#include "cpu/portable/parts.h"

namespace flashsparse::cpu::portable {

void decode(const DecodeRow& row) { decode_row(row); }

}  // namespace flashsparse::cpu::portable
