# SPDX-License-Identifier: Apache-2.0
# Native values are instantiated in linear.cu and tiles.cu.
foreach(type IN LISTS quantized_types)
  instantiate(linear_${type} linear.cuh "Compiled compiled<ValueType::k${type}>(int shape)")
  instantiate(tiles_${type} tiles.cuh
              "CompiledTiles compiled_tiles<ValueType::k${type}>(int shape)")
endforeach()
