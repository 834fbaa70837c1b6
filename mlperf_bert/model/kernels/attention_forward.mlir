// num_stages = 3, num_warps = 8
"builtin.module"() <{sym_name = "attention_forward"}> ({
  "tt.func"() <{arg_attrs = [{tt.divisibility = 32 : i32}, {tt.divisibility = 32 : i32}, {tt.divisibility = 32 : i32}, {tt.divisibility = 32 : i32}, {tt.divisibility = 32 : i32}, {tt.divisibility = 32 : i32}, {tt.divisibility = 32 : i32}], function_type = (!tt.ptr<bf16>, !tt.ptr<f32>, !tt.ptr<i32>, !tt.ptr<i32>, !tt.ptr<i32>, !tt.ptr<bf16>, !tt.ptr<f32>) -> (), sym_name = "attention_forward", sym_visibility = "public"}> ({
  ^bb0(%arg0: !tt.ptr<bf16>, %arg1: !tt.ptr<f32>, %arg2: !tt.ptr<i32>, %arg3: !tt.ptr<i32>, %arg4: !tt.ptr<i32>, %arg5: !tt.ptr<bf16>, %arg6: !tt.ptr<f32>):
    %0 = "arith.constant"() <{value = dense<1024> : tensor<128x64xi32>}> : () -> tensor<128x64xi32>
    %1 = "arith.constant"() <{value = dense<14> : tensor<128x64xi32>}> : () -> tensor<128x64xi32>
    %2 = "arith.constant"() <{value = dense<830770091> : tensor<128x64xi32>}> : () -> tensor<128x64xi32>
    %3 = "arith.constant"() <{value = dense<11> : tensor<128x64xi32>}> : () -> tensor<128x64xi32>
    %4 = "arith.constant"() <{value = dense<-312814405> : tensor<128x64xi32>}> : () -> tensor<128x64xi32>
    %5 = "arith.constant"() <{value = dense<17> : tensor<128x64xi32>}> : () -> tensor<128x64xi32>
    %6 = "arith.constant"() <{value = dense<-1640531527> : tensor<64xi32>}> : () -> tensor<64xi32>
    %7 = "arith.constant"() <{value = dense<0xFF800000> : tensor<128x64xf32>}> : () -> tensor<128x64xf32>
    %8 = "arith.constant"() <{value = dense<0.180336878> : tensor<128x64xf32>}> : () -> tensor<128x64xf32>
    %9 = "arith.constant"() <{value = dense<2048> : tensor<64xi32>}> : () -> tensor<64xi32>
    %10 = "arith.constant"() <{value = dense<2048> : tensor<64x64xi32>}> : () -> tensor<64x64xi32>
    %11 = "arith.constant"() <{value = dense<1024> : tensor<64xi32>}> : () -> tensor<64xi32>
    %12 = "arith.constant"() <{value = dense<64> : tensor<64x64xi32>}> : () -> tensor<64x64xi32>
    %13 = "arith.constant"() <{value = dense<1024> : tensor<64x64xi32>}> : () -> tensor<64x64xi32>
    %14 = "arith.constant"() <{value = dense<3072> : tensor<64x64xi32>}> : () -> tensor<64x64xi32>
    %15 = "arith.constant"() <{value = dense<-1.000000e+30> : tensor<128xf32>}> : () -> tensor<128xf32>
    %16 = "arith.constant"() <{value = dense<0.000000e+00> : tensor<128x64xf32>}> : () -> tensor<128x64xf32>
    %17 = "arith.constant"() <{value = dense<0.000000e+00> : tensor<128xf32>}> : () -> tensor<128xf32>
    %18 = "arith.constant"() <{value = dense<-2073254261> : tensor<128xi32>}> : () -> tensor<128xi32>
    %19 = "arith.constant"() <{value = dense<15> : tensor<128xi32>}> : () -> tensor<128xi32>
    %20 = "arith.constant"() <{value = dense<2146121005> : tensor<128xi32>}> : () -> tensor<128xi32>
    %21 = "arith.constant"() <{value = dense<16> : tensor<128xi32>}> : () -> tensor<128xi32>
    %22 = "arith.constant"() <{value = dense<-1> : tensor<128xi32>}> : () -> tensor<128xi32>
    %23 = "arith.constant"() <{value = dense<0> : tensor<128xi32>}> : () -> tensor<128xi32>
    %24 = "arith.constant"() <{value = dense<64> : tensor<64xi32>}> : () -> tensor<64xi32>
    %25 = "arith.constant"() <{value = dense<64> : tensor<128x64xi32>}> : () -> tensor<128x64xi32>
    %26 = "arith.constant"() <{value = dense<3072> : tensor<128x64xi32>}> : () -> tensor<128x64xi32>
    %27 = "arith.constant"() <{value = 2.000000e+00 : f32}> : () -> f32
    %28 = "arith.constant"() <{value = -1404298415 : i32}> : () -> i32
    %29 = "arith.constant"() <{value = 11 : i32}> : () -> i32
    %30 = "arith.constant"() <{value = -312814405 : i32}> : () -> i32
    %31 = "arith.constant"() <{value = 17 : i32}> : () -> i32
    %32 = "arith.constant"() <{value = 128 : i32}> : () -> i32
    %33 = "arith.constant"() <{value = 1 : i32}> : () -> i32
    %34 = "arith.constant"() <{value = 4 : i32}> : () -> i32
    %35 = "arith.constant"() <{value = 2 : i32}> : () -> i32
    %36 = "arith.constant"() <{value = 64 : i32}> : () -> i32
    %37 = "arith.constant"() <{value = 16 : i32}> : () -> i32
    %38 = "arith.constant"() <{value = 3 : i32}> : () -> i32
    %39 = "tt.get_program_id"() <{axis = 0 : i32}> : () -> i32
    %40 = "tt.get_program_id"() <{axis = 1 : i32}> : () -> i32
    %41 = "tt.addptr"(%arg4, %34) : (!tt.ptr<i32>, i32) -> !tt.ptr<i32>
    %42 = "tt.load"(%41) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (!tt.ptr<i32>) -> i32
    %43 = "arith.divsi"(%39, %42) : (i32, i32) -> i32
    %44 = "arith.muli"(%43, %42) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
    %45 = "arith.subi"(%39, %44) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
    %46 = "arith.muli"(%45, %32) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
    %47 = "arith.muli"(%44, %32) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
    %48 = "arith.muli"(%43, %37) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
    %49 = "arith.addi"(%48, %40) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
    %50 = "arith.muli"(%49, %42) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
    %51 = "arith.muli"(%50, %32) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
    %52 = "tt.load"(%arg4) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (!tt.ptr<i32>) -> i32
    %53 = "tt.addptr"(%arg4, %33) : (!tt.ptr<i32>, i32) -> !tt.ptr<i32>
    %54 = "tt.load"(%53) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (!tt.ptr<i32>) -> i32
    %55 = "tt.addptr"(%arg4, %35) : (!tt.ptr<i32>, i32) -> !tt.ptr<i32>
    %56 = "tt.load"(%55) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (!tt.ptr<i32>) -> i32
    %57 = "tt.addptr"(%arg4, %38) : (!tt.ptr<i32>, i32) -> !tt.ptr<i32>
    %58 = "tt.load"(%57) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (!tt.ptr<i32>) -> i32
    %59 = "arith.muli"(%56, %35) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
    %60 = "arith.shrui"(%52, %31) : (i32, i32) -> i32
    %61 = "arith.xori"(%52, %60) : (i32, i32) -> i32
    %62 = "arith.muli"(%61, %30) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
    %63 = "arith.shrui"(%62, %29) : (i32, i32) -> i32
    %64 = "arith.xori"(%62, %63) : (i32, i32) -> i32
    %65 = "arith.muli"(%64, %28) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
    %66 = "tt.bitcast"(%58) : (i32) -> f32
    %67 = "arith.addi"(%47, %46) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
    %68 = "tt.make_range"() <{end = 128 : i32, start = 0 : i32}> : () -> tensor<128xi32>
    %69 = "tt.splat"(%67) : (i32) -> tensor<128xi32>
    %70 = "arith.addi"(%69, %68) <{overflowFlags = #arith.overflow<none>}> : (tensor<128xi32>, tensor<128xi32>) -> tensor<128xi32>
    %71 = "tt.expand_dims"(%70) <{axis = 1 : i32}> : (tensor<128xi32>) -> tensor<128x1xi32>
    %72 = "tt.broadcast"(%71) : (tensor<128x1xi32>) -> tensor<128x64xi32>
    %73 = "arith.muli"(%72, %26) <{overflowFlags = #arith.overflow<none>}> : (tensor<128x64xi32>, tensor<128x64xi32>) -> tensor<128x64xi32>
    %74 = "tt.splat"(%40) : (i32) -> tensor<128x64xi32>
    %75 = "arith.muli"(%74, %25) <{overflowFlags = #arith.overflow<none>}> : (tensor<128x64xi32>, tensor<128x64xi32>) -> tensor<128x64xi32>
    %76 = "arith.addi"(%73, %75) <{overflowFlags = #arith.overflow<none>}> : (tensor<128x64xi32>, tensor<128x64xi32>) -> tensor<128x64xi32>
    %77 = "tt.make_range"() <{end = 64 : i32, start = 0 : i32}> : () -> tensor<64xi32>
    %78 = "tt.expand_dims"(%77) <{axis = 0 : i32}> : (tensor<64xi32>) -> tensor<1x64xi32>
    %79 = "tt.broadcast"(%78) : (tensor<1x64xi32>) -> tensor<128x64xi32>
    %80 = "arith.addi"(%76, %79) <{overflowFlags = #arith.overflow<none>}> : (tensor<128x64xi32>, tensor<128x64xi32>) -> tensor<128x64xi32>
    %81 = "tt.splat"(%arg0) : (!tt.ptr<bf16>) -> tensor<128x64x!tt.ptr<bf16>>
    %82 = "tt.addptr"(%81, %80) : (tensor<128x64x!tt.ptr<bf16>>, tensor<128x64xi32>) -> tensor<128x64x!tt.ptr<bf16>>
    %83 = "tt.load"(%82) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<128x64x!tt.ptr<bf16>>) -> tensor<128x64xbf16>
    %84 = "tt.splat"(%40) : (i32) -> tensor<64xi32>
    %85 = "arith.muli"(%84, %24) <{overflowFlags = #arith.overflow<none>}> : (tensor<64xi32>, tensor<64xi32>) -> tensor<64xi32>
    %86 = "arith.addi"(%85, %77) <{overflowFlags = #arith.overflow<none>}> : (tensor<64xi32>, tensor<64xi32>) -> tensor<64xi32>
    %87 = "tt.splat"(%arg1) : (!tt.ptr<f32>) -> tensor<64x!tt.ptr<f32>>
    %88 = "tt.addptr"(%87, %86) : (tensor<64x!tt.ptr<f32>>, tensor<64xi32>) -> tensor<64x!tt.ptr<f32>>
    %89 = "tt.load"(%88) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<64x!tt.ptr<f32>>) -> tensor<64xf32>
    %90 = "arith.truncf"(%89) : (tensor<64xf32>) -> tensor<64xbf16>
    %91 = "tt.expand_dims"(%90) <{axis = 0 : i32}> : (tensor<64xbf16>) -> tensor<1x64xbf16>
    %92 = "tt.broadcast"(%91) : (tensor<1x64xbf16>) -> tensor<128x64xbf16>
    %93 = "arith.addf"(%83, %92) <{fastmath = #arith.fastmath<none>}> : (tensor<128x64xbf16>, tensor<128x64xbf16>) -> tensor<128x64xbf16>
    %94 = "tt.splat"(%arg2) : (!tt.ptr<i32>) -> tensor<128x!tt.ptr<i32>>
    %95 = "tt.addptr"(%94, %70) : (tensor<128x!tt.ptr<i32>>, tensor<128xi32>) -> tensor<128x!tt.ptr<i32>>
    %96 = "tt.load"(%95) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<128x!tt.ptr<i32>>) -> tensor<128xi32>
    %97 = "arith.cmpi"(%96, %23) <{predicate = 0 : i64}> : (tensor<128xi32>, tensor<128xi32>) -> tensor<128xi1>
    %98 = "arith.select"(%97, %22, %96) : (tensor<128xi1>, tensor<128xi32>, tensor<128xi32>) -> tensor<128xi32>
    %99 = "arith.addi"(%51, %46) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
    %100 = "tt.splat"(%99) : (i32) -> tensor<128xi32>
    %101 = "arith.addi"(%100, %68) <{overflowFlags = #arith.overflow<none>}> : (tensor<128xi32>, tensor<128xi32>) -> tensor<128xi32>
    %102 = "tt.splat"(%65) : (i32) -> tensor<128xi32>
    %103 = "arith.xori"(%101, %102) : (tensor<128xi32>, tensor<128xi32>) -> tensor<128xi32>
    %104 = "arith.shrui"(%103, %21) : (tensor<128xi32>, tensor<128xi32>) -> tensor<128xi32>
    %105 = "arith.xori"(%103, %104) : (tensor<128xi32>, tensor<128xi32>) -> tensor<128xi32>
    %106 = "arith.muli"(%105, %20) <{overflowFlags = #arith.overflow<none>}> : (tensor<128xi32>, tensor<128xi32>) -> tensor<128xi32>
    %107 = "arith.shrui"(%106, %19) : (tensor<128xi32>, tensor<128xi32>) -> tensor<128xi32>
    %108 = "arith.xori"(%106, %107) : (tensor<128xi32>, tensor<128xi32>) -> tensor<128xi32>
    %109 = "arith.muli"(%108, %18) <{overflowFlags = #arith.overflow<none>}> : (tensor<128xi32>, tensor<128xi32>) -> tensor<128xi32>
    %110 = "arith.muli"(%39, %35) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
    %111 = "tt.addptr"(%arg3, %110) : (!tt.ptr<i32>, i32) -> !tt.ptr<i32>
    %112 = "tt.load"(%111) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (!tt.ptr<i32>) -> i32
    %113 = "arith.addi"(%110, %33) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
    %114 = "tt.addptr"(%arg3, %113) : (!tt.ptr<i32>, i32) -> !tt.ptr<i32>
    %115 = "tt.load"(%114) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (!tt.ptr<i32>) -> i32
    %116:3 = "scf.for"(%112, %115, %33, %16, %15, %17) ({
    ^bb0(%arg7: i32, %arg8: tensor<128x64xf32>, %arg9: tensor<128xf32>, %arg10: tensor<128xf32>):
      %138 = "arith.muli"(%arg7, %36) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
      %139 = "arith.addi"(%47, %138) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
      %140 = "tt.splat"(%139) : (i32) -> tensor<64xi32>
      %141 = "arith.addi"(%140, %77) <{overflowFlags = #arith.overflow<none>}> : (tensor<64xi32>, tensor<64xi32>) -> tensor<64xi32>
      %142 = "tt.expand_dims"(%141) <{axis = 1 : i32}> : (tensor<64xi32>) -> tensor<64x1xi32>
      %143 = "tt.broadcast"(%142) : (tensor<64x1xi32>) -> tensor<64x64xi32>
      %144 = "arith.muli"(%143, %14) <{overflowFlags = #arith.overflow<none>}> : (tensor<64x64xi32>, tensor<64x64xi32>) -> tensor<64x64xi32>
      %145 = "arith.addi"(%144, %13) <{overflowFlags = #arith.overflow<none>}> : (tensor<64x64xi32>, tensor<64x64xi32>) -> tensor<64x64xi32>
      %146 = "tt.splat"(%40) : (i32) -> tensor<64x64xi32>
      %147 = "arith.muli"(%146, %12) <{overflowFlags = #arith.overflow<none>}> : (tensor<64x64xi32>, tensor<64x64xi32>) -> tensor<64x64xi32>
      %148 = "arith.addi"(%145, %147) <{overflowFlags = #arith.overflow<none>}> : (tensor<64x64xi32>, tensor<64x64xi32>) -> tensor<64x64xi32>
      %149 = "tt.broadcast"(%78) : (tensor<1x64xi32>) -> tensor<64x64xi32>
      %150 = "arith.addi"(%148, %149) <{overflowFlags = #arith.overflow<none>}> : (tensor<64x64xi32>, tensor<64x64xi32>) -> tensor<64x64xi32>
      %151 = "tt.splat"(%arg0) : (!tt.ptr<bf16>) -> tensor<64x64x!tt.ptr<bf16>>
      %152 = "tt.addptr"(%151, %150) : (tensor<64x64x!tt.ptr<bf16>>, tensor<64x64xi32>) -> tensor<64x64x!tt.ptr<bf16>>
      %153 = "tt.load"(%152) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<64x64x!tt.ptr<bf16>>) -> tensor<64x64xbf16>
      %154 = "arith.addi"(%85, %11) <{overflowFlags = #arith.overflow<none>}> : (tensor<64xi32>, tensor<64xi32>) -> tensor<64xi32>
      %155 = "arith.addi"(%154, %77) <{overflowFlags = #arith.overflow<none>}> : (tensor<64xi32>, tensor<64xi32>) -> tensor<64xi32>
      %156 = "tt.addptr"(%87, %155) : (tensor<64x!tt.ptr<f32>>, tensor<64xi32>) -> tensor<64x!tt.ptr<f32>>
      %157 = "tt.load"(%156) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<64x!tt.ptr<f32>>) -> tensor<64xf32>
      %158 = "arith.truncf"(%157) : (tensor<64xf32>) -> tensor<64xbf16>
      %159 = "tt.expand_dims"(%158) <{axis = 0 : i32}> : (tensor<64xbf16>) -> tensor<1x64xbf16>
      %160 = "tt.broadcast"(%159) : (tensor<1x64xbf16>) -> tensor<64x64xbf16>
      %161 = "arith.addf"(%153, %160) <{fastmath = #arith.fastmath<none>}> : (tensor<64x64xbf16>, tensor<64x64xbf16>) -> tensor<64x64xbf16>
      %162 = "arith.addi"(%144, %10) <{overflowFlags = #arith.overflow<none>}> : (tensor<64x64xi32>, tensor<64x64xi32>) -> tensor<64x64xi32>
      %163 = "arith.addi"(%162, %147) <{overflowFlags = #arith.overflow<none>}> : (tensor<64x64xi32>, tensor<64x64xi32>) -> tensor<64x64xi32>
      %164 = "arith.addi"(%163, %149) <{overflowFlags = #arith.overflow<none>}> : (tensor<64x64xi32>, tensor<64x64xi32>) -> tensor<64x64xi32>
      %165 = "tt.addptr"(%151, %164) : (tensor<64x64x!tt.ptr<bf16>>, tensor<64x64xi32>) -> tensor<64x64x!tt.ptr<bf16>>
      %166 = "tt.load"(%165) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<64x64x!tt.ptr<bf16>>) -> tensor<64x64xbf16>
      %167 = "arith.addi"(%85, %9) <{overflowFlags = #arith.overflow<none>}> : (tensor<64xi32>, tensor<64xi32>) -> tensor<64xi32>
      %168 = "arith.addi"(%167, %77) <{overflowFlags = #arith.overflow<none>}> : (tensor<64xi32>, tensor<64xi32>) -> tensor<64xi32>
      %169 = "tt.addptr"(%87, %168) : (tensor<64x!tt.ptr<f32>>, tensor<64xi32>) -> tensor<64x!tt.ptr<f32>>
      %170 = "tt.load"(%169) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<64x!tt.ptr<f32>>) -> tensor<64xf32>
      %171 = "arith.truncf"(%170) : (tensor<64xf32>) -> tensor<64xbf16>
      %172 = "tt.expand_dims"(%171) <{axis = 0 : i32}> : (tensor<64xbf16>) -> tensor<1x64xbf16>
      %173 = "tt.broadcast"(%172) : (tensor<1x64xbf16>) -> tensor<64x64xbf16>
      %174 = "arith.addf"(%166, %173) <{fastmath = #arith.fastmath<none>}> : (tensor<64x64xbf16>, tensor<64x64xbf16>) -> tensor<64x64xbf16>
      %175 = "tt.trans"(%161) <{order = array<i32: 1, 0>}> : (tensor<64x64xbf16>) -> tensor<64x64xbf16>
      %176 = "tt.dot"(%93, %175, %16) <{inputPrecision = 0 : i32, maxNumImpreciseAcc = 0 : i32}> : (tensor<128x64xbf16>, tensor<64x64xbf16>, tensor<128x64xf32>) -> tensor<128x64xf32>
      %177 = "tt.splat"(%arg2) : (!tt.ptr<i32>) -> tensor<64x!tt.ptr<i32>>
      %178 = "tt.addptr"(%177, %141) : (tensor<64x!tt.ptr<i32>>, tensor<64xi32>) -> tensor<64x!tt.ptr<i32>>
      %179 = "tt.load"(%178) <{cache = 1 : i32, evict = 1 : i32, isVolatile = false, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<64x!tt.ptr<i32>>) -> tensor<64xi32>
      %180 = "arith.mulf"(%176, %8) <{fastmath = #arith.fastmath<none>}> : (tensor<128x64xf32>, tensor<128x64xf32>) -> tensor<128x64xf32>
      %181 = "tt.expand_dims"(%98) <{axis = 1 : i32}> : (tensor<128xi32>) -> tensor<128x1xi32>
      %182 = "tt.expand_dims"(%179) <{axis = 0 : i32}> : (tensor<64xi32>) -> tensor<1x64xi32>
      %183 = "tt.broadcast"(%181) : (tensor<128x1xi32>) -> tensor<128x64xi32>
      %184 = "tt.broadcast"(%182) : (tensor<1x64xi32>) -> tensor<128x64xi32>
      %185 = "arith.cmpi"(%183, %184) <{predicate = 0 : i64}> : (tensor<128x64xi32>, tensor<128x64xi32>) -> tensor<128x64xi1>
      %186 = "arith.select"(%185, %180, %7) : (tensor<128x64xi1>, tensor<128x64xf32>, tensor<128x64xf32>) -> tensor<128x64xf32>
      %187 = "tt.reduce"(%186) <{axis = 1 : i32}> ({
      ^bb0(%arg13: f32, %arg14: f32):
        %226 = "arith.maxnumf"(%arg13, %arg14) <{fastmath = #arith.fastmath<none>}> : (f32, f32) -> f32
        "tt.reduce.return"(%226) : (f32) -> ()
      }) : (tensor<128x64xf32>) -> tensor<128xf32>
      %188 = "arith.maxnumf"(%arg9, %187) <{fastmath = #arith.fastmath<none>}> : (tensor<128xf32>, tensor<128xf32>) -> tensor<128xf32>
      %189 = "arith.subf"(%arg9, %188) <{fastmath = #arith.fastmath<none>}> : (tensor<128xf32>, tensor<128xf32>) -> tensor<128xf32>
      %190 = "tt.elementwise_inline_asm"(%189) <{asm_string = "ex2.approx.ftz.f32 $0, $1;", constraints = "=r,r", packed_element = 1 : i32, pure = true}> : (tensor<128xf32>) -> tensor<128xf32>
      %191 = "tt.expand_dims"(%188) <{axis = 1 : i32}> : (tensor<128xf32>) -> tensor<128x1xf32>
      %192 = "tt.broadcast"(%191) : (tensor<128x1xf32>) -> tensor<128x64xf32>
      %193 = "arith.subf"(%186, %192) <{fastmath = #arith.fastmath<none>}> : (tensor<128x64xf32>, tensor<128x64xf32>) -> tensor<128x64xf32>
      %194 = "tt.elementwise_inline_asm"(%193) <{asm_string = "ex2.approx.ftz.f32 $0, $1;", constraints = "=r,r", packed_element = 1 : i32, pure = true}> : (tensor<128x64xf32>) -> tensor<128x64xf32>
      %195 = "arith.mulf"(%arg10, %190) <{fastmath = #arith.fastmath<none>}> : (tensor<128xf32>, tensor<128xf32>) -> tensor<128xf32>
      %196 = "tt.reduce"(%194) <{axis = 1 : i32}> ({
      ^bb0(%arg11: f32, %arg12: f32):
        %225 = "arith.addf"(%arg11, %arg12) <{fastmath = #arith.fastmath<none>}> : (f32, f32) -> f32
        "tt.reduce.return"(%225) : (f32) -> ()
      }) : (tensor<128x64xf32>) -> tensor<128xf32>
      %197 = "arith.addf"(%195, %196) <{fastmath = #arith.fastmath<none>}> : (tensor<128xf32>, tensor<128xf32>) -> tensor<128xf32>
      %198 = "tt.splat"(%138) : (i32) -> tensor<64xi32>
      %199 = "arith.addi"(%198, %77) <{overflowFlags = #arith.overflow<none>}> : (tensor<64xi32>, tensor<64xi32>) -> tensor<64xi32>
      %200 = "arith.muli"(%199, %6) <{overflowFlags = #arith.overflow<none>}> : (tensor<64xi32>, tensor<64xi32>) -> tensor<64xi32>
      %201 = "tt.splat"(%54) : (i32) -> tensor<64xi32>
      %202 = "arith.addi"(%200, %201) <{overflowFlags = #arith.overflow<none>}> : (tensor<64xi32>, tensor<64xi32>) -> tensor<64xi32>
      %203 = "tt.expand_dims"(%109) <{axis = 1 : i32}> : (tensor<128xi32>) -> tensor<128x1xi32>
      %204 = "tt.expand_dims"(%202) <{axis = 0 : i32}> : (tensor<64xi32>) -> tensor<1x64xi32>
      %205 = "tt.broadcast"(%203) : (tensor<128x1xi32>) -> tensor<128x64xi32>
      %206 = "tt.broadcast"(%204) : (tensor<1x64xi32>) -> tensor<128x64xi32>
      %207 = "arith.xori"(%205, %206) : (tensor<128x64xi32>, tensor<128x64xi32>) -> tensor<128x64xi32>
      %208 = "arith.shrui"(%207, %5) : (tensor<128x64xi32>, tensor<128x64xi32>) -> tensor<128x64xi32>
      %209 = "arith.xori"(%207, %208) : (tensor<128x64xi32>, tensor<128x64xi32>) -> tensor<128x64xi32>
      %210 = "arith.muli"(%209, %4) <{overflowFlags = #arith.overflow<none>}> : (tensor<128x64xi32>, tensor<128x64xi32>) -> tensor<128x64xi32>
      %211 = "arith.shrui"(%210, %3) : (tensor<128x64xi32>, tensor<128x64xi32>) -> tensor<128x64xi32>
      %212 = "arith.xori"(%210, %211) : (tensor<128x64xi32>, tensor<128x64xi32>) -> tensor<128x64xi32>
      %213 = "arith.muli"(%212, %2) <{overflowFlags = #arith.overflow<none>}> : (tensor<128x64xi32>, tensor<128x64xi32>) -> tensor<128x64xi32>
      %214 = "arith.shrui"(%213, %1) : (tensor<128x64xi32>, tensor<128x64xi32>) -> tensor<128x64xi32>
      %215 = "arith.xori"(%213, %214) : (tensor<128x64xi32>, tensor<128x64xi32>) -> tensor<128x64xi32>
      %216 = "tt.splat"(%59) : (i32) -> tensor<128x64xi32>
      %217 = "arith.cmpi"(%215, %216) <{predicate = 9 : i64}> : (tensor<128x64xi32>, tensor<128x64xi32>) -> tensor<128x64xi1>
      %218 = "arith.select"(%217, %194, %16) : (tensor<128x64xi1>, tensor<128x64xf32>, tensor<128x64xf32>) -> tensor<128x64xf32>
      %219 = "arith.truncf"(%218) : (tensor<128x64xf32>) -> tensor<128x64xbf16>
      %220 = "tt.expand_dims"(%190) <{axis = 1 : i32}> : (tensor<128xf32>) -> tensor<128x1xf32>
      %221 = "tt.broadcast"(%220) : (tensor<128x1xf32>) -> tensor<128x64xf32>
      %222 = "arith.mulf"(%arg8, %221) <{fastmath = #arith.fastmath<none>}> : (tensor<128x64xf32>, tensor<128x64xf32>) -> tensor<128x64xf32>
      %223 = "tt.dot"(%219, %174, %16) <{inputPrecision = 0 : i32, maxNumImpreciseAcc = 0 : i32}> : (tensor<128x64xbf16>, tensor<64x64xbf16>, tensor<128x64xf32>) -> tensor<128x64xf32>
      %224 = "arith.addf"(%222, %223) <{fastmath = #arith.fastmath<none>}> : (tensor<128x64xf32>, tensor<128x64xf32>) -> tensor<128x64xf32>
      "scf.yield"(%224, %188, %197) : (tensor<128x64xf32>, tensor<128xf32>, tensor<128xf32>) -> ()
    }) : (i32, i32, i32, tensor<128x64xf32>, tensor<128xf32>, tensor<128xf32>) -> (tensor<128x64xf32>, tensor<128xf32>, tensor<128xf32>)
    %117 = "arith.cmpf"(%116#2, %17) <{fastmath = #arith.fastmath<none>, predicate = 1 : i64}> : (tensor<128xf32>, tensor<128xf32>) -> tensor<128xi1>
    %118 = "tt.splat"(%66) : (f32) -> tensor<128xf32>
    %119 = "arith.divf"(%118, %116#2) <{fastmath = #arith.fastmath<none>}> : (tensor<128xf32>, tensor<128xf32>) -> tensor<128xf32>
    %120 = "arith.select"(%117, %17, %119) : (tensor<128xi1>, tensor<128xf32>, tensor<128xf32>) -> tensor<128xf32>
    %121 = "tt.expand_dims"(%120) <{axis = 1 : i32}> : (tensor<128xf32>) -> tensor<128x1xf32>
    %122 = "tt.broadcast"(%121) : (tensor<128x1xf32>) -> tensor<128x64xf32>
    %123 = "arith.mulf"(%116#0, %122) <{fastmath = #arith.fastmath<none>}> : (tensor<128x64xf32>, tensor<128x64xf32>) -> tensor<128x64xf32>
    %124 = "tt.extern_elementwise"(%116#2) <{libname = "", libpath = "", pure = true, symbol = "__nv_logf"}> : (tensor<128xf32>) -> tensor<128xf32>
    %125 = "tt.extern_elementwise"(%27) <{libname = "", libpath = "", pure = true, symbol = "__nv_logf"}> : (f32) -> f32
    %126 = "tt.splat"(%125) : (f32) -> tensor<128xf32>
    %127 = "arith.divf"(%124, %126) <{fastmath = #arith.fastmath<none>}> : (tensor<128xf32>, tensor<128xf32>) -> tensor<128xf32>
    %128 = "arith.addf"(%116#1, %127) <{fastmath = #arith.fastmath<none>}> : (tensor<128xf32>, tensor<128xf32>) -> tensor<128xf32>
    %129 = "arith.select"(%117, %17, %128) : (tensor<128xi1>, tensor<128xf32>, tensor<128xf32>) -> tensor<128xf32>
    %130 = "arith.truncf"(%123) : (tensor<128x64xf32>) -> tensor<128x64xbf16>
    %131 = "arith.muli"(%72, %0) <{overflowFlags = #arith.overflow<none>}> : (tensor<128x64xi32>, tensor<128x64xi32>) -> tensor<128x64xi32>
    %132 = "arith.addi"(%131, %75) <{overflowFlags = #arith.overflow<none>}> : (tensor<128x64xi32>, tensor<128x64xi32>) -> tensor<128x64xi32>
    %133 = "arith.addi"(%132, %79) <{overflowFlags = #arith.overflow<none>}> : (tensor<128x64xi32>, tensor<128x64xi32>) -> tensor<128x64xi32>
    %134 = "tt.splat"(%arg5) : (!tt.ptr<bf16>) -> tensor<128x64x!tt.ptr<bf16>>
    %135 = "tt.addptr"(%134, %133) : (tensor<128x64x!tt.ptr<bf16>>, tensor<128x64xi32>) -> tensor<128x64x!tt.ptr<bf16>>
    "tt.store"(%135, %130) <{cache = 1 : i32, evict = 1 : i32}> : (tensor<128x64x!tt.ptr<bf16>>, tensor<128x64xbf16>) -> ()
    %136 = "tt.splat"(%arg6) : (!tt.ptr<f32>) -> tensor<128x!tt.ptr<f32>>
    %137 = "tt.addptr"(%136, %101) : (tensor<128x!tt.ptr<f32>>, tensor<128xi32>) -> tensor<128x!tt.ptr<f32>>
    "tt.store"(%137, %129) <{cache = 1 : i32, evict = 1 : i32}> : (tensor<128x!tt.ptr<f32>>, tensor<128xf32>) -> ()
    "tt.return"() : () -> ()
  }) : () -> ()
}) : () -> ()
