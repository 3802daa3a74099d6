// Body of the kernel behind `project`: out = gate(norm(x) @ weight.T + bias) + residual, see
// kernels.py. An input that is not given has one element and
// one axis.
//
// A block computes 16 outputs (of gate and of up when GATED) for 8 tokens; its warps split the
// inputs and are added up at the end, always in one order, so a token's result does not depend on
// what is computed beside it. Tensor cores want the inputs of a lane in two pairs 8 apart. The sum
// does not care which inputs those are, so a lane takes 8 neighbours, one 16-byte load, of the
// weights and of x alike. A warp asks for DEPTH such loads of every row before it uses the first:
// that many bytes on their way are what reading memory at full speed takes.
constexpr int WARPS = 8;
constexpr int OUTPUTS = 16;
constexpr int TOKENS = 8;
constexpr int SIDES = GATED ? 2 : 1;
constexpr int DEPTH = GATED ? 2 : 4;
__shared__ float sums[WARPS][SIDES][OUTPUTS][TOKENS];
__shared__ float squares[WARPS][TOKENS];

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
const T* token = x + (size_t)min(first_token + row, num_tokens - 1) * num_inputs + quad * 8;

float sum[SIDES][4] = {};
float square = 0;
const int span = (num_inputs / 32 + WARPS - 1) / WARPS * 32;
const int end = min((warp + 1) * span, num_inputs);
for (int first = warp * span; first < end; first += 32 * DEPTH) {
  uint4 a_low[DEPTH][SIDES], a_high[DEPTH][SIDES], b[DEPTH], gains[DEPTH];
#pragma unroll
  for (int step = 0; step < DEPTH; ++step) {
    const int k = min(first + step * 32, end - 32);
#pragma unroll
    for (int side = 0; side < SIDES; ++side) {
      a_low[step][side] = __ldg(reinterpret_cast<const uint4*>(low[side] + k));
      a_high[step][side] = __ldg(reinterpret_cast<const uint4*>(high[side] + k));
    }
    b[step] = __ldg(reinterpret_cast<const uint4*>(token + k));
    if (has_norm) gains[step] = __ldg(reinterpret_cast<const uint4*>(gain + k + quad * 8));
  }
#pragma unroll
  for (int step = 0; step < DEPTH; ++step) {
    if (first + step * 32 >= end) b[step] = make_uint4(0, 0, 0, 0);
    if (has_norm) {
      float values[8], scales[8];
      unpack8<T>(b[step], values);
      unpack8<T>(gains[step], scales);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        square += values[i] * values[i];
        values[i] *= scales[i];
      }
      b[step] = pack8<T>(values);
    }
#pragma unroll
    for (int side = 0; side < SIDES; ++side) {
      const uint4 l = a_low[step][side], h = a_high[step][side];
      tile_product<T>(sum[side], l.x, h.x, l.y, h.y, b[step].x, b[step].y);
      tile_product<T>(sum[side], l.z, h.z, l.w, h.w, b[step].z, b[step].w);
    }
  }
}

#pragma unroll
for (int side = 0; side < SIDES; ++side) {
  sums[warp][side][row][quad * 2] = sum[side][0];
  sums[warp][side][row][quad * 2 + 1] = sum[side][1];
  sums[warp][side][row + 8][quad * 2] = sum[side][2];
  sums[warp][side][row + 8][quad * 2 + 1] = sum[side][3];
}
square += __shfl_xor_sync(0xffffffffu, square, 1);
square += __shfl_xor_sync(0xffffffffu, square, 2);
if (quad == 0) squares[warp][row] = square;
__syncthreads();

if (threadIdx.x < OUTPUTS * TOKENS) {
  const int output = threadIdx.x % OUTPUTS, column = threadIdx.x / OUTPUTS;
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
    const size_t at = (size_t)m * num_outputs + n;
    if (has_residual) result += static_cast<float>(residual[at]);
    out[at] = static_cast<T>(result);
  }
}
