// Two 16-bit floats in one register, and the tensor-core product of a 16 x 16 and a 16 x 8 tile.
// Put in front of every kernel of this folder.

template <typename T>
struct Pair;

template <>
struct Pair<__nv_bfloat16> {
  using type = __nv_bfloat162;
  static __device__ __forceinline__ float2 open(type pair) { return __bfloat1622float2(pair); }
  static __device__ __forceinline__ type close(float2 v) { return __float22bfloat162_rn(v); }
};

template <>
struct Pair<__half> {
  using type = __half2;
  static __device__ __forceinline__ float2 open(type pair) { return __half22float2(pair); }
  static __device__ __forceinline__ type close(float2 v) { return __float22half2_rn(v); }
};

template <typename T>
__device__ __forceinline__ float2 unpack(unsigned bits) {
  return Pair<T>::open(*reinterpret_cast<typename Pair<T>::type*>(&bits));
}

template <typename T>
__device__ __forceinline__ unsigned pack(float2 v) {
  typename Pair<T>::type pair = Pair<T>::close(v);
  return *reinterpret_cast<unsigned*>(&pair);
}

template <typename T>
__device__ __forceinline__ void unpack8(uint4 bits, float* to) {
  const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 v = unpack<T>(words[i]);
    to[2 * i] = v.x;
    to[2 * i + 1] = v.y;
  }
}

template <typename T>
__device__ __forceinline__ uint4 pack8(const float* from) {
  return make_uint4(
      pack<T>(make_float2(from[0], from[1])), pack<T>(make_float2(from[2], from[3])),
      pack<T>(make_float2(from[4], from[5])), pack<T>(make_float2(from[6], from[7])));
}

#ifndef FM_NO_TENSOR_CORES
template <typename T>
__device__ __forceinline__ void tile_product(
    float* sum, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1);

template <>
__device__ __forceinline__ void tile_product<__nv_bfloat16>(
    float* sum, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  asm(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void tile_product<__half>(
    float* sum, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  asm(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
#endif
