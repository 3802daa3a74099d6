// Body of the kernel behind `project`: out = epilogue(norm(x) @ weight.T), see kernels.py.
//
// A block computes 16 outputs (32 when GATED) for 8 * TILES tokens; its warps split the inputs and
// are added up at the end, always in one order, so a token's result does not depend on how many
// others are computed beside it. Tensor cores want the inputs of a lane in two pairs 8 apart. The
// sum does not care which inputs those are, so a lane takes 8 neighbours, one 16-byte load, of the
// weights and of x alike.
constexpr int WARPS = 8;
constexpr int OUTPUTS = 16;
constexpr int TOKENS = 8 * TILES;
constexpr int SIDES = GATED ? 2 : 1;
__shared__ float sums[WARPS][SIDES][OUTPUTS][TOKENS];
__shared__ float squares[WARPS][TOKENS];

const int num_tokens = x_shape[0];
const int num_inputs = x_shape[1];
const int num_outputs = weight_shape[0] / SIDES;
const int lane = threadIdx.x & 31;
const int warp = threadIdx.x >> 5;
const int row = lane >> 2;
const int quad = lane & 3;
const int first_output = blockIdx.x * OUTPUTS;
const int first_token = blockIdx.y * TOKENS;

const T* low[SIDES];
const T* high[SIDES];
#pragma unroll
for (int side = 0; side < SIDES; ++side) {
  const T* from = weight + (size_t)side * num_outputs * num_inputs + quad * 8;
  low[side] = from + (size_t)min(first_output + row, num_outputs - 1) * num_inputs;
  high[side] = from + (size_t)min(first_output + row + 8, num_outputs - 1) * num_inputs;
}
const T* token[TILES];
#pragma unroll
for (int tile = 0; tile < TILES; ++tile) {
  const int index = min(first_token + tile * 8 + row, num_tokens - 1);
  token[tile] = x + (size_t)index * num_inputs + quad * 8;
}

float sum[SIDES][TILES][4] = {};
float square[TILES] = {};
#pragma unroll 4
for (int k = warp * 32; k < num_inputs; k += WARPS * 32) {
  uint4 a_low[SIDES], a_high[SIDES];
#pragma unroll
  for (int side = 0; side < SIDES; ++side) {
    a_low[side] = __ldg(reinterpret_cast<const uint4*>(low[side] + k));
    a_high[side] = __ldg(reinterpret_cast<const uint4*>(high[side] + k));
  }
  float scale[8];
  if constexpr (NORM) {
    unpack8<T>(__ldg(reinterpret_cast<const uint4*>(gain + k + quad * 8)), scale);
  }
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile) {
    uint4 b = __ldg(reinterpret_cast<const uint4*>(token[tile] + k));
    if constexpr (NORM) {
      float values[8];
      unpack8<T>(b, values);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        square[tile] += values[i] * values[i];
        values[i] *= scale[i];
      }
      b = pack8<T>(values);
    }
#pragma unroll
    for (int side = 0; side < SIDES; ++side) {
      const uint4 l = a_low[side], h = a_high[side];
      tile_product<T>(sum[side][tile], l.x, h.x, l.y, h.y, b.x, b.y);
      tile_product<T>(sum[side][tile], l.z, h.z, l.w, h.w, b.z, b.w);
    }
  }
}

#pragma unroll
for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
  for (int side = 0; side < SIDES; ++side) {
    const int column = tile * 8 + quad * 2;
    sums[warp][side][row][column] = sum[side][tile][0];
    sums[warp][side][row][column + 1] = sum[side][tile][1];
    sums[warp][side][row + 8][column] = sum[side][tile][2];
    sums[warp][side][row + 8][column + 1] = sum[side][tile][3];
  }
  if constexpr (NORM) {
    square[tile] += __shfl_xor_sync(0xffffffffu, square[tile], 1);
    square[tile] += __shfl_xor_sync(0xffffffffu, square[tile], 2);
    if (quad == 0) squares[warp][tile * 8 + row] = square[tile];
  }
}
__syncthreads();

for (int i = threadIdx.x; i < OUTPUTS * TOKENS; i += WARPS * 32) {
  const int output = i % OUTPUTS, column = i / OUTPUTS;
  const int n = first_output + output, m = first_token + column;
  if (n >= num_outputs || m >= num_tokens) continue;
  float value[SIDES] = {};
  float total = 0;
#pragma unroll
  for (int w = 0; w < WARPS; ++w) {
#pragma unroll
    for (int side = 0; side < SIDES; ++side) value[side] += sums[w][side][output][column];
    if constexpr (NORM) total += squares[w][column];
  }
  const float rate = NORM ? rsqrtf(total / num_inputs + __int_as_float(EPS_BITS)) : 1.0f;
#pragma unroll
  for (int side = 0; side < SIDES; ++side) {
    value[side] *= rate;
    if constexpr (BIAS) value[side] += static_cast<float>(bias[side * num_outputs + n]);
  }
  float result = value[0];
  if constexpr (GATED) result = value[0] / (1.0f + __expf(-value[0])) * value[SIDES - 1];
  if constexpr (RESIDUAL) {
    result += static_cast<float>(residual[(size_t)m * num_outputs + n]);
  }
  out[(size_t)m * num_outputs + n] = static_cast<T>(result);
}
