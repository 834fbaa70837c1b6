// num_stages = 1, num_warps = 8
"builtin.module"() <{sym_name = "norm_backward"}> ({
  "tt.func"() <{arg_attrs = [{tt.divisibility = 32 : i32}, {tt.divisibility = 32 : i32}, {tt.divisibility = 32 : i32}, {tt.divisibility = 32 : i32}, {tt.divisibility = 32 : i32}, {tt.divisibility = 32 : i32}, {tt.divisibility = 32 : i32}, {tt.divisibility = 32 : i32}, {tt.divisibility = 32 : i32}, {tt.divisibility = 32 : i32}, {tt.divisibility = 32 : i32}, {tt.divisibility = 32 : i32}, {tt.divisibility = 32 : i32}, {tt.divisibility = 32 : i32}], function_type = (!tt.ptr<bf16>, !tt.ptr<bf16>, !tt.ptr<f32>, !tt.ptr<f32>, !tt.ptr<i32>, !tt.ptr<f32>, !tt.ptr<f32>, !tt.ptr<bf16>, !tt.ptr<bf16>, !tt.ptr<bf16>, !tt.ptr<bf16>, !tt.ptr<f32>, !tt.ptr<f32>, !tt.ptr<f32>) -> (), sym_name = "norm_backward", sym_visibility = "public"}> ({
  ^bb0(%arg0: !tt.ptr<bf16>, %arg1: !tt.ptr<bf16>, %arg2: !tt.ptr<f32>, %arg3: !tt.ptr<f32>, %arg4: !tt.ptr<i32>, %arg5: !tt.ptr<f32>, %arg6: !tt.ptr<f32>, %arg7: !tt.ptr<bf16>, %arg8: !tt.ptr<bf16>, %arg9: !tt.ptr<bf16>, %arg10: !tt.ptr<bf16>, %arg11: !tt.ptr<f32>, %arg12: !tt.ptr<f32>, %arg13: !tt.ptr<f32>):
    %0 = "arith.constant"() <{value = dense<1024> : tensor<1024xi32>}> : () -> tensor<1024xi32>
    %1 = "arith.constant"() <{value = dense<1.024000e+03> : tensor<4xf32>}> : () -> tensor<4xf32>
    %2 = "arith.constant"() <{value = dense<0.000000e+00> : tensor<4x1024xf32>}> : () -> tensor<4x1024xf32>
    %3 = "arith.constant"() <{value = dense<14> : tensor<4x1024xi32>}> : () -> tensor<4x1024xi32>
    %4 = "arith.constant"() <{value = dense<830770091> : tensor<4x1024xi32>}> : () -> tensor<4x1024xi32>
    %5 = "arith.constant"() <{value = dense<11> : tensor<4x1024xi32>}> : () -> tensor<4x1024xi32>
    %6 = "arith.constant"() <{value = dense<-312814405> : tensor<4x1024xi32>}> : () -> tensor<4x1024xi32>
    %7 = "arith.constant"() <{value = dense<17> : tensor<4x1024xi32>}> : () -> tensor<4x1024xi32>
    %8 = "arith.constant"() <{value = dense<-1640531527> : tensor<1024xi32>}> : () -> tensor<1024xi32>
    %9 = "arith.constant"() <{value = dense<-2073254261> : tensor<4xi32>}> : () -> tensor<4xi32>
    %10 = "arith.constant"() <{value = dense<15> : tensor<4xi32>}> : () -> tensor<4xi32>
    %11 = "arith.constant"() <{value = dense<2146121005> : tensor<4xi32>}> : () -> tensor<4xi32>
    %12 = "arith.constant"() <{value = dense<16> : tensor<4xi32>}> : () -> tensor<4xi32>
    %13 = "arith.constant"() <{value = dense<1024> : tensor<4x1024xi32>}> : () -> tensor<4x1024xi32>
    %14 = "arith.constant"() <{value = dense<0.000000e+00> : tensor<1024xf32>}> : () -> tensor<1024xf32>
    %15 = "arith.constant"() <{value = -1404298415 : i32}> : () -> i32
    %16 = "arith.constant"() <{value = 11 : i32}> : () -> i32
    %17 = "arith.constant"() <{value = -312814405 : i32}> : () -> i32
    %18 = "arith.constant"() <{value = 17 : i32}> : () -> i32
    %19 = "arith.constant"() <{value = 2 : i32}> : () -> i32
    %20 = "arith.constant"() <{value = 4 : i32}> : () -> i32
    %21 = "arith.constant"() <{value = 8 : i32}> : () -> i32
    %22 = "arith.constant"() <{value = 3 : i32}> : () -> i32
    %23 = "arith.constant"() <{value = 1 : i32}> : () -> i32
    %24 = "arith.constant"() <{value = 0 : i32}> : () -> i32
    %25 = "tt.get_program_id"() <{axis = 0 : i32}> : () -> i32
    %26 = "tt.make_range"() <{end = 1024 : i32, start = 0 : i32}> : () -> tensor<1024xi32>
    %27 = "tt.splat"(%arg2) : (!tt.ptr<f32>) -> tensor<1024x!tt.ptr<f32>>
    %28 = "tt.addptr"(%27, %26) : (tensor<1024x!tt.ptr<f32>>, tensor<1024xi32>) -> tensor<1024x!tt.ptr<f32>>
    %29 = "tt.load"(%28) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<1024x!tt.ptr<f32>>) -> tensor<1024xf32>
    %30 = "arith.truncf"(%29) : (tensor<1024xf32>) -> tensor<1024xbf16>
    %31 = "tt.splat"(%arg3) : (!tt.ptr<f32>) -> tensor<1024x!tt.ptr<f32>>
    %32 = "tt.addptr"(%31, %26) : (tensor<1024x!tt.ptr<f32>>, tensor<1024xi32>) -> tensor<1024x!tt.ptr<f32>>
    %33 = "tt.load"(%32) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<1024x!tt.ptr<f32>>) -> tensor<1024xf32>
    %34 = "tt.addptr"(%arg4, %22) : (!tt.ptr<i32>, i32) -> !tt.ptr<i32>
    %35 = "tt.load"(%34) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (!tt.ptr<i32>) -> i32
    %36 = "tt.bitcast"(%35) : (i32) -> f32
    %37:3 = "scf.for"(%24, %21, %23, %14, %14, %14) ({
    ^bb0(%arg14: i32, %arg15: tensor<1024xf32>, %arg16: tensor<1024xf32>, %arg17: tensor<1024xf32>):
      %47 = "arith.muli"(%25, %21) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
      %48 = "arith.addi"(%47, %arg14) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
      %49 = "arith.muli"(%48, %20) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
      %50 = "tt.load"(%arg4) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (!tt.ptr<i32>) -> i32
      %51 = "tt.addptr"(%arg4, %23) : (!tt.ptr<i32>, i32) -> !tt.ptr<i32>
      %52 = "tt.load"(%51) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (!tt.ptr<i32>) -> i32
      %53 = "tt.addptr"(%arg4, %19) : (!tt.ptr<i32>, i32) -> !tt.ptr<i32>
      %54 = "tt.load"(%53) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (!tt.ptr<i32>) -> i32
      %55 = "tt.load"(%34) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (!tt.ptr<i32>) -> i32
      %56 = "arith.muli"(%54, %19) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
      %57 = "arith.shrui"(%50, %18) : (i32, i32) -> i32
      %58 = "arith.xori"(%50, %57) : (i32, i32) -> i32
      %59 = "arith.muli"(%58, %17) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
      %60 = "arith.shrui"(%59, %16) : (i32, i32) -> i32
      %61 = "arith.xori"(%59, %60) : (i32, i32) -> i32
      %62 = "arith.muli"(%61, %15) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
      %63 = "tt.bitcast"(%55) : (i32) -> f32
      %64 = "tt.make_range"() <{end = 4 : i32, start = 0 : i32}> : () -> tensor<4xi32>
      %65 = "tt.splat"(%49) : (i32) -> tensor<4xi32>
      %66 = "arith.addi"(%65, %64) <{overflowFlags = #arith.overflow<none>}> : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
      %67 = "tt.expand_dims"(%66) <{axis = 1 : i32}> : (tensor<4xi32>) -> tensor<4x1xi32>
      %68 = "tt.broadcast"(%67) : (tensor<4x1xi32>) -> tensor<4x1024xi32>
      %69 = "arith.muli"(%68, %13) <{overflowFlags = #arith.overflow<none>}> : (tensor<4x1024xi32>, tensor<4x1024xi32>) -> tensor<4x1024xi32>
      %70 = "tt.expand_dims"(%26) <{axis = 0 : i32}> : (tensor<1024xi32>) -> tensor<1x1024xi32>
      %71 = "tt.broadcast"(%70) : (tensor<1x1024xi32>) -> tensor<4x1024xi32>
      %72 = "arith.addi"(%69, %71) <{overflowFlags = #arith.overflow<none>}> : (tensor<4x1024xi32>, tensor<4x1024xi32>) -> tensor<4x1024xi32>
      %73 = "tt.splat"(%arg0) : (!tt.ptr<bf16>) -> tensor<4x1024x!tt.ptr<bf16>>
      %74 = "tt.addptr"(%73, %72) : (tensor<4x1024x!tt.ptr<bf16>>, tensor<4x1024xi32>) -> tensor<4x1024x!tt.ptr<bf16>>
      %75 = "tt.load"(%74) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<4x1024x!tt.ptr<bf16>>) -> tensor<4x1024xbf16>
      %76 = "tt.splat"(%arg1) : (!tt.ptr<bf16>) -> tensor<4x1024x!tt.ptr<bf16>>
      %77 = "tt.addptr"(%76, %72) : (tensor<4x1024x!tt.ptr<bf16>>, tensor<4x1024xi32>) -> tensor<4x1024x!tt.ptr<bf16>>
      %78 = "tt.load"(%77) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<4x1024x!tt.ptr<bf16>>) -> tensor<4x1024xbf16>
      %79 = "tt.expand_dims"(%30) <{axis = 0 : i32}> : (tensor<1024xbf16>) -> tensor<1x1024xbf16>
      %80 = "tt.broadcast"(%79) : (tensor<1x1024xbf16>) -> tensor<4x1024xbf16>
      %81 = "arith.addf"(%78, %80) <{fastmath = #arith.fastmath<none>}> : (tensor<4x1024xbf16>, tensor<4x1024xbf16>) -> tensor<4x1024xbf16>
      %82 = "arith.extf"(%81) : (tensor<4x1024xbf16>) -> tensor<4x1024xf32>
      %83 = "tt.splat"(%62) : (i32) -> tensor<4xi32>
      %84 = "arith.xori"(%66, %83) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
      %85 = "arith.shrui"(%84, %12) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
      %86 = "arith.xori"(%84, %85) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
      %87 = "arith.muli"(%86, %11) <{overflowFlags = #arith.overflow<none>}> : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
      %88 = "arith.shrui"(%87, %10) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
      %89 = "arith.xori"(%87, %88) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
      %90 = "arith.muli"(%89, %9) <{overflowFlags = #arith.overflow<none>}> : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
      %91 = "arith.muli"(%26, %8) <{overflowFlags = #arith.overflow<none>}> : (tensor<1024xi32>, tensor<1024xi32>) -> tensor<1024xi32>
      %92 = "tt.splat"(%52) : (i32) -> tensor<1024xi32>
      %93 = "arith.addi"(%91, %92) <{overflowFlags = #arith.overflow<none>}> : (tensor<1024xi32>, tensor<1024xi32>) -> tensor<1024xi32>
      %94 = "tt.expand_dims"(%90) <{axis = 1 : i32}> : (tensor<4xi32>) -> tensor<4x1xi32>
      %95 = "tt.expand_dims"(%93) <{axis = 0 : i32}> : (tensor<1024xi32>) -> tensor<1x1024xi32>
      %96 = "tt.broadcast"(%94) : (tensor<4x1xi32>) -> tensor<4x1024xi32>
      %97 = "tt.broadcast"(%95) : (tensor<1x1024xi32>) -> tensor<4x1024xi32>
      %98 = "arith.xori"(%96, %97) : (tensor<4x1024xi32>, tensor<4x1024xi32>) -> tensor<4x1024xi32>
      %99 = "arith.shrui"(%98, %7) : (tensor<4x1024xi32>, tensor<4x1024xi32>) -> tensor<4x1024xi32>
      %100 = "arith.xori"(%98, %99) : (tensor<4x1024xi32>, tensor<4x1024xi32>) -> tensor<4x1024xi32>
      %101 = "arith.muli"(%100, %6) <{overflowFlags = #arith.overflow<none>}> : (tensor<4x1024xi32>, tensor<4x1024xi32>) -> tensor<4x1024xi32>
      %102 = "arith.shrui"(%101, %5) : (tensor<4x1024xi32>, tensor<4x1024xi32>) -> tensor<4x1024xi32>
      %103 = "arith.xori"(%101, %102) : (tensor<4x1024xi32>, tensor<4x1024xi32>) -> tensor<4x1024xi32>
      %104 = "arith.muli"(%103, %4) <{overflowFlags = #arith.overflow<none>}> : (tensor<4x1024xi32>, tensor<4x1024xi32>) -> tensor<4x1024xi32>
      %105 = "arith.shrui"(%104, %3) : (tensor<4x1024xi32>, tensor<4x1024xi32>) -> tensor<4x1024xi32>
      %106 = "arith.xori"(%104, %105) : (tensor<4x1024xi32>, tensor<4x1024xi32>) -> tensor<4x1024xi32>
      %107 = "tt.splat"(%56) : (i32) -> tensor<4x1024xi32>
      %108 = "arith.cmpi"(%106, %107) <{predicate = 9 : i64}> : (tensor<4x1024xi32>, tensor<4x1024xi32>) -> tensor<4x1024xi1>
      %109 = "tt.splat"(%63) : (f32) -> tensor<4x1024xf32>
      %110 = "arith.mulf"(%82, %109) <{fastmath = #arith.fastmath<none>}> : (tensor<4x1024xf32>, tensor<4x1024xf32>) -> tensor<4x1024xf32>
      %111 = "arith.select"(%108, %110, %2) : (tensor<4x1024xi1>, tensor<4x1024xf32>, tensor<4x1024xf32>) -> tensor<4x1024xf32>
      %112 = "arith.truncf"(%111) : (tensor<4x1024xf32>) -> tensor<4x1024xbf16>
      %113 = "arith.extf"(%75) : (tensor<4x1024xbf16>) -> tensor<4x1024xf32>
      %114 = "arith.extf"(%112) : (tensor<4x1024xbf16>) -> tensor<4x1024xf32>
      %115 = "arith.addf"(%113, %114) <{fastmath = #arith.fastmath<none>}> : (tensor<4x1024xf32>, tensor<4x1024xf32>) -> tensor<4x1024xf32>
      %116 = "tt.splat"(%arg5) : (!tt.ptr<f32>) -> tensor<4x!tt.ptr<f32>>
      %117 = "tt.addptr"(%116, %66) : (tensor<4x!tt.ptr<f32>>, tensor<4xi32>) -> tensor<4x!tt.ptr<f32>>
      %118 = "tt.load"(%117) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<4x!tt.ptr<f32>>) -> tensor<4xf32>
      %119 = "tt.expand_dims"(%118) <{axis = 1 : i32}> : (tensor<4xf32>) -> tensor<4x1xf32>
      %120 = "tt.splat"(%arg6) : (!tt.ptr<f32>) -> tensor<4x!tt.ptr<f32>>
      %121 = "tt.addptr"(%120, %66) : (tensor<4x!tt.ptr<f32>>, tensor<4xi32>) -> tensor<4x!tt.ptr<f32>>
      %122 = "tt.load"(%121) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<4x!tt.ptr<f32>>) -> tensor<4xf32>
      %123 = "tt.expand_dims"(%122) <{axis = 1 : i32}> : (tensor<4xf32>) -> tensor<4x1xf32>
      %124 = "tt.broadcast"(%119) : (tensor<4x1xf32>) -> tensor<4x1024xf32>
      %125 = "arith.subf"(%115, %124) <{fastmath = #arith.fastmath<none>}> : (tensor<4x1024xf32>, tensor<4x1024xf32>) -> tensor<4x1024xf32>
      %126 = "tt.broadcast"(%123) : (tensor<4x1xf32>) -> tensor<4x1024xf32>
      %127 = "arith.mulf"(%125, %126) <{fastmath = #arith.fastmath<none>}> : (tensor<4x1024xf32>, tensor<4x1024xf32>) -> tensor<4x1024xf32>
      %128 = "tt.splat"(%arg7) : (!tt.ptr<bf16>) -> tensor<4x1024x!tt.ptr<bf16>>
      %129 = "tt.addptr"(%128, %72) : (tensor<4x1024x!tt.ptr<bf16>>, tensor<4x1024xi32>) -> tensor<4x1024x!tt.ptr<bf16>>
      %130 = "tt.load"(%129) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<4x1024x!tt.ptr<bf16>>) -> tensor<4x1024xbf16>
      %131 = "arith.extf"(%130) : (tensor<4x1024xbf16>) -> tensor<4x1024xf32>
      %132 = "arith.addf"(%131, %2) <{fastmath = #arith.fastmath<none>}> : (tensor<4x1024xf32>, tensor<4x1024xf32>) -> tensor<4x1024xf32>
      %133 = "tt.splat"(%arg8) : (!tt.ptr<bf16>) -> tensor<4x1024x!tt.ptr<bf16>>
      %134 = "tt.addptr"(%133, %72) : (tensor<4x1024x!tt.ptr<bf16>>, tensor<4x1024xi32>) -> tensor<4x1024x!tt.ptr<bf16>>
      %135 = "tt.load"(%134) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<4x1024x!tt.ptr<bf16>>) -> tensor<4x1024xbf16>
      %136 = "arith.extf"(%135) : (tensor<4x1024xbf16>) -> tensor<4x1024xf32>
      %137 = "arith.addf"(%132, %136) <{fastmath = #arith.fastmath<none>}> : (tensor<4x1024xf32>, tensor<4x1024xf32>) -> tensor<4x1024xf32>
      %138 = "tt.expand_dims"(%33) <{axis = 0 : i32}> : (tensor<1024xf32>) -> tensor<1x1024xf32>
      %139 = "tt.broadcast"(%138) : (tensor<1x1024xf32>) -> tensor<4x1024xf32>
      %140 = "arith.mulf"(%137, %139) <{fastmath = #arith.fastmath<none>}> : (tensor<4x1024xf32>, tensor<4x1024xf32>) -> tensor<4x1024xf32>
      %141 = "tt.reduce"(%140) <{axis = 1 : i32}> ({
      ^bb0(%arg26: f32, %arg27: f32):
        %174 = "arith.addf"(%arg26, %arg27) <{fastmath = #arith.fastmath<none>}> : (f32, f32) -> f32
        "tt.reduce.return"(%174) : (f32) -> ()
      }) : (tensor<4x1024xf32>) -> tensor<4xf32>
      %142 = "arith.divf"(%141, %1) <{fastmath = #arith.fastmath<none>}> : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
      %143 = "tt.expand_dims"(%142) <{axis = 1 : i32}> : (tensor<4xf32>) -> tensor<4x1xf32>
      %144 = "tt.broadcast"(%143) : (tensor<4x1xf32>) -> tensor<4x1024xf32>
      %145 = "arith.subf"(%140, %144) <{fastmath = #arith.fastmath<none>}> : (tensor<4x1024xf32>, tensor<4x1024xf32>) -> tensor<4x1024xf32>
      %146 = "arith.mulf"(%140, %127) <{fastmath = #arith.fastmath<none>}> : (tensor<4x1024xf32>, tensor<4x1024xf32>) -> tensor<4x1024xf32>
      %147 = "tt.reduce"(%146) <{axis = 1 : i32}> ({
      ^bb0(%arg24: f32, %arg25: f32):
        %173 = "arith.addf"(%arg24, %arg25) <{fastmath = #arith.fastmath<none>}> : (f32, f32) -> f32
        "tt.reduce.return"(%173) : (f32) -> ()
      }) : (tensor<4x1024xf32>) -> tensor<4xf32>
      %148 = "arith.divf"(%147, %1) <{fastmath = #arith.fastmath<none>}> : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
      %149 = "tt.expand_dims"(%148) <{axis = 1 : i32}> : (tensor<4xf32>) -> tensor<4x1xf32>
      %150 = "tt.broadcast"(%149) : (tensor<4x1xf32>) -> tensor<4x1024xf32>
      %151 = "arith.mulf"(%127, %150) <{fastmath = #arith.fastmath<none>}> : (tensor<4x1024xf32>, tensor<4x1024xf32>) -> tensor<4x1024xf32>
      %152 = "arith.subf"(%145, %151) <{fastmath = #arith.fastmath<none>}> : (tensor<4x1024xf32>, tensor<4x1024xf32>) -> tensor<4x1024xf32>
      %153 = "arith.mulf"(%126, %152) <{fastmath = #arith.fastmath<none>}> : (tensor<4x1024xf32>, tensor<4x1024xf32>) -> tensor<4x1024xf32>
      %154 = "tt.splat"(%36) : (f32) -> tensor<4x1024xf32>
      %155 = "arith.mulf"(%153, %154) <{fastmath = #arith.fastmath<none>}> : (tensor<4x1024xf32>, tensor<4x1024xf32>) -> tensor<4x1024xf32>
      %156 = "arith.select"(%108, %155, %2) : (tensor<4x1024xi1>, tensor<4x1024xf32>, tensor<4x1024xf32>) -> tensor<4x1024xf32>
      %157 = "arith.truncf"(%153) : (tensor<4x1024xf32>) -> tensor<4x1024xbf16>
      %158 = "tt.splat"(%arg9) : (!tt.ptr<bf16>) -> tensor<4x1024x!tt.ptr<bf16>>
      %159 = "tt.addptr"(%158, %72) : (tensor<4x1024x!tt.ptr<bf16>>, tensor<4x1024xi32>) -> tensor<4x1024x!tt.ptr<bf16>>
      "tt.store"(%159, %157) <{cache = 1 : i32, evict = 1 : i32}> : (tensor<4x1024x!tt.ptr<bf16>>, tensor<4x1024xbf16>) -> ()
      %160 = "arith.truncf"(%156) : (tensor<4x1024xf32>) -> tensor<4x1024xbf16>
      %161 = "tt.splat"(%arg10) : (!tt.ptr<bf16>) -> tensor<4x1024x!tt.ptr<bf16>>
      %162 = "tt.addptr"(%161, %72) : (tensor<4x1024x!tt.ptr<bf16>>, tensor<4x1024xi32>) -> tensor<4x1024x!tt.ptr<bf16>>
      "tt.store"(%162, %160) <{cache = 1 : i32, evict = 1 : i32}> : (tensor<4x1024x!tt.ptr<bf16>>, tensor<4x1024xbf16>) -> ()
      %163 = "arith.mulf"(%137, %127) <{fastmath = #arith.fastmath<none>}> : (tensor<4x1024xf32>, tensor<4x1024xf32>) -> tensor<4x1024xf32>
      %164 = "tt.reduce"(%163) <{axis = 0 : i32}> ({
      ^bb0(%arg22: f32, %arg23: f32):
        %172 = "arith.addf"(%arg22, %arg23) <{fastmath = #arith.fastmath<none>}> : (f32, f32) -> f32
        "tt.reduce.return"(%172) : (f32) -> ()
      }) : (tensor<4x1024xf32>) -> tensor<1024xf32>
      %165 = "arith.addf"(%arg15, %164) <{fastmath = #arith.fastmath<none>}> : (tensor<1024xf32>, tensor<1024xf32>) -> tensor<1024xf32>
      %166 = "tt.reduce"(%137) <{axis = 0 : i32}> ({
      ^bb0(%arg20: f32, %arg21: f32):
        %171 = "arith.addf"(%arg20, %arg21) <{fastmath = #arith.fastmath<none>}> : (f32, f32) -> f32
        "tt.reduce.return"(%171) : (f32) -> ()
      }) : (tensor<4x1024xf32>) -> tensor<1024xf32>
      %167 = "arith.addf"(%arg16, %166) <{fastmath = #arith.fastmath<none>}> : (tensor<1024xf32>, tensor<1024xf32>) -> tensor<1024xf32>
      %168 = "tt.reduce"(%156) <{axis = 0 : i32}> ({
      ^bb0(%arg18: f32, %arg19: f32):
        %170 = "arith.addf"(%arg18, %arg19) <{fastmath = #arith.fastmath<none>}> : (f32, f32) -> f32
        "tt.reduce.return"(%170) : (f32) -> ()
      }) : (tensor<4x1024xf32>) -> tensor<1024xf32>
      %169 = "arith.addf"(%arg17, %168) <{fastmath = #arith.fastmath<none>}> : (tensor<1024xf32>, tensor<1024xf32>) -> tensor<1024xf32>
      "scf.yield"(%165, %167, %169) : (tensor<1024xf32>, tensor<1024xf32>, tensor<1024xf32>) -> ()
    }) : (i32, i32, i32, tensor<1024xf32>, tensor<1024xf32>, tensor<1024xf32>) -> (tensor<1024xf32>, tensor<1024xf32>, tensor<1024xf32>)
    %38 = "tt.splat"(%25) : (i32) -> tensor<1024xi32>
    %39 = "arith.muli"(%38, %0) <{overflowFlags = #arith.overflow<none>}> : (tensor<1024xi32>, tensor<1024xi32>) -> tensor<1024xi32>
    %40 = "arith.addi"(%39, %26) <{overflowFlags = #arith.overflow<none>}> : (tensor<1024xi32>, tensor<1024xi32>) -> tensor<1024xi32>
    %41 = "tt.splat"(%arg11) : (!tt.ptr<f32>) -> tensor<1024x!tt.ptr<f32>>
    %42 = "tt.addptr"(%41, %40) : (tensor<1024x!tt.ptr<f32>>, tensor<1024xi32>) -> tensor<1024x!tt.ptr<f32>>
    "tt.store"(%42, %37#0) <{cache = 1 : i32, evict = 1 : i32}> : (tensor<1024x!tt.ptr<f32>>, tensor<1024xf32>) -> ()
    %43 = "tt.splat"(%arg12) : (!tt.ptr<f32>) -> tensor<1024x!tt.ptr<f32>>
    %44 = "tt.addptr"(%43, %40) : (tensor<1024x!tt.ptr<f32>>, tensor<1024xi32>) -> tensor<1024x!tt.ptr<f32>>
    "tt.store"(%44, %37#1) <{cache = 1 : i32, evict = 1 : i32}> : (tensor<1024x!tt.ptr<f32>>, tensor<1024xf32>) -> ()
    %45 = "tt.splat"(%arg13) : (!tt.ptr<f32>) -> tensor<1024x!tt.ptr<f32>>
    %46 = "tt.addptr"(%45, %40) : (tensor<1024x!tt.ptr<f32>>, tensor<1024xi32>) -> tensor<1024x!tt.ptr<f32>>
    "tt.store"(%46, %37#2) <{cache = 1 : i32, evict = 1 : i32}> : (tensor<1024x!tt.ptr<f32>>, tensor<1024xf32>) -> ()
    "tt.return"() : () -> ()
  }) : () -> ()
}) : () -> ()
