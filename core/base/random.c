/* Random numbers as a function of (seed, stream, index); there is no generator state. */
#include "base/random.h"

#include <Random123/philox.h>
#include <math.h>
#include <string.h>
#include <xxhash.h>

typedef struct draw {
  uint64_t first, second;
} draw;

/* Returns the two 64-bit numbers of one draw, as addend/data.h defines draws. */
static draw draw_at(uint64_t seed, uint64_t stream, uint64_t index) {
  philox4x32_ctr_t counter = {{(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)}};
  philox4x32_key_t key = {{(uint32_t)seed, (uint32_t)(seed >> 32)}};
  philox4x32_ctr_t word = philox4x32(counter, key);
  return (draw){(uint64_t)word.v[1] << 32 | word.v[0], (uint64_t)word.v[3] << 32 | word.v[2]};
}

/* Returns the upper 53 bits as a number in [0, 1). */
static double unit_interval(uint64_t bits) { return (double)(bits >> 11) * 0x1p-53; }

uint64_t ad_random_bits(uint64_t seed, uint64_t stream, uint64_t index) { return draw_at(seed, stream, index).first; }

int64_t ad_random_below(uint64_t seed, uint64_t stream, uint64_t index, int64_t n) {
  return n < 1 ? 0 : (int64_t)((unsigned __int128)ad_random_bits(seed, stream, index) * (uint64_t)n >> 64);
}

double ad_random_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
  return unit_interval(draw_at(seed, stream, index).first);
}

double ad_random_normal(uint64_t seed, uint64_t stream, uint64_t index) {
  draw bits = draw_at(seed, stream, index);
  double radius = sqrt(-2.0 * log(1.0 - unit_interval(bits.first)));  // the logarithm's argument is in (0, 1]
  return radius * cos(2.0 * M_PI * unit_interval(bits.second));
}

uint64_t ad_random_stream(const char *name) { return name ? XXH64(name, strlen(name), 0) : XXH64("", 0, 0); }
