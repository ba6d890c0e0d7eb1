# SPDX-License-Identifier: Apache-2.0
instantiate(linear_native linear.cuh "const Compiled* compiled_linear<NativeValues>()")
instantiate(sm_90a/wgmma_native wgmma.cuh "const WgmmaCompiled* compiled_wgmma<NativeValues>()")
foreach(type IN LISTS quantized_types)
  foreach(group 0 32 64 128) # columns that share a scale; 0: scales of rows
    set(values "${type}Values<${group}>")
    instantiate(linear_${type}_${group} linear.cuh "const Compiled* compiled_linear<${values}>()")
    instantiate(sm_90a/wgmma_${type}_${group} wgmma.cuh
                "const WgmmaCompiled* compiled_wgmma<${values}>()")
  endforeach()
endforeach()
# W8A8
instantiate(linear_int8_x linear_codes.cuh "const Compiled* compiled_codes_linear<Int8Codes>()")
instantiate(sm_89/linear_fp8_x linear_codes.cuh
            "const Compiled* compiled_codes_linear<Fp8Codes>()")
foreach(type Fp8 Int8)
  instantiate(sm_90a/wgmma_${type}_x wgmma.cuh
              "const WgmmaCompiled* compiled_codes_wgmma<${type}Codes>()")
endforeach()
# Experts of mixtures: those of experts_are_compiled() (experts_plan.h)
foreach(values NativeValues Fp8Values<0> Fp8Values<128> Int8Values<0> Int4Values<32>
        Int4Values<128>)
  string(REGEX REPLACE "[<>]" "_" name ${values})
  instantiate(experts_${name} experts.cuh "const ExpertsCompiled* compiled_experts<${values}>()")
  instantiate(sm_90a/experts_wgmma_${name} experts_wgmma.cuh
              "const ExpertsWgmmaCompiled* compiled_experts_wgmma<${values}>()")
endforeach()
