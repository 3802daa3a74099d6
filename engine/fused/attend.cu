// Body of the kernel behind `attend`: norm and rotate q and k, append k and v, attend. See kernels.py.
//
// A block answers CHUNK queries that share a key head of one row. Eight lanes hold one vector, so a
// warp looks at four keys at a time, and loads AHEAD times as many before it looks. The step's own
// keys and values come from shared memory, never from the cache, where only the first chunk writes
// them: no block waits for another.
// Which lanes see a key depends on its position alone, so a query's result does not depend on the
// width of the step or on the rows beside it.
constexpr int WARPS = 8;
constexpr int GROUPS = WARPS * 4;
constexpr int MOST = 16;
constexpr int AHEAD = 256 / D;
constexpr int E = D / 8;
constexpr int LOADS = E / 8;
constexpr float NEVER = -1e30f;
__shared__ float query[CHUNK][D];
__shared__ uint4 fresh_keys[MOST * D / 8];
__shared__ uint4 fresh_values[MOST * D / 8];
__shared__ float partial[WARPS][CHUNK][D];
__shared__ float highest[WARPS][CHUNK];
__shared__ float weights[WARPS][CHUNK];

const int lane = threadIdx.x & 31;
const int warp = threadIdx.x >> 5;
const int part = lane & 7;
const int group = threadIdx.x >> 3;
const unsigned mates = 0xffu << (lane & 24);
const int first_query = blockIdx.x * CHUNK;
const int head = blockIdx.y;
const int row = blockIdx.z;
const int start = starts[row];
const int width = qkv_shape[0] / starts_shape[0];
const int end = start + width;
const bool has_norm = query_gain_shape[0] > 1;
const int stride = qkv_shape[1];
const size_t room = (size_t)(slots[row] * HEADS + head) * keys_shape[2] * D;
T* cached_keys = const_cast<T*>(keys) + room;
T* cached_values = const_cast<T*>(values) + room;

for (int vector = group; vector < CHUNK + width; vector += GROUPS) {
  const bool is_query = vector < CHUNK;
  const int index = first_query + vector;
  const int token = is_query ? index / GROUP : vector - CHUNK;
  if (token >= width) continue;
  const int from = is_query ? head * GROUP + index % GROUP : HEADS * GROUP + head;
  const size_t at = row * width + token;
  float x[E];
#pragma unroll
  for (int i = 0; i < LOADS; ++i) {
    const T* source = qkv + at * stride + from * D + part * E + i * 8;
    unpack8<T>(*reinterpret_cast<const uint4*>(source), x + i * 8);
  }
  if (has_norm) {
    float total = 0;
#pragma unroll
    for (int i = 0; i < E; ++i) total += x[i] * x[i];
    total += __shfl_xor_sync(mates, total, 1);
    total += __shfl_xor_sync(mates, total, 2);
    total += __shfl_xor_sync(mates, total, 4);
    const float rate = rsqrtf(total / D + __int_as_float(EPS_BITS));
    const T* gain = is_query ? query_gain : key_gain;
#pragma unroll
    for (int i = 0; i < E; ++i) {
      x[i] = static_cast<float>(
          static_cast<T>(x[i] * rate * static_cast<float>(gain[part * E + i])));
    }
  }
  float turned[E];
#pragma unroll
  for (int i = 0; i < E; ++i) {
    const float other = __shfl_xor_sync(mates, x[i], 4);
    const size_t angle = at * (D / 2) + (part & 3) * E + i;
    const float sine = part < 4 ? -sines[angle] : sines[angle];
    turned[i] = x[i] * cosines[angle] + other * sine;
  }
  if (is_query) {
    const float scale = __int_as_float(SCALE_BITS) * 1.44269504f;
#pragma unroll
    for (int i = 0; i < E; ++i) {
      query[vector][part * E + i] = scale * static_cast<float>(static_cast<T>(turned[i]));
    }
    continue;
  }
#pragma unroll
  for (int i = 0; i < LOADS; ++i) {
    const uint4 key = pack8<T>(turned + i * 8);
    const T* source = qkv + at * stride + (HEADS * (GROUP + 1) + head) * D + part * E + i * 8;
    const uint4 value = *reinterpret_cast<const uint4*>(source);
    fresh_keys[token * (D / 8) + part * LOADS + i] = key;
    fresh_values[token * (D / 8) + part * LOADS + i] = value;
    if (blockIdx.x == 0) {
      const size_t to = (size_t)(start + token) * D + part * E + i * 8;
      *reinterpret_cast<uint4*>(cached_keys + to) = key;
      *reinterpret_cast<uint4*>(cached_values + to) = value;
    }
  }
}
__syncthreads();

