/* The ranks' parts of a batch on both sides of a bridge, and the numbers in them. */
#include "sides.h"

#include <string.h>

static int direction_of(const char *word, bench_direction *out) {
  static const char *const words[] = {"fan_in", "fan_out", "equal"};
  for (int i = 0; i < 3; i++)
    if (!strcmp(words[i], word)) return *out = (bench_direction)i, 0;
  return 1;
}

int bench_sides_make(const bench_task *task, int rank, int ranks, bench_sides *out) {
  size_t own = task->bytes / sizeof(float) / (size_t)ranks;
  bench_side one = {own * (size_t)rank, own}, pair = {own * (size_t)(rank / 2 * 2), 2 * own};
  if (ranks % 2 || direction_of(task->storage, &out->direction)) return 1;
  out->bytes = task->bytes;
  out->source = out->direction == BENCH_FAN_OUT ? pair : one;
  out->destination = out->direction == BENCH_FAN_IN ? pair : one;
  return 0;
}

static float number(size_t i) { return (float)(i % 1021); }

void bench_side_fill(float *part, const bench_side *side) {
  for (size_t i = 0; i < side->numel; i++) part[i] = number(side->first + i);
}

int bench_side_holds(const float *part, const bench_side *side, float addends) {
  for (size_t i = 0; i < side->numel; i++)
    if (part[i] != addends * number(side->first + i)) return 0;
  return 1;
}

float bench_sides_addends(const bench_sides *sides) { return sides->direction == BENCH_FAN_IN ? 2 : 1; }
