// num_stages = 2, num_warps = 4
"builtin.module"() <{sym_name = "attention_forward"}> ({
  "tt.func"() <{arg_attrs = [{tt.divisibility = 32 : i32}, {tt.divisibility = 32 : i32}, {tt.divisibility = 32 : i32}, {tt.divisibility = 32 : i32}, {tt.divisibility = 32 : i32}, {tt.divisibility = 32 : i32}, {tt.divisibility = 32 : i32}], function_type = (!tt.ptr<bf16>, !tt.ptr<f32>, !tt.ptr<i32>, !tt.ptr<i32>, !tt.ptr<i32>, !tt.ptr<bf16>, !tt.ptr<f32>) -> (), sym_name = "attention_forward", sym_visibility = "public"}> ({
  ^bb0(%arg0: !tt.ptr<bf16>, %arg1: !tt.ptr<f32>, %arg2: !tt.ptr<i32>, %arg3: !tt.ptr<i32>, %arg4: !tt.ptr<i32>, %arg5: !tt.ptr<bf16>, %arg6: !tt.ptr<f32>):
    %0 = "arith.constant"() <{value = dense<14> : tensor<64x64xi32>}> : () -> tensor<64x64xi32>
    %1 = "arith.constant"() <{value = dense<830770091> : tensor<64x64xi32>}> : () -> tensor<64x64xi32>
    %2 = "arith.constant"() <{value = dense<11> : tensor<64x64xi32>}> : () -> tensor<64x64xi32>
    %3 = "arith.constant"() <{value = dense<-312814405> : tensor<64x64xi32>}> : () -> tensor<64x64xi32>
    %4 = "arith.constant"() <{value = dense<17> : tensor<64x64xi32>}> : () -> tensor<64x64xi32>
    %5 = "arith.constant"() <{value = dense<-1640531527> : tensor<64xi32>}> : () -> tensor<64xi32>
    %6 = "arith.constant"() <{value = dense<0xFF800000> : tensor<64x64xf32>}> : () -> tensor<64x64xf32>
    %7 = "arith.constant"() <{value = dense<0.180336878> : tensor<64x64xf32>}> : () -> tensor<64x64xf32>
    %8 = "arith.constant"() <{value = dense<2048> : tensor<64xi32>}> : () -> tensor<64xi32>
    %9 = "arith.constant"() <{value = dense<2048> : tensor<64x64xi32>}> : () -> tensor<64x64xi32>
    %10 = "arith.constant"() <{value = dense<1024> : tensor<64x64xi32>}> : () -> tensor<64x64xi32>
    %11 = "arith.constant"() <{value = dense<-1.000000e+30> : tensor<64xf32>}> : () -> tensor<64xf32>
    %12 = "arith.constant"() <{value = dense<0.000000e+00> : tensor<64x64xf32>}> : () -> tensor<64x64xf32>
    %13 = "arith.constant"() <{value = dense<0.000000e+00> : tensor<64xf32>}> : () -> tensor<64xf32>
    %14 = "arith.constant"() <{value = dense<-2073254261> : tensor<64xi32>}> : () -> tensor<64xi32>
    %15 = "arith.constant"() <{value = dense<15> : tensor<64xi32>}> : () -> tensor<64xi32>
    %16 = "arith.constant"() <{value = dense<2146121005> : tensor<64xi32>}> : () -> tensor<64xi32>
    %17 = "arith.constant"() <{value = dense<16> : tensor<64xi32>}> : () -> tensor<64xi32>
    %18 = "arith.constant"() <{value = dense<-1> : tensor<64xi32>}> : () -> tensor<64xi32>
    %19 = "arith.constant"() <{value = dense<0> : tensor<64xi32>}> : () -> tensor<64xi32>
    %20 = "arith.constant"() <{value = dense<64> : tensor<64xi32>}> : () -> tensor<64xi32>
    %21 = "arith.constant"() <{value = dense<64> : tensor<64x64xi32>}> : () -> tensor<64x64xi32>
    %22 = "arith.constant"() <{value = dense<3072> : tensor<64x64xi32>}> : () -> tensor<64x64xi32>
    %23 = "arith.constant"() <{value = 2.000000e+00 : f32}> : () -> f32
    %24 = "arith.constant"() <{value = -1404298415 : i32}> : () -> i32
    %25 = "arith.constant"() <{value = 11 : i32}> : () -> i32
    %26 = "arith.constant"() <{value = -312814405 : i32}> : () -> i32
    %27 = "arith.constant"() <{value = 17 : i32}> : () -> i32
    %28 = "arith.constant"() <{value = 1 : i32}> : () -> i32
    %29 = "arith.constant"() <{value = 4 : i32}> : () -> i32
    %30 = "arith.constant"() <{value = 2 : i32}> : () -> i32
    %31 = "arith.constant"() <{value = 64 : i32}> : () -> i32
    %32 = "arith.constant"() <{value = 16 : i32}> : () -> i32
    %33 = "arith.constant"() <{value = 3 : i32}> : () -> i32
    %34 = "tt.get_program_id"() <{axis = 0 : i32}> : () -> i32
    %35 = "tt.get_program_id"() <{axis = 1 : i32}> : () -> i32
    %36 = "tt.addptr"(%arg4, %29) : (!tt.ptr<i32>, i32) -> !tt.ptr<i32>
    %37 = "tt.load"(%36) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (!tt.ptr<i32>) -> i32
    %38 = "arith.divsi"(%34, %37) : (i32, i32) -> i32
    %39 = "arith.muli"(%38, %37) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
    %40 = "arith.subi"(%34, %39) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
    %41 = "arith.muli"(%40, %31) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
    %42 = "arith.muli"(%39, %31) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
    %43 = "arith.muli"(%38, %32) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
    %44 = "arith.addi"(%43, %35) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
    %45 = "arith.muli"(%44, %37) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
    %46 = "arith.muli"(%45, %31) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
    %47 = "tt.load"(%arg4) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (!tt.ptr<i32>) -> i32
    %48 = "tt.addptr"(%arg4, %28) : (!tt.ptr<i32>, i32) -> !tt.ptr<i32>
    %49 = "tt.load"(%48) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (!tt.ptr<i32>) -> i32
    %50 = "tt.addptr"(%arg4, %30) : (!tt.ptr<i32>, i32) -> !tt.ptr<i32>
    %51 = "tt.load"(%50) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (!tt.ptr<i32>) -> i32
    %52 = "tt.addptr"(%arg4, %33) : (!tt.ptr<i32>, i32) -> !tt.ptr<i32>
    %53 = "tt.load"(%52) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (!tt.ptr<i32>) -> i32
    %54 = "arith.muli"(%51, %30) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
    %55 = "arith.shrui"(%47, %27) : (i32, i32) -> i32
    %56 = "arith.xori"(%47, %55) : (i32, i32) -> i32
    %57 = "arith.muli"(%56, %26) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
    %58 = "arith.shrui"(%57, %25) : (i32, i32) -> i32
    %59 = "arith.xori"(%57, %58) : (i32, i32) -> i32
    %60 = "arith.muli"(%59, %24) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
    %61 = "tt.bitcast"(%53) : (i32) -> f32
    %62 = "arith.addi"(%42, %41) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
    %63 = "tt.make_range"() <{end = 64 : i32, start = 0 : i32}> : () -> tensor<64xi32>
    %64 = "tt.splat"(%62) : (i32) -> tensor<64xi32>
    %65 = "arith.addi"(%64, %63) <{overflowFlags = #arith.overflow<none>}> : (tensor<64xi32>, tensor<64xi32>) -> tensor<64xi32>
    %66 = "tt.expand_dims"(%65) <{axis = 1 : i32}> : (tensor<64xi32>) -> tensor<64x1xi32>
    %67 = "tt.broadcast"(%66) : (tensor<64x1xi32>) -> tensor<64x64xi32>
    %68 = "arith.muli"(%67, %22) <{overflowFlags = #arith.overflow<none>}> : (tensor<64x64xi32>, tensor<64x64xi32>) -> tensor<64x64xi32>
    %69 = "tt.splat"(%35) : (i32) -> tensor<64x64xi32>
    %70 = "arith.muli"(%69, %21) <{overflowFlags = #arith.overflow<none>}> : (tensor<64x64xi32>, tensor<64x64xi32>) -> tensor<64x64xi32>
    %71 = "arith.addi"(%68, %70) <{overflowFlags = #arith.overflow<none>}> : (tensor<64x64xi32>, tensor<64x64xi32>) -> tensor<64x64xi32>
    %72 = "tt.expand_dims"(%63) <{axis = 0 : i32}> : (tensor<64xi32>) -> tensor<1x64xi32>
    %73 = "tt.broadcast"(%72) : (tensor<1x64xi32>) -> tensor<64x64xi32>
    %74 = "arith.addi"(%71, %73) <{overflowFlags = #arith.overflow<none>}> : (tensor<64x64xi32>, tensor<64x64xi32>) -> tensor<64x64xi32>
    %75 = "tt.splat"(%arg0) : (!tt.ptr<bf16>) -> tensor<64x64x!tt.ptr<bf16>>
    %76 = "tt.addptr"(%75, %74) : (tensor<64x64x!tt.ptr<bf16>>, tensor<64x64xi32>) -> tensor<64x64x!tt.ptr<bf16>>
    %77 = "tt.load"(%76) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<64x64x!tt.ptr<bf16>>) -> tensor<64x64xbf16>
    %78 = "tt.splat"(%35) : (i32) -> tensor<64xi32>
    %79 = "arith.muli"(%78, %20) <{overflowFlags = #arith.overflow<none>}> : (tensor<64xi32>, tensor<64xi32>) -> tensor<64xi32>
    %80 = "arith.addi"(%79, %63) <{overflowFlags = #arith.overflow<none>}> : (tensor<64xi32>, tensor<64xi32>) -> tensor<64xi32>
    %81 = "tt.splat"(%arg1) : (!tt.ptr<f32>) -> tensor<64x!tt.ptr<f32>>
    %82 = "tt.addptr"(%81, %80) : (tensor<64x!tt.ptr<f32>>, tensor<64xi32>) -> tensor<64x!tt.ptr<f32>>
    %83 = "tt.load"(%82) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<64x!tt.ptr<f32>>) -> tensor<64xf32>
    %84 = "arith.truncf"(%83) : (tensor<64xf32>) -> tensor<64xbf16>
    %85 = "tt.expand_dims"(%84) <{axis = 0 : i32}> : (tensor<64xbf16>) -> tensor<1x64xbf16>
    %86 = "tt.broadcast"(%85) : (tensor<1x64xbf16>) -> tensor<64x64xbf16>
    %87 = "arith.addf"(%77, %86) <{fastmath = #arith.fastmath<none>}> : (tensor<64x64xbf16>, tensor<64x64xbf16>) -> tensor<64x64xbf16>
    %88 = "tt.splat"(%arg2) : (!tt.ptr<i32>) -> tensor<64x!tt.ptr<i32>>
    %89 = "tt.addptr"(%88, %65) : (tensor<64x!tt.ptr<i32>>, tensor<64xi32>) -> tensor<64x!tt.ptr<i32>>
    %90 = "tt.load"(%89) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<64x!tt.ptr<i32>>) -> tensor<64xi32>
    %91 = "arith.cmpi"(%90, %19) <{predicate = 0 : i64}> : (tensor<64xi32>, tensor<64xi32>) -> tensor<64xi1>
    %92 = "arith.select"(%91, %18, %90) : (tensor<64xi1>, tensor<64xi32>, tensor<64xi32>) -> tensor<64xi32>
    %93 = "arith.addi"(%46, %41) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
    %94 = "tt.splat"(%93) : (i32) -> tensor<64xi32>
    %95 = "arith.addi"(%94, %63) <{overflowFlags = #arith.overflow<none>}> : (tensor<64xi32>, tensor<64xi32>) -> tensor<64xi32>
    %96 = "tt.splat"(%60) : (i32) -> tensor<64xi32>
    %97 = "arith.xori"(%95, %96) : (tensor<64xi32>, tensor<64xi32>) -> tensor<64xi32>
    %98 = "arith.shrui"(%97, %17) : (tensor<64xi32>, tensor<64xi32>) -> tensor<64xi32>
    %99 = "arith.xori"(%97, %98) : (tensor<64xi32>, tensor<64xi32>) -> tensor<64xi32>
    %100 = "arith.muli"(%99, %16) <{overflowFlags = #arith.overflow<none>}> : (tensor<64xi32>, tensor<64xi32>) -> tensor<64xi32>
    %101 = "arith.shrui"(%100, %15) : (tensor<64xi32>, tensor<64xi32>) -> tensor<64xi32>
    %102 = "arith.xori"(%100, %101) : (tensor<64xi32>, tensor<64xi32>) -> tensor<64xi32>
    %103 = "arith.muli"(%102, %14) <{overflowFlags = #arith.overflow<none>}> : (tensor<64xi32>, tensor<64xi32>) -> tensor<64xi32>
    %104 = "arith.muli"(%34, %30) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
    %105 = "tt.addptr"(%arg3, %104) : (!tt.ptr<i32>, i32) -> !tt.ptr<i32>
    %106 = "tt.load"(%105) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (!tt.ptr<i32>) -> i32
    %107 = "arith.addi"(%104, %28) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
    %108 = "tt.addptr"(%arg3, %107) : (!tt.ptr<i32>, i32) -> !tt.ptr<i32>
    %109 = "tt.load"(%108) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (!tt.ptr<i32>) -> i32
    %110:3 = "scf.for"(%106, %109, %28, %12, %11, %13) ({
    ^bb0(%arg7: i32, %arg8: tensor<64x64xf32>, %arg9: tensor<64xf32>, %arg10: tensor<64xf32>):
      %132 = "arith.muli"(%arg7, %31) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
      %133 = "arith.addi"(%42, %132) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
      %134 = "tt.splat"(%133) : (i32) -> tensor<64xi32>
      %135 = "arith.addi"(%134, %63) <{overflowFlags = #arith.overflow<none>}> : (tensor<64xi32>, tensor<64xi32>) -> tensor<64xi32>
      %136 = "tt.expand_dims"(%135) <{axis = 1 : i32}> : (tensor<64xi32>) -> tensor<64x1xi32>
      %137 = "tt.broadcast"(%136) : (tensor<64x1xi32>) -> tensor<64x64xi32>
      %138 = "arith.muli"(%137, %22) <{overflowFlags = #arith.overflow<none>}> : (tensor<64x64xi32>, tensor<64x64xi32>) -> tensor<64x64xi32>
      %139 = "arith.addi"(%138, %10) <{overflowFlags = #arith.overflow<none>}> : (tensor<64x64xi32>, tensor<64x64xi32>) -> tensor<64x64xi32>
      %140 = "arith.addi"(%139, %70) <{overflowFlags = #arith.overflow<none>}> : (tensor<64x64xi32>, tensor<64x64xi32>) -> tensor<64x64xi32>
      %141 = "arith.addi"(%140, %73) <{overflowFlags = #arith.overflow<none>}> : (tensor<64x64xi32>, tensor<64x64xi32>) -> tensor<64x64xi32>
      %142 = "tt.addptr"(%75, %141) : (tensor<64x64x!tt.ptr<bf16>>, tensor<64x64xi32>) -> tensor<64x64x!tt.ptr<bf16>>
      %143 = "tt.load"(%142) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<64x64x!tt.ptr<bf16>>) -> tensor<64x64xbf16>
      %144 = "arith.addi"(%138, %9) <{overflowFlags = #arith.overflow<none>}> : (tensor<64x64xi32>, tensor<64x64xi32>) -> tensor<64x64xi32>
      %145 = "arith.addi"(%144, %70) <{overflowFlags = #arith.overflow<none>}> : (tensor<64x64xi32>, tensor<64x64xi32>) -> tensor<64x64xi32>
      %146 = "arith.addi"(%145, %73) <{overflowFlags = #arith.overflow<none>}> : (tensor<64x64xi32>, tensor<64x64xi32>) -> tensor<64x64xi32>
      %147 = "tt.addptr"(%75, %146) : (tensor<64x64x!tt.ptr<bf16>>, tensor<64x64xi32>) -> tensor<64x64x!tt.ptr<bf16>>
      %148 = "tt.load"(%147) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<64x64x!tt.ptr<bf16>>) -> tensor<64x64xbf16>
      %149 = "arith.addi"(%79, %8) <{overflowFlags = #arith.overflow<none>}> : (tensor<64xi32>, tensor<64xi32>) -> tensor<64xi32>
      %150 = "arith.addi"(%149, %63) <{overflowFlags = #arith.overflow<none>}> : (tensor<64xi32>, tensor<64xi32>) -> tensor<64xi32>
      %151 = "tt.addptr"(%81, %150) : (tensor<64x!tt.ptr<f32>>, tensor<64xi32>) -> tensor<64x!tt.ptr<f32>>
      %152 = "tt.load"(%151) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<64x!tt.ptr<f32>>) -> tensor<64xf32>
      %153 = "arith.truncf"(%152) : (tensor<64xf32>) -> tensor<64xbf16>
      %154 = "tt.expand_dims"(%153) <{axis = 0 : i32}> : (tensor<64xbf16>) -> tensor<1x64xbf16>
      %155 = "tt.broadcast"(%154) : (tensor<1x64xbf16>) -> tensor<64x64xbf16>
      %156 = "arith.addf"(%148, %155) <{fastmath = #arith.fastmath<none>}> : (tensor<64x64xbf16>, tensor<64x64xbf16>) -> tensor<64x64xbf16>
      %157 = "tt.trans"(%143) <{order = array<i32: 1, 0>}> : (tensor<64x64xbf16>) -> tensor<64x64xbf16>
      %158 = "tt.dot"(%87, %157, %12) <{inputPrecision = 0 : i32, maxNumImpreciseAcc = 0 : i32}> : (tensor<64x64xbf16>, tensor<64x64xbf16>, tensor<64x64xf32>) -> tensor<64x64xf32>
      %159 = "tt.addptr"(%88, %135) : (tensor<64x!tt.ptr<i32>>, tensor<64xi32>) -> tensor<64x!tt.ptr<i32>>
      %160 = "tt.load"(%159) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<64x!tt.ptr<i32>>) -> tensor<64xi32>
      %161 = "arith.mulf"(%158, %7) <{fastmath = #arith.fastmath<none>}> : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
      %162 = "tt.expand_dims"(%92) <{axis = 1 : i32}> : (tensor<64xi32>) -> tensor<64x1xi32>
      %163 = "tt.expand_dims"(%160) <{axis = 0 : i32}> : (tensor<64xi32>) -> tensor<1x64xi32>
      %164 = "tt.broadcast"(%162) : (tensor<64x1xi32>) -> tensor<64x64xi32>
      %165 = "tt.broadcast"(%163) : (tensor<1x64xi32>) -> tensor<64x64xi32>
      %166 = "arith.cmpi"(%164, %165) <{predicate = 0 : i64}> : (tensor<64x64xi32>, tensor<64x64xi32>) -> tensor<64x64xi1>
      %167 = "arith.select"(%166, %161, %6) : (tensor<64x64xi1>, tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
      %168 = "tt.reduce"(%167) <{axis = 1 : i32}> ({
      ^bb0(%arg13: f32, %arg14: f32):
        %207 = "arith.maxnumf"(%arg13, %arg14) <{fastmath = #arith.fastmath<none>}> : (f32, f32) -> f32
        "tt.reduce.return"(%207) : (f32) -> ()
      }) : (tensor<64x64xf32>) -> tensor<64xf32>
      %169 = "arith.maxnumf"(%arg9, %168) <{fastmath = #arith.fastmath<none>}> : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
      %170 = "arith.subf"(%arg9, %169) <{fastmath = #arith.fastmath<none>}> : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
      %171 = "tt.elementwise_inline_asm"(%170) <{asm_string = "ex2.approx.ftz.f32 $0, $1;", constraints = "=r,r", packed_element = 1 : i32, pure = true}> : (tensor<64xf32>) -> tensor<64xf32>
      %172 = "tt.expand_dims"(%169) <{axis = 1 : i32}> : (tensor<64xf32>) -> tensor<64x1xf32>
      %173 = "tt.broadcast"(%172) : (tensor<64x1xf32>) -> tensor<64x64xf32>
      %174 = "arith.subf"(%167, %173) <{fastmath = #arith.fastmath<none>}> : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
      %175 = "tt.elementwise_inline_asm"(%174) <{asm_string = "ex2.approx.ftz.f32 $0, $1;", constraints = "=r,r", packed_element = 1 : i32, pure = true}> : (tensor<64x64xf32>) -> tensor<64x64xf32>
      %176 = "arith.mulf"(%arg10, %171) <{fastmath = #arith.fastmath<none>}> : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
      %177 = "tt.reduce"(%175) <{axis = 1 : i32}> ({
      ^bb0(%arg11: f32, %arg12: f32):
        %206 = "arith.addf"(%arg11, %arg12) <{fastmath = #arith.fastmath<none>}> : (f32, f32) -> f32
        "tt.reduce.return"(%206) : (f32) -> ()
      }) : (tensor<64x64xf32>) -> tensor<64xf32>
      %178 = "arith.addf"(%176, %177) <{fastmath = #arith.fastmath<none>}> : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
      %179 = "tt.splat"(%132) : (i32) -> tensor<64xi32>
      %180 = "arith.addi"(%179, %63) <{overflowFlags = #arith.overflow<none>}> : (tensor<64xi32>, tensor<64xi32>) -> tensor<64xi32>
      %181 = "arith.muli"(%180, %5) <{overflowFlags = #arith.overflow<none>}> : (tensor<64xi32>, tensor<64xi32>) -> tensor<64xi32>
      %182 = "tt.splat"(%49) : (i32) -> tensor<64xi32>
      %183 = "arith.addi"(%181, %182) <{overflowFlags = #arith.overflow<none>}> : (tensor<64xi32>, tensor<64xi32>) -> tensor<64xi32>
      %184 = "tt.expand_dims"(%103) <{axis = 1 : i32}> : (tensor<64xi32>) -> tensor<64x1xi32>
      %185 = "tt.expand_dims"(%183) <{axis = 0 : i32}> : (tensor<64xi32>) -> tensor<1x64xi32>
      %186 = "tt.broadcast"(%184) : (tensor<64x1xi32>) -> tensor<64x64xi32>
      %187 = "tt.broadcast"(%185) : (tensor<1x64xi32>) -> tensor<64x64xi32>
      %188 = "arith.xori"(%186, %187) : (tensor<64x64xi32>, tensor<64x64xi32>) -> tensor<64x64xi32>
      %189 = "arith.shrui"(%188, %4) : (tensor<64x64xi32>, tensor<64x64xi32>) -> tensor<64x64xi32>
      %190 = "arith.xori"(%188, %189) : (tensor<64x64xi32>, tensor<64x64xi32>) -> tensor<64x64xi32>
      %191 = "arith.muli"(%190, %3) <{overflowFlags = #arith.overflow<none>}> : (tensor<64x64xi32>, tensor<64x64xi32>) -> tensor<64x64xi32>
      %192 = "arith.shrui"(%191, %2) : (tensor<64x64xi32>, tensor<64x64xi32>) -> tensor<64x64xi32>
      %193 = "arith.xori"(%191, %192) : (tensor<64x64xi32>, tensor<64x64xi32>) -> tensor<64x64xi32>
      %194 = "arith.muli"(%193, %1) <{overflowFlags = #arith.overflow<none>}> : (tensor<64x64xi32>, tensor<64x64xi32>) -> tensor<64x64xi32>
      %195 = "arith.shrui"(%194, %0) : (tensor<64x64xi32>, tensor<64x64xi32>) -> tensor<64x64xi32>
      %196 = "arith.xori"(%194, %195) : (tensor<64x64xi32>, tensor<64x64xi32>) -> tensor<64x64xi32>
      %197 = "tt.splat"(%54) : (i32) -> tensor<64x64xi32>
      %198 = "arith.cmpi"(%196, %197) <{predicate = 9 : i64}> : (tensor<64x64xi32>, tensor<64x64xi32>) -> tensor<64x64xi1>
      %199 = "arith.select"(%198, %175, %12) : (tensor<64x64xi1>, tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
      %200 = "arith.truncf"(%199) : (tensor<64x64xf32>) -> tensor<64x64xbf16>
      %201 = "tt.expand_dims"(%171) <{axis = 1 : i32}> : (tensor<64xf32>) -> tensor<64x1xf32>
      %202 = "tt.broadcast"(%201) : (tensor<64x1xf32>) -> tensor<64x64xf32>
      %203 = "arith.mulf"(%arg8, %202) <{fastmath = #arith.fastmath<none>}> : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
      %204 = "tt.dot"(%200, %156, %12) <{inputPrecision = 0 : i32, maxNumImpreciseAcc = 0 : i32}> : (tensor<64x64xbf16>, tensor<64x64xbf16>, tensor<64x64xf32>) -> tensor<64x64xf32>
      %205 = "arith.addf"(%203, %204) <{fastmath = #arith.fastmath<none>}> : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
      "scf.yield"(%205, %169, %178) : (tensor<64x64xf32>, tensor<64xf32>, tensor<64xf32>) -> ()
    }) : (i32, i32, i32, tensor<64x64xf32>, tensor<64xf32>, tensor<64xf32>) -> (tensor<64x64xf32>, tensor<64xf32>, tensor<64xf32>)
    %111 = "arith.cmpf"(%110#2, %13) <{fastmath = #arith.fastmath<none>, predicate = 1 : i64}> : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xi1>
    %112 = "tt.splat"(%61) : (f32) -> tensor<64xf32>
    %113 = "arith.divf"(%112, %110#2) <{fastmath = #arith.fastmath<none>}> : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
    %114 = "arith.select"(%111, %13, %113) : (tensor<64xi1>, tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
    %115 = "tt.expand_dims"(%114) <{axis = 1 : i32}> : (tensor<64xf32>) -> tensor<64x1xf32>
    %116 = "tt.broadcast"(%115) : (tensor<64x1xf32>) -> tensor<64x64xf32>
    %117 = "arith.mulf"(%110#0, %116) <{fastmath = #arith.fastmath<none>}> : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
    %118 = "tt.extern_elementwise"(%110#2) <{libname = "", libpath = "", pure = true, symbol = "__nv_logf"}> : (tensor<64xf32>) -> tensor<64xf32>
    %119 = "tt.extern_elementwise"(%23) <{libname = "", libpath = "", pure = true, symbol = "__nv_logf"}> : (f32) -> f32
    %120 = "tt.splat"(%119) : (f32) -> tensor<64xf32>
    %121 = "arith.divf"(%118, %120) <{fastmath = #arith.fastmath<none>}> : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
    %122 = "arith.addf"(%110#1, %121) <{fastmath = #arith.fastmath<none>}> : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
    %123 = "arith.select"(%111, %13, %122) : (tensor<64xi1>, tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
    %124 = "arith.truncf"(%117) : (tensor<64x64xf32>) -> tensor<64x64xbf16>
    %125 = "arith.muli"(%67, %10) <{overflowFlags = #arith.overflow<none>}> : (tensor<64x64xi32>, tensor<64x64xi32>) -> tensor<64x64xi32>
    %126 = "arith.addi"(%125, %70) <{overflowFlags = #arith.overflow<none>}> : (tensor<64x64xi32>, tensor<64x64xi32>) -> tensor<64x64xi32>
    %127 = "arith.addi"(%126, %73) <{overflowFlags = #arith.overflow<none>}> : (tensor<64x64xi32>, tensor<64x64xi32>) -> tensor<64x64xi32>
    %128 = "tt.splat"(%arg5) : (!tt.ptr<bf16>) -> tensor<64x64x!tt.ptr<bf16>>
    %129 = "tt.addptr"(%128, %127) : (tensor<64x64x!tt.ptr<bf16>>, tensor<64x64xi32>) -> tensor<64x64x!tt.ptr<bf16>>
    "tt.store"(%129, %124) <{cache = 1 : i32, evict = 1 : i32}> : (tensor<64x64x!tt.ptr<bf16>>, tensor<64x64xbf16>) -> ()
    %130 = "tt.splat"(%arg6) : (!tt.ptr<f32>) -> tensor<64x!tt.ptr<f32>>
    %131 = "tt.addptr"(%130, %95) : (tensor<64x!tt.ptr<f32>>, tensor<64xi32>) -> tensor<64x!tt.ptr<f32>>
    "tt.store"(%131, %123) <{cache = 1 : i32, evict = 1 : i32}> : (tensor<64x!tt.ptr<f32>>, tensor<64xf32>) -> ()
    "tt.return"() : () -> ()
  }) : () -> ()
}) {ttg.maxnreg = 128 : i32} : () -> ()
