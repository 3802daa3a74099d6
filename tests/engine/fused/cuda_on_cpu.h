// Enough of CUDA to run one kernel body on a CPU: the threads of a block are fibres that take turns
// between collective calls, so lanes that make the same calls stay in step.
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#define __device__
#define __forceinline__ inline
#define __shared__ static
using std::max;
using std::min;

constexpr int THREADS = 256;
static struct { int x, y, z; } threadIdx, blockIdx;
static ucontext_t scheduler, fibres[THREADS];
static std::vector<char> stacks[THREADS];
static bool done[THREADS];
static int current;

struct float2 { float x, y; };
struct uint4 { unsigned x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

template <typename To, typename From>
To bits_of(From from) {
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

struct __nv_bfloat16 {
  uint16_t bits;
  __nv_bfloat16() = default;
  explicit __nv_bfloat16(float value) {
    const uint32_t word = bits_of<uint32_t>(value);
    bits = (word + 0x7fff + ((word >> 16) & 1)) >> 16;
  }
  explicit operator float() const { return bits_of<float>(uint32_t(bits) << 16); }
};
struct __nv_bfloat162 { __nv_bfloat16 x, y; };
inline float2 __bfloat1622float2(__nv_bfloat162 v) { return {float(v.x), float(v.y)}; }
inline __nv_bfloat162 __float22bfloat162_rn(float2 v) {
  return {__nv_bfloat16(v.x), __nv_bfloat16(v.y)};
}
struct __half {};
struct __half2 {};
inline float2 __half22float2(__half2) { std::abort(); }
inline __half2 __float22half2_rn(float2) { std::abort(); }

template <typename V>
V __ldg(const V* from) { return *from; }
inline float __int_as_float(int word) { return bits_of<float>(word); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }

inline void take_turns() {
  const int me = current;
  swapcontext(&fibres[me], &scheduler);
  current = threadIdx.x = me;
}

static float offered[THREADS];
inline float __shfl_xor_sync(unsigned mask, float value, int apart) {
  const int me = current;
  if (!(mask >> (me & 31) & 1)) std::abort();
  offered[me] = value;
  take_turns();
  const float answer = offered[me ^ apart];
  take_turns();
  return answer;
}

struct Barrier { int arrived, passed; };
inline void wait_at(Barrier& barrier, int members) {
  const int before = barrier.passed;
  if (++barrier.arrived == members) {
    barrier.arrived = 0;
    ++barrier.passed;
    take_turns();
  }
  while (barrier.passed == before) take_turns();
}
static Barrier block_barrier, warp_barriers[THREADS / 32];
inline void __syncthreads() { wait_at(block_barrier, THREADS); }
inline void __syncwarp() { wait_at(warp_barriers[current / 32], 32); }

template <typename V>
float2 unpack(unsigned bits);
static unsigned fragments[THREADS][6];

// The layout of mma.m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16").
template <typename V>
void tile_product(
    float* sum, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  const int me = current, warp = me & ~31, lane = me & 31;
  const unsigned mine[6] = {a0, a1, a2, a3, b0, b1};
  std::memcpy(fragments[me], mine, sizeof mine);
  take_turns();
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 16; ++k) {
      const float2 a = unpack<V>(fragments[warp + row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2]);
      const float2 b = unpack<V>(fragments[warp + column * 4 + k % 8 / 2][4 + k / 8]);
      sum[i] += k % 2 ? a.y * b.y : a.x * b.x;
    }
  }
  take_turns();
}

static void body();
static void enter() {
  threadIdx.x = current;
  body();
  done[current] = true;
  swapcontext(&fibres[current], &scheduler);
}

static void run_block(int x, int y, int z) {
  blockIdx = {x, y, z};
  for (int thread = 0; thread < THREADS; ++thread) {
    stacks[thread].resize(1 << 17);
    getcontext(&fibres[thread]);
    fibres[thread].uc_stack.ss_sp = stacks[thread].data();
    fibres[thread].uc_stack.ss_size = stacks[thread].size();
    makecontext(&fibres[thread], enter, 0);
    done[thread] = false;
  }
  for (bool any = true; any;) {
    any = false;
    for (int thread = 0; thread < THREADS; ++thread) {
      if (done[thread]) continue;
      any = true;
      current = threadIdx.x = thread;
      swapcontext(&scheduler, &fibres[thread]);
    }
  }
}
