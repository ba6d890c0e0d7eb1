// SPDX-License-Identifier: Apache-2.0
// nm_panels: the form in which nm_vector runs on a CPU where 16 rows or more share their columns.
// Never on disk.
//
//   values   uint16 or uint32 [panels][kept][16]   entry j of 16 rows, side by side: a register
//   columns  int32 [groups][kept]                  the column of entry j, for all rows of a group
//
// Of codes (formats/value_type.h):
//   values   uint8 [panels][steps][16]             8 bits: step j has entry j of 16 rows; 4 bits:
//                                                  entries 2j (low) and 2j + 1 (high nibble)
//   scales   float [panels][scale groups][16]      of 16 rows, scale group after scale group
//
// One entry is one load of 16 weights and one fused multiply-add with a broadcast activation for
// each token: nothing is decoded. Entries beyond the weight's edge have column in_features, where
// the kernels keep a zero; rows beyond the edge are zeros.
#pragma once
#include "formats/panel.h"
