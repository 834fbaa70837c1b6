// num_stages = 1, num_warps = 8
"builtin.module"() <{sym_name = "norm_backward"}> ({
  "tt.func"() <{arg_attrs = [{tt.divisibility = 32 : i32}, {tt.divisibility = 32 : i32}, {tt.divisibility = 32 : i32}, {tt.divisibility = 32 : i32}, {tt.divisibility = 32 : i32}, {tt.divisibility = 32 : i32}, {tt.divisibility = 32 : i32}, {tt.divisibility = 32 : i32}, {tt.divisibility = 32 : i32}, {tt.divisibility = 32 : i32}, {tt.divisibility = 32 : i32}, {tt.divisibility = 32 : i32}, {tt.divisibility = 32 : i32}, {tt.divisibility = 32 : i32}], function_type = (!tt.ptr<bf16>, !tt.ptr<bf16>, !tt.ptr<f32>, !tt.ptr<f32>, !tt.ptr<i32>, !tt.ptr<f32>, !tt.ptr<f32>, !tt.ptr<bf16>, !tt.ptr<bf16>, !tt.ptr<bf16>, !tt.ptr<bf16>, !tt.ptr<f32>, !tt.ptr<f32>, !tt.ptr<f32>) -> (), sym_name = "norm_backward", sym_visibility = "public"}> ({
  ^bb0(%arg0: !tt.ptr<bf16>, %arg1: !tt.ptr<bf16>, %arg2: !tt.ptr<f32>, %arg3: !tt.ptr<f32>, %arg4: !tt.ptr<i32>, %arg5: !tt.ptr<f32>, %arg6: !tt.ptr<f32>, %arg7: !tt.ptr<bf16>, %arg8: !tt.ptr<bf16>, %arg9: !tt.ptr<bf16>, %arg10: !tt.ptr<bf16>, %arg11: !tt.ptr<f32>, %arg12: !tt.ptr<f32>, %arg13: !tt.ptr<f32>):
    %0 = "arith.constant"() <{value = dense<1024> : tensor<1024xi32>}> : () -> tensor<1024xi32>
    %1 = "arith.constant"() <{value = dense<1.024000e+03> : tensor<4xf32>}> : () -> tensor<4xf32>
    %2 = "arith.constant"() <{value = dense<14> : tensor<4x1024xi32>}> : () -> tensor<4x1024xi32>
    %3 = "arith.constant"() <{value = dense<830770091> : tensor<4x1024xi32>}> : () -> tensor<4x1024xi32>
    %4 = "arith.constant"() <{value = dense<11> : tensor<4x1024xi32>}> : () -> tensor<4x1024xi32>
    %5 = "arith.constant"() <{value = dense<-312814405> : tensor<4x1024xi32>}> : () -> tensor<4x1024xi32>
    %6 = "arith.constant"() <{value = dense<17> : tensor<4x1024xi32>}> : () -> tensor<4x1024xi32>
    %7 = "arith.constant"() <{value = dense<-1640531527> : tensor<1024xi32>}> : () -> tensor<1024xi32>
    %8 = "arith.constant"() <{value = dense<-2073254261> : tensor<4xi32>}> : () -> tensor<4xi32>
    %9 = "arith.constant"() <{value = dense<15> : tensor<4xi32>}> : () -> tensor<4xi32>
    %10 = "arith.constant"() <{value = dense<2146121005> : tensor<4xi32>}> : () -> tensor<4xi32>
    %11 = "arith.constant"() <{value = dense<16> : tensor<4xi32>}> : () -> tensor<4xi32>
    %12 = "arith.constant"() <{value = dense<1024> : tensor<4x1024xi32>}> : () -> tensor<4x1024xi32>
    %13 = "arith.constant"() <{value = dense<0.000000e+00> : tensor<4x1024xf32>}> : () -> tensor<4x1024xf32>
    %14 = "arith.constant"() <{value = -1404298415 : i32}> : () -> i32
    %15 = "arith.constant"() <{value = 11 : i32}> : () -> i32
    %16 = "arith.constant"() <{value = -312814405 : i32}> : () -> i32
    %17 = "arith.constant"() <{value = 17 : i32}> : () -> i32
    %18 = "arith.constant"() <{value = 2 : i32}> : () -> i32
    %19 = "arith.constant"() <{value = 4 : i32}> : () -> i32
    %20 = "arith.constant"() <{value = 8 : i32}> : () -> i32
    %21 = "arith.constant"() <{value = 3 : i32}> : () -> i32
    %22 = "arith.constant"() <{value = 1 : i32}> : () -> i32
    %23 = "arith.constant"() <{value = 0 : i32}> : () -> i32
    %24 = "tt.get_program_id"() <{axis = 0 : i32}> : () -> i32
    %25 = "tt.make_range"() <{end = 1024 : i32, start = 0 : i32}> : () -> tensor<1024xi32>
    %26 = "tt.splat"(%arg2) : (!tt.ptr<f32>) -> tensor<1024x!tt.ptr<f32>>
    %27 = "tt.addptr"(%26, %25) : (tensor<1024x!tt.ptr<f32>>, tensor<1024xi32>) -> tensor<1024x!tt.ptr<f32>>
    %28 = "tt.load"(%27) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<1024x!tt.ptr<f32>>) -> tensor<1024xf32>
    %29 = "arith.truncf"(%28) : (tensor<1024xf32>) -> tensor<1024xbf16>
    %30 = "tt.splat"(%arg3) : (!tt.ptr<f32>) -> tensor<1024x!tt.ptr<f32>>
    %31 = "tt.addptr"(%30, %25) : (tensor<1024x!tt.ptr<f32>>, tensor<1024xi32>) -> tensor<1024x!tt.ptr<f32>>
    %32 = "tt.load"(%31) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<1024x!tt.ptr<f32>>) -> tensor<1024xf32>
    %33 = "tt.addptr"(%arg4, %21) : (!tt.ptr<i32>, i32) -> !tt.ptr<i32>
    %34 = "tt.load"(%33) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (!tt.ptr<i32>) -> i32
    %35 = "tt.bitcast"(%34) : (i32) -> f32
    %36:3 = "scf.for"(%23, %20, %22, %13, %13, %13) ({
    ^bb0(%arg20: i32, %arg21: tensor<4x1024xf32>, %arg22: tensor<4x1024xf32>, %arg23: tensor<4x1024xf32>):
      %52 = "arith.muli"(%24, %20) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
      %53 = "arith.addi"(%52, %arg20) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
      %54 = "arith.muli"(%53, %19) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
      %55 = "tt.load"(%arg4) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (!tt.ptr<i32>) -> i32
      %56 = "tt.addptr"(%arg4, %22) : (!tt.ptr<i32>, i32) -> !tt.ptr<i32>
      %57 = "tt.load"(%56) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (!tt.ptr<i32>) -> i32
      %58 = "tt.addptr"(%arg4, %18) : (!tt.ptr<i32>, i32) -> !tt.ptr<i32>
      %59 = "tt.load"(%58) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (!tt.ptr<i32>) -> i32
      %60 = "tt.load"(%33) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (!tt.ptr<i32>) -> i32
      %61 = "arith.muli"(%59, %18) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
      %62 = "arith.shrui"(%55, %17) : (i32, i32) -> i32
      %63 = "arith.xori"(%55, %62) : (i32, i32) -> i32
      %64 = "arith.muli"(%63, %16) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
      %65 = "arith.shrui"(%64, %15) : (i32, i32) -> i32
      %66 = "arith.xori"(%64, %65) : (i32, i32) -> i32
      %67 = "arith.muli"(%66, %14) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
      %68 = "tt.bitcast"(%60) : (i32) -> f32
      %69 = "tt.make_range"() <{end = 4 : i32, start = 0 : i32}> : () -> tensor<4xi32>
      %70 = "tt.splat"(%54) : (i32) -> tensor<4xi32>
      %71 = "arith.addi"(%70, %69) <{overflowFlags = #arith.overflow<none>}> : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
      %72 = "tt.expand_dims"(%71) <{axis = 1 : i32}> : (tensor<4xi32>) -> tensor<4x1xi32>
      %73 = "tt.broadcast"(%72) : (tensor<4x1xi32>) -> tensor<4x1024xi32>
      %74 = "arith.muli"(%73, %12) <{overflowFlags = #arith.overflow<none>}> : (tensor<4x1024xi32>, tensor<4x1024xi32>) -> tensor<4x1024xi32>
      %75 = "tt.expand_dims"(%25) <{axis = 0 : i32}> : (tensor<1024xi32>) -> tensor<1x1024xi32>
      %76 = "tt.broadcast"(%75) : (tensor<1x1024xi32>) -> tensor<4x1024xi32>
      %77 = "arith.addi"(%74, %76) <{overflowFlags = #arith.overflow<none>}> : (tensor<4x1024xi32>, tensor<4x1024xi32>) -> tensor<4x1024xi32>
      %78 = "tt.splat"(%arg0) : (!tt.ptr<bf16>) -> tensor<4x1024x!tt.ptr<bf16>>
      %79 = "tt.addptr"(%78, %77) : (tensor<4x1024x!tt.ptr<bf16>>, tensor<4x1024xi32>) -> tensor<4x1024x!tt.ptr<bf16>>
      %80 = "tt.load"(%79) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<4x1024x!tt.ptr<bf16>>) -> tensor<4x1024xbf16>
      %81 = "tt.splat"(%arg1) : (!tt.ptr<bf16>) -> tensor<4x1024x!tt.ptr<bf16>>
      %82 = "tt.addptr"(%81, %77) : (tensor<4x1024x!tt.ptr<bf16>>, tensor<4x1024xi32>) -> tensor<4x1024x!tt.ptr<bf16>>
      %83 = "tt.load"(%82) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<4x1024x!tt.ptr<bf16>>) -> tensor<4x1024xbf16>
      %84 = "tt.expand_dims"(%29) <{axis = 0 : i32}> : (tensor<1024xbf16>) -> tensor<1x1024xbf16>
      %85 = "tt.broadcast"(%84) : (tensor<1x1024xbf16>) -> tensor<4x1024xbf16>
      %86 = "arith.addf"(%83, %85) <{fastmath = #arith.fastmath<none>}> : (tensor<4x1024xbf16>, tensor<4x1024xbf16>) -> tensor<4x1024xbf16>
      %87 = "arith.extf"(%86) : (tensor<4x1024xbf16>) -> tensor<4x1024xf32>
      %88 = "tt.splat"(%67) : (i32) -> tensor<4xi32>
      %89 = "arith.xori"(%71, %88) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
      %90 = "arith.shrui"(%89, %11) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
      %91 = "arith.xori"(%89, %90) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
      %92 = "arith.muli"(%91, %10) <{overflowFlags = #arith.overflow<none>}> : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
      %93 = "arith.shrui"(%92, %9) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
      %94 = "arith.xori"(%92, %93) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
      %95 = "arith.muli"(%94, %8) <{overflowFlags = #arith.overflow<none>}> : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
      %96 = "arith.muli"(%25, %7) <{overflowFlags = #arith.overflow<none>}> : (tensor<1024xi32>, tensor<1024xi32>) -> tensor<1024xi32>
      %97 = "tt.splat"(%57) : (i32) -> tensor<1024xi32>
      %98 = "arith.addi"(%96, %97) <{overflowFlags = #arith.overflow<none>}> : (tensor<1024xi32>, tensor<1024xi32>) -> tensor<1024xi32>
      %99 = "tt.expand_dims"(%95) <{axis = 1 : i32}> : (tensor<4xi32>) -> tensor<4x1xi32>
      %100 = "tt.expand_dims"(%98) <{axis = 0 : i32}> : (tensor<1024xi32>) -> tensor<1x1024xi32>
      %101 = "tt.broadcast"(%99) : (tensor<4x1xi32>) -> tensor<4x1024xi32>
      %102 = "tt.broadcast"(%100) : (tensor<1x1024xi32>) -> tensor<4x1024xi32>
      %103 = "arith.xori"(%101, %102) : (tensor<4x1024xi32>, tensor<4x1024xi32>) -> tensor<4x1024xi32>
      %104 = "arith.shrui"(%103, %6) : (tensor<4x1024xi32>, tensor<4x1024xi32>) -> tensor<4x1024xi32>
      %105 = "arith.xori"(%103, %104) : (tensor<4x1024xi32>, tensor<4x1024xi32>) -> tensor<4x1024xi32>
      %106 = "arith.muli"(%105, %5) <{overflowFlags = #arith.overflow<none>}> : (tensor<4x1024xi32>, tensor<4x1024xi32>) -> tensor<4x1024xi32>
      %107 = "arith.shrui"(%106, %4) : (tensor<4x1024xi32>, tensor<4x1024xi32>) -> tensor<4x1024xi32>
      %108 = "arith.xori"(%106, %107) : (tensor<4x1024xi32>, tensor<4x1024xi32>) -> tensor<4x1024xi32>
      %109 = "arith.muli"(%108, %3) <{overflowFlags = #arith.overflow<none>}> : (tensor<4x1024xi32>, tensor<4x1024xi32>) -> tensor<4x1024xi32>
      %110 = "arith.shrui"(%109, %2) : (tensor<4x1024xi32>, tensor<4x1024xi32>) -> tensor<4x1024xi32>
      %111 = "arith.xori"(%109, %110) : (tensor<4x1024xi32>, tensor<4x1024xi32>) -> tensor<4x1024xi32>
      %112 = "tt.splat"(%61) : (i32) -> tensor<4x1024xi32>
      %113 = "arith.cmpi"(%111, %112) <{predicate = 9 : i64}> : (tensor<4x1024xi32>, tensor<4x1024xi32>) -> tensor<4x1024xi1>
      %114 = "tt.splat"(%68) : (f32) -> tensor<4x1024xf32>
      %115 = "arith.mulf"(%87, %114) <{fastmath = #arith.fastmath<none>}> : (tensor<4x1024xf32>, tensor<4x1024xf32>) -> tensor<4x1024xf32>
      %116 = "arith.select"(%113, %115, %13) : (tensor<4x1024xi1>, tensor<4x1024xf32>, tensor<4x1024xf32>) -> tensor<4x1024xf32>
      %117 = "arith.truncf"(%116) : (tensor<4x1024xf32>) -> tensor<4x1024xbf16>
      %118 = "arith.extf"(%80) : (tensor<4x1024xbf16>) -> tensor<4x1024xf32>
      %119 = "arith.extf"(%117) : (tensor<4x1024xbf16>) -> tensor<4x1024xf32>
      %120 = "arith.addf"(%118, %119) <{fastmath = #arith.fastmath<none>}> : (tensor<4x1024xf32>, tensor<4x1024xf32>) -> tensor<4x1024xf32>
      %121 = "tt.splat"(%arg5) : (!tt.ptr<f32>) -> tensor<4x!tt.ptr<f32>>
      %122 = "tt.addptr"(%121, %71) : (tensor<4x!tt.ptr<f32>>, tensor<4xi32>) -> tensor<4x!tt.ptr<f32>>
      %123 = "tt.load"(%122) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<4x!tt.ptr<f32>>) -> tensor<4xf32>
      %124 = "tt.expand_dims"(%123) <{axis = 1 : i32}> : (tensor<4xf32>) -> tensor<4x1xf32>
      %125 = "tt.splat"(%arg6) : (!tt.ptr<f32>) -> tensor<4x!tt.ptr<f32>>
      %126 = "tt.addptr"(%125, %71) : (tensor<4x!tt.ptr<f32>>, tensor<4xi32>) -> tensor<4x!tt.ptr<f32>>
      %127 = "tt.load"(%126) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<4x!tt.ptr<f32>>) -> tensor<4xf32>
      %128 = "tt.expand_dims"(%127) <{axis = 1 : i32}> : (tensor<4xf32>) -> tensor<4x1xf32>
      %129 = "tt.broadcast"(%124) : (tensor<4x1xf32>) -> tensor<4x1024xf32>
      %130 = "arith.subf"(%120, %129) <{fastmath = #arith.fastmath<none>}> : (tensor<4x1024xf32>, tensor<4x1024xf32>) -> tensor<4x1024xf32>
      %131 = "tt.broadcast"(%128) : (tensor<4x1xf32>) -> tensor<4x1024xf32>
      %132 = "arith.mulf"(%130, %131) <{fastmath = #arith.fastmath<none>}> : (tensor<4x1024xf32>, tensor<4x1024xf32>) -> tensor<4x1024xf32>
      %133 = "tt.splat"(%arg7) : (!tt.ptr<bf16>) -> tensor<4x1024x!tt.ptr<bf16>>
      %134 = "tt.addptr"(%133, %77) : (tensor<4x1024x!tt.ptr<bf16>>, tensor<4x1024xi32>) -> tensor<4x1024x!tt.ptr<bf16>>
      %135 = "tt.load"(%134) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<4x1024x!tt.ptr<bf16>>) -> tensor<4x1024xbf16>
      %136 = "arith.extf"(%135) : (tensor<4x1024xbf16>) -> tensor<4x1024xf32>
      %137 = "arith.addf"(%136, %13) <{fastmath = #arith.fastmath<none>}> : (tensor<4x1024xf32>, tensor<4x1024xf32>) -> tensor<4x1024xf32>
      %138 = "tt.splat"(%arg8) : (!tt.ptr<bf16>) -> tensor<4x1024x!tt.ptr<bf16>>
      %139 = "tt.addptr"(%138, %77) : (tensor<4x1024x!tt.ptr<bf16>>, tensor<4x1024xi32>) -> tensor<4x1024x!tt.ptr<bf16>>
      %140 = "tt.load"(%139) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<4x1024x!tt.ptr<bf16>>) -> tensor<4x1024xbf16>
      %141 = "arith.extf"(%140) : (tensor<4x1024xbf16>) -> tensor<4x1024xf32>
      %142 = "arith.addf"(%137, %141) <{fastmath = #arith.fastmath<none>}> : (tensor<4x1024xf32>, tensor<4x1024xf32>) -> tensor<4x1024xf32>
      %143 = "tt.expand_dims"(%32) <{axis = 0 : i32}> : (tensor<1024xf32>) -> tensor<1x1024xf32>
      %144 = "tt.broadcast"(%143) : (tensor<1x1024xf32>) -> tensor<4x1024xf32>
      %145 = "arith.mulf"(%142, %144) <{fastmath = #arith.fastmath<none>}> : (tensor<4x1024xf32>, tensor<4x1024xf32>) -> tensor<4x1024xf32>
      %146 = "tt.reduce"(%145) <{axis = 1 : i32}> ({
      ^bb0(%arg26: f32, %arg27: f32):
        %173 = "arith.addf"(%arg26, %arg27) <{fastmath = #arith.fastmath<none>}> : (f32, f32) -> f32
        "tt.reduce.return"(%173) : (f32) -> ()
      }) : (tensor<4x1024xf32>) -> tensor<4xf32>
      %147 = "arith.divf"(%146, %1) <{fastmath = #arith.fastmath<none>}> : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
      %148 = "tt.expand_dims"(%147) <{axis = 1 : i32}> : (tensor<4xf32>) -> tensor<4x1xf32>
      %149 = "tt.broadcast"(%148) : (tensor<4x1xf32>) -> tensor<4x1024xf32>
      %150 = "arith.subf"(%145, %149) <{fastmath = #arith.fastmath<none>}> : (tensor<4x1024xf32>, tensor<4x1024xf32>) -> tensor<4x1024xf32>
      %151 = "arith.mulf"(%145, %132) <{fastmath = #arith.fastmath<none>}> : (tensor<4x1024xf32>, tensor<4x1024xf32>) -> tensor<4x1024xf32>
      %152 = "tt.reduce"(%151) <{axis = 1 : i32}> ({
      ^bb0(%arg24: f32, %arg25: f32):
        %172 = "arith.addf"(%arg24, %arg25) <{fastmath = #arith.fastmath<none>}> : (f32, f32) -> f32
        "tt.reduce.return"(%172) : (f32) -> ()
      }) : (tensor<4x1024xf32>) -> tensor<4xf32>
      %153 = "arith.divf"(%152, %1) <{fastmath = #arith.fastmath<none>}> : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
      %154 = "tt.expand_dims"(%153) <{axis = 1 : i32}> : (tensor<4xf32>) -> tensor<4x1xf32>
      %155 = "tt.broadcast"(%154) : (tensor<4x1xf32>) -> tensor<4x1024xf32>
      %156 = "arith.mulf"(%132, %155) <{fastmath = #arith.fastmath<none>}> : (tensor<4x1024xf32>, tensor<4x1024xf32>) -> tensor<4x1024xf32>
      %157 = "arith.subf"(%150, %156) <{fastmath = #arith.fastmath<none>}> : (tensor<4x1024xf32>, tensor<4x1024xf32>) -> tensor<4x1024xf32>
      %158 = "arith.mulf"(%131, %157) <{fastmath = #arith.fastmath<none>}> : (tensor<4x1024xf32>, tensor<4x1024xf32>) -> tensor<4x1024xf32>
      %159 = "tt.splat"(%35) : (f32) -> tensor<4x1024xf32>
      %160 = "arith.mulf"(%158, %159) <{fastmath = #arith.fastmath<none>}> : (tensor<4x1024xf32>, tensor<4x1024xf32>) -> tensor<4x1024xf32>
      %161 = "arith.select"(%113, %160, %13) : (tensor<4x1024xi1>, tensor<4x1024xf32>, tensor<4x1024xf32>) -> tensor<4x1024xf32>
      %162 = "arith.truncf"(%158) : (tensor<4x1024xf32>) -> tensor<4x1024xbf16>
      %163 = "tt.splat"(%arg9) : (!tt.ptr<bf16>) -> tensor<4x1024x!tt.ptr<bf16>>
      %164 = "tt.addptr"(%163, %77) : (tensor<4x1024x!tt.ptr<bf16>>, tensor<4x1024xi32>) -> tensor<4x1024x!tt.ptr<bf16>>
      "tt.store"(%164, %162) <{cache = 1 : i32, evict = 1 : i32}> : (tensor<4x1024x!tt.ptr<bf16>>, tensor<4x1024xbf16>) -> ()
      %165 = "arith.truncf"(%161) : (tensor<4x1024xf32>) -> tensor<4x1024xbf16>
      %166 = "tt.splat"(%arg10) : (!tt.ptr<bf16>) -> tensor<4x1024x!tt.ptr<bf16>>
      %167 = "tt.addptr"(%166, %77) : (tensor<4x1024x!tt.ptr<bf16>>, tensor<4x1024xi32>) -> tensor<4x1024x!tt.ptr<bf16>>
      "tt.store"(%167, %165) <{cache = 1 : i32, evict = 1 : i32}> : (tensor<4x1024x!tt.ptr<bf16>>, tensor<4x1024xbf16>) -> ()
      %168 = "arith.mulf"(%142, %132) <{fastmath = #arith.fastmath<none>}> : (tensor<4x1024xf32>, tensor<4x1024xf32>) -> tensor<4x1024xf32>
      %169 = "arith.addf"(%arg21, %168) <{fastmath = #arith.fastmath<none>}> : (tensor<4x1024xf32>, tensor<4x1024xf32>) -> tensor<4x1024xf32>
      %170 = "arith.addf"(%arg22, %142) <{fastmath = #arith.fastmath<none>}> : (tensor<4x1024xf32>, tensor<4x1024xf32>) -> tensor<4x1024xf32>
      %171 = "arith.addf"(%arg23, %161) <{fastmath = #arith.fastmath<none>}> : (tensor<4x1024xf32>, tensor<4x1024xf32>) -> tensor<4x1024xf32>
      "scf.yield"(%169, %170, %171) : (tensor<4x1024xf32>, tensor<4x1024xf32>, tensor<4x1024xf32>) -> ()
    }) : (i32, i32, i32, tensor<4x1024xf32>, tensor<4x1024xf32>, tensor<4x1024xf32>) -> (tensor<4x1024xf32>, tensor<4x1024xf32>, tensor<4x1024xf32>)
    %37 = "tt.reduce"(%36#0) <{axis = 0 : i32}> ({
    ^bb0(%arg18: f32, %arg19: f32):
      %51 = "arith.addf"(%arg18, %arg19) <{fastmath = #arith.fastmath<none>}> : (f32, f32) -> f32
      "tt.reduce.return"(%51) : (f32) -> ()
    }) : (tensor<4x1024xf32>) -> tensor<1024xf32>
    %38 = "tt.splat"(%24) : (i32) -> tensor<1024xi32>
    %39 = "arith.muli"(%38, %0) <{overflowFlags = #arith.overflow<none>}> : (tensor<1024xi32>, tensor<1024xi32>) -> tensor<1024xi32>
    %40 = "arith.addi"(%39, %25) <{overflowFlags = #arith.overflow<none>}> : (tensor<1024xi32>, tensor<1024xi32>) -> tensor<1024xi32>
    %41 = "tt.splat"(%arg11) : (!tt.ptr<f32>) -> tensor<1024x!tt.ptr<f32>>
    %42 = "tt.addptr"(%41, %40) : (tensor<1024x!tt.ptr<f32>>, tensor<1024xi32>) -> tensor<1024x!tt.ptr<f32>>
    "tt.store"(%42, %37) <{cache = 1 : i32, evict = 1 : i32}> : (tensor<1024x!tt.ptr<f32>>, tensor<1024xf32>) -> ()
    %43 = "tt.reduce"(%36#1) <{axis = 0 : i32}> ({
    ^bb0(%arg16: f32, %arg17: f32):
      %50 = "arith.addf"(%arg16, %arg17) <{fastmath = #arith.fastmath<none>}> : (f32, f32) -> f32
      "tt.reduce.return"(%50) : (f32) -> ()
    }) : (tensor<4x1024xf32>) -> tensor<1024xf32>
    %44 = "tt.splat"(%arg12) : (!tt.ptr<f32>) -> tensor<1024x!tt.ptr<f32>>
    %45 = "tt.addptr"(%44, %40) : (tensor<1024x!tt.ptr<f32>>, tensor<1024xi32>) -> tensor<1024x!tt.ptr<f32>>
    "tt.store"(%45, %43) <{cache = 1 : i32, evict = 1 : i32}> : (tensor<1024x!tt.ptr<f32>>, tensor<1024xf32>) -> ()
    %46 = "tt.reduce"(%36#2) <{axis = 0 : i32}> ({
    ^bb0(%arg14: f32, %arg15: f32):
      %49 = "arith.addf"(%arg14, %arg15) <{fastmath = #arith.fastmath<none>}> : (f32, f32) -> f32
      "tt.reduce.return"(%49) : (f32) -> ()
    }) : (tensor<4x1024xf32>) -> tensor<1024xf32>
    %47 = "tt.splat"(%arg13) : (!tt.ptr<f32>) -> tensor<1024x!tt.ptr<f32>>
    %48 = "tt.addptr"(%47, %40) : (tensor<1024x!tt.ptr<f32>>, tensor<1024xi32>) -> tensor<1024x!tt.ptr<f32>>
    "tt.store"(%48, %46) <{cache = 1 : i32, evict = 1 : i32}> : (tensor<1024x!tt.ptr<f32>>, tensor<1024xf32>) -> ()
    "tt.return"() : () -> ()
  }) : () -> ()
}) {ttg.maxnreg = 128 : i32} : () -> ()
