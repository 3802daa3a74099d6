// Body of the kernel behind `project`: out = gate(norm(x) @ weight.T + bias) + residual, see
// kernels.py. An input that is not given has one element and
// one axis.
//
// A block computes 16 outputs (of gate and of up when GATED) for TILES times 8 tokens; its warps
// split the inputs and are added up at the end, always in one order, so a token's result does not
// depend on what is computed beside it, nor on TILES. Blocks of the same outputs follow each other:
// the first one brings their weights into the L2 cache, the others find them there.
// Tensor cores want the inputs of a lane in two pairs 8 apart. The sum does not care which inputs
// those are, so a lane takes 8 neighbours, one 16-byte load, of the weights and of x alike. A warp
// asks for DEPTH such loads of every row before it uses the first: that many bytes on their way are
// what reading memory at full speed takes. More tiles leave registers for fewer of them.
constexpr int WARPS = 8;
constexpr int OUTPUTS = 16;
constexpr int TOKENS = 8;
constexpr int SIDES = GATED ? 2 : 1;
constexpr int DEPTH = TILES * SIDES >= 4 ? 2 : 4 / SIDES;
__shared__ float sums[WARPS][SIDES][OUTPUTS][TILES * TOKENS];
__shared__ float squares[WARPS][TILES * TOKENS];

const int num_tokens = x_shape[0];
const int num_inputs = x_shape[1];
const int num_outputs = weight_shape[0] / SIDES;
const bool has_norm = gain_shape[0] > 1;
const bool has_bias = bias_shape[0] > 1;
const bool has_residual = residual_ndim > 1;
const int lane = threadIdx.x & 31;
const int warp = threadIdx.x >> 5;
const int row = lane >> 2;
const int quad = lane & 3;
const int first_token = blockIdx.x * TILES * TOKENS;
const int first_output = blockIdx.y * OUTPUTS;

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
  const int m = min(first_token + tile * TOKENS + row, num_tokens - 1);
  token[tile] = x + (size_t)m * num_inputs + quad * 8;
}

float sum[TILES][SIDES][4] = {};
float square[TILES] = {};
const int span = (num_inputs / 32 + WARPS - 1) / WARPS * 32;
const int end = min((warp + 1) * span, num_inputs);
for (int first = warp * span; first < end; first += 32 * DEPTH) {
  uint4 a_low[DEPTH][SIDES], a_high[DEPTH][SIDES], b[DEPTH][TILES], gains[DEPTH];
#pragma unroll
  for (int step = 0; step < DEPTH; ++step) {
    const int k = min(first + step * 32, end - 32);
#pragma unroll
    for (int side = 0; side < SIDES; ++side) {
      a_low[step][side] = __ldg(reinterpret_cast<const uint4*>(low[side] + k));
      a_high[step][side] = __ldg(reinterpret_cast<const uint4*>(high[side] + k));
    }
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile)
      b[step][tile] = __ldg(reinterpret_cast<const uint4*>(token[tile] + k));
    if (has_norm) gains[step] = __ldg(reinterpret_cast<const uint4*>(gain + k + quad * 8));
  }
#pragma unroll
  for (int step = 0; step < DEPTH; ++step) {
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
      uint4 inputs = b[step][tile];
      if (first + step * 32 >= end) inputs = make_uint4(0, 0, 0, 0);
      if (has_norm) {
        float values[8], scales[8];
        unpack8<T>(inputs, values);
        unpack8<T>(gains[step], scales);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          square[tile] += values[i] * values[i];
          values[i] *= scales[i];
        }
        inputs = pack8<T>(values);
      }
#pragma unroll
      for (int side = 0; side < SIDES; ++side) {
        const uint4 l = a_low[step][side], h = a_high[step][side];
        tile_product<T>(sum[tile][side], l.x, h.x, l.y, h.y, inputs.x, inputs.y);
        tile_product<T>(sum[tile][side], l.z, h.z, l.w, h.w, inputs.z, inputs.w);
      }
    }
  }
}

#pragma unroll
for (int tile = 0; tile < TILES; ++tile) {
  const int column = tile * TOKENS + quad * 2;
#pragma unroll
  for (int side = 0; side < SIDES; ++side) {
    sums[warp][side][row][column] = sum[tile][side][0];
    sums[warp][side][row][column + 1] = sum[tile][side][1];
    sums[warp][side][row + 8][column] = sum[tile][side][2];
    sums[warp][side][row + 8][column + 1] = sum[tile][side][3];
  }
  square[tile] += __shfl_xor_sync(0xffffffffu, square[tile], 1);
  square[tile] += __shfl_xor_sync(0xffffffffu, square[tile], 2);
  if (quad == 0) squares[warp][tile * TOKENS + row] = square[tile];
}
__syncthreads();

for (int at = threadIdx.x; at < OUTPUTS * TILES * TOKENS; at += WARPS * 32) {
  const int output = at % OUTPUTS, column = at / OUTPUTS;
  const int n = first_output + output, m = first_token + column;
  if (n < num_outputs && m < num_tokens) {
    float value[SIDES] = {};
    float total = 0;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
#pragma unroll
      for (int side = 0; side < SIDES; ++side) value[side] += sums[w][side][output][column];
      total += squares[w][column];
    }
    const float rate = has_norm ? rsqrtf(total / num_inputs + __int_as_float(EPS_BITS)) : 1.0f;
#pragma unroll
    for (int side = 0; side < SIDES; ++side) {
      value[side] *= rate;
      if (has_bias) value[side] += static_cast<float>(bias[side * num_outputs + n]);
    }
    float result = value[0];
    if constexpr (GATED) result = value[0] / (1.0f + __expf(-value[0])) * value[SIDES - 1];
    const size_t place = (size_t)m * num_outputs + n;
    if (has_residual) result += static_cast<float>(residual[place]);
    out[place] = static_cast<T>(result);
  }
}