float q[CHUNK][E], answer[CHUNK][E] = {}, high[CHUNK], weight[CHUNK] = {};
#pragma unroll
for (int c = 0; c < CHUNK; ++c) {
  high[c] = NEVER;
#pragma unroll
  for (int i = 0; i < E; ++i) q[c][i] = query[c][part * E + i];
}
for (int first = group; first < end; first += GROUPS * AHEAD) {
  uint4 key_bits[AHEAD][LOADS], value_bits[AHEAD][LOADS];
#pragma unroll
  for (int ahead = 0; ahead < AHEAD; ++ahead) {
    const int position = min(first + ahead * GROUPS, end - 1);
    const bool is_fresh = position >= start;
    const size_t from = (size_t)(is_fresh ? position - start : position) * (D / 8) + part * LOADS;
    const uint4* key_from = is_fresh ? fresh_keys : reinterpret_cast<uint4*>(cached_keys);
    const uint4* value_from = is_fresh ? fresh_values : reinterpret_cast<uint4*>(cached_values);
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
      key_bits[ahead][i] = key_from[from + i];
      value_bits[ahead][i] = value_from[from + i];
    }
  }
#pragma unroll
  for (int ahead = 0; ahead < AHEAD; ++ahead) {
    const int position = first + ahead * GROUPS;
    if (position >= end) break;
    float key[E], value[E];
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
      unpack8<T>(key_bits[ahead][i], key + i * 8);
      unpack8<T>(value_bits[ahead][i], value + i * 8);
    }
#pragma unroll
    for (int c = 0; c < CHUNK; ++c) {
      float score = 0;
#pragma unroll
      for (int i = 0; i < E; ++i) score += q[c][i] * key[i];
      score += __shfl_xor_sync(mates, score, 1);
      score += __shfl_xor_sync(mates, score, 2);
      score += __shfl_xor_sync(mates, score, 4);
      if (position > start + (first_query + c) / GROUP) score = 2 * NEVER;
      const float top = fmaxf(high[c], score);
      const float fade = exp2f(high[c] - top);
      const float share = exp2f(score - top);
      high[c] = top;
      weight[c] = weight[c] * fade + share;
#pragma unroll
      for (int i = 0; i < E; ++i) answer[c][i] = answer[c][i] * fade + share * value[i];
    }
  }
}
__syncwarp();
#pragma unroll
for (int c = 0; c < CHUNK; ++c) {
  float top = fmaxf(high[c], __shfl_xor_sync(0xffffffffu, high[c], 8));
  top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 16));
  const float fade = exp2f(high[c] - top);
  weight[c] *= fade;
  weight[c] += __shfl_xor_sync(0xffffffffu, weight[c], 8);
  weight[c] += __shfl_xor_sync(0xffffffffu, weight[c], 16);
#pragma unroll
  for (int i = 0; i < E; ++i) {
    answer[c][i] *= fade;
    answer[c][i] += __shfl_xor_sync(0xffffffffu, answer[c][i], 8);
    answer[c][i] += __shfl_xor_sync(0xffffffffu, answer[c][i], 16);
    if (lane < 8) partial[warp][c][part * E + i] = answer[c][i];
  }
  if (lane == 0) {
    highest[warp][c] = top;
    weights[warp][c] = weight[c];
  }
}
__syncthreads();

for (int i = threadIdx.x; i < CHUNK * D; i += WARPS * 32) {
  const int c = i / D, index = first_query + c, token = index / GROUP;
  if (token >= width) continue;
  float top = highest[0][c];
  for (int w = 1; w < WARPS; ++w) top = fmaxf(top, highest[w][c]);
  float total = 0, sum = 0;
  for (int w = 0; w < WARPS; ++w) {
    const float fade = exp2f(highest[w][c] - top);
    total += fade * weights[w][c];
    sum += fade * partial[w][c][i % D];
  }
  const size_t at = ((size_t)row * width + token) * HEADS * GROUP + head * GROUP + index % GROUP;
  out[at * D + i % D] = static_cast<T>(sum / total);
}
