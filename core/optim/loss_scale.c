/* The dynamic loss scale: decides whether a step is taken, and adapts the scale. The decision depends on the norm,
 * never on a rank's own gradient: the norm is the same on all ranks, so all ranks decide the same. */
#include <math.h>
#include "addend/optim.h"

static const int64_t DEFAULT_GROWTH = 2000;

static int clamped(int exponent) {
  if (exponent < AD_LOSS_SCALE_LEAST) return AD_LOSS_SCALE_LEAST;
  return exponent > AD_LOSS_SCALE_MOST ? AD_LOSS_SCALE_MOST : exponent;
}

int ad_loss_scale_update(ad_loss_scale *scale, double norm) {
  int taken = isfinite(norm) != 0;
  if (!scale->enabled) return taken;
  int64_t growth = scale->growth ? scale->growth : DEFAULT_GROWTH;
  scale->good_steps = taken ? scale->good_steps + 1 : 0;
  if (!taken) scale->exponent = clamped(scale->exponent - 1);
  if (scale->good_steps < growth) return taken;
  scale->exponent = clamped(scale->exponent + 1);
  scale->good_steps = 0;
  return taken;
}

double ad_loss_scale_factor(const ad_loss_scale *scale) { return scale->enabled ? ldexp(1, -scale->exponent) : 1; }
