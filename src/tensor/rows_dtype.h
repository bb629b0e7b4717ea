/* The row kernels for the element type REAL; NAME(x) is x with the dtype's suffix. Included by rows_body.h, once per
 * dtype. Written so that any vector width gives the same bits. */

/* Sums form in LANES interleaved partial sums, folded in halves. */
#ifndef LANES
#define LANES 32
#endif

INLINE REAL NAME(fold)(REAL lane[LANES]) {
  for (int half = LANES / 2; half; half /= 2)
    for (int j = 0; j < half; j++) lane[j] += lane[j + half];
  return lane[0];
}

static double NAME(sum)(const void *src, size_t n) {
  const REAL *x = src;
  REAL lane[LANES] = {0};
  size_t whole = n / LANES * LANES;
  for (size_t i = 0; i < whole; i += LANES)
    for (size_t j = 0; j < LANES; j++) lane[j] += x[i + j];
  for (size_t i = whole; i < n; i++) lane[i - whole] += x[i];
  return (double)NAME(fold)(lane);
}

static double NAME(dot)(const void *a, const void *b, size_t n) {
  const REAL *x = a, *y = b;
  REAL lane[LANES] = {0};
  size_t whole = n / LANES * LANES;
  for (size_t i = 0; i < whole; i += LANES)
    for (size_t j = 0; j < LANES; j++) lane[j] += x[i + j] * y[i + j];
  for (size_t i = whole; i < n; i++) lane[i - whole] += x[i] * y[i];
  return (double)NAME(fold)(lane);
}

static double NAME(max)(const void *src, size_t n) {
  const REAL *x = src;
  REAL lane[LANES], most = (REAL)-INFINITY;
  for (int j = 0; j < LANES; j++) lane[j] = most;
  size_t whole = n / LANES * LANES;
  for (size_t i = 0; i < whole; i += LANES)
    for (size_t j = 0; j < LANES; j++) lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
  for (size_t i = whole; i < n; i++) most = x[i] > most ? x[i] : most;
  for (int j = 0; j < LANES; j++) most = lane[j] > most ? lane[j] : most;
  return (double)most;
}

static void NAME(add)(void *dst, const void *a, const void *b, size_t n) {
  REAL *restrict out = dst;
  const REAL *x = a, *y = b;
  for (size_t i = 0; i < n; i++) out[i] = x[i] + y[i];
}

static void NAME(put)(void *dst, const void *src, double factor, size_t n, int adds) {
  REAL *restrict out = dst;
  const REAL *restrict x = src;
  const REAL f = (REAL)factor;
  if (adds)
    for (size_t i = 0; i < n; i++) out[i] += f * x[i];
  else
    for (size_t i = 0; i < n; i++) out[i] = f * x[i];
}

static void NAME(put_divided)(void *dst, const void *src, double divisor, size_t n, int adds) {
  REAL *out = dst;
  const REAL *x = src;
  const REAL d = (REAL)divisor;
  for (size_t i = 0; i < n; i++) out[i] = adds ? out[i] + x[i] / d : x[i] / d;
}

static void NAME(put_product)(void *dst, const void *a, const void *b, size_t n, int adds) {
  REAL *restrict out = dst;
  const REAL *x = a, *y = b;
  if (adds)
    for (size_t i = 0; i < n; i++) out[i] += x[i] * y[i];
  else
    for (size_t i = 0; i < n; i++) out[i] = x[i] * y[i];
}

static void NAME(fill)(void *dst, double value, size_t n, int adds) {
  REAL *out = dst;
  for (size_t i = 0; i < n; i++) out[i] = adds ? out[i] + (REAL)value : (REAL)value;
}

static double NAME(exp_sum)(void *dst, const void *src, double shift, size_t n) {
  REAL *out = dst;
  const REAL *x = src;
  const REAL s = (REAL)shift;
  for (size_t i = 0; i < n; i++) out[i] = NAME(exp)(x[i] - s);
  return NAME(sum)(out, n);
}

static void NAME(put_exp)(void *dst, const void *src, double shift, double factor, size_t n, int adds) {
  REAL *restrict out = dst;
  const REAL *restrict x = src;
  const REAL s = (REAL)shift, f = (REAL)factor;
  if (adds)
    for (size_t i = 0; i < n; i++) out[i] += f * NAME(exp)(x[i] - s);
  else
    for (size_t i = 0; i < n; i++) out[i] = f * NAME(exp)(x[i] - s);
}

static void NAME(softmax_backward)(void *p, void *d, double shift, double sum, double centre, double scale, size_t n) {
  REAL *restrict probability = p, *restrict slope = d;
  const REAL s = (REAL)shift, inverse = (REAL)(1 / sum), c = (REAL)centre, f = (REAL)scale;
  for (size_t i = 0; i < n; i++) {
    REAL e = NAME(exp)(probability[i] - s) * inverse;
    probability[i] = e;
    slope[i] = f * (e * (slope[i] - c));
  }
}

static void NAME(swiglu)(void *dst, const void *gate, const void *up, size_t n) {
  REAL *restrict out = dst;
  const REAL *g = gate, *u = up;
  for (size_t i = 0; i < n; i++) out[i] = g[i] / (1 + NAME(exp)(-g[i])) * u[i];
}

static void NAME(swiglu_backward)(void *d_gate, int gate_adds, void *d_up, int up_adds, const void *gate,
                                  const void *up, const void *d_out, size_t n) {
  REAL *dg = d_gate, *du = d_up;
  const REAL *g = gate, *u = up, *d = d_out;
  enum { PIECE = 256 };  // elements: old gradients and results of one piece stay in the first cache
  REAL of_gate[PIECE], of_up[PIECE];
  for (size_t i = 0; i < n; i += PIECE, g += PIECE, u += PIECE, d += PIECE) {
    size_t count = n - i < PIECE ? n - i : PIECE;
    for (size_t j = 0; j < count; j++) {
      REAL sigmoid = 1 / (1 + NAME(exp)(-g[j])), silu = g[j] * sigmoid;
      of_up[j] = d[j] * silu;
      of_gate[j] = d[j] * u[j] * (sigmoid + silu * (1 - sigmoid));
    }
    NAME(put)(dg + i, of_gate, 1, count, gate_adds);
    NAME(put)(du + i, of_up, 1, count, up_adds);
  }
}

#define ROOT_HALF 0.70710678118654752440
#define DENSITY_AT_0 0.39894228040143267794 /* 1 / sqrt(2 pi) */

static void NAME(gelu)(void *dst, const void *src, size_t n) {
  REAL *out = dst;
  const REAL *x = src;
  for (size_t i = 0; i < n; i++) out[i] = (REAL)(0.5 * (double)x[i] * (1 + erf((double)x[i] * ROOT_HALF)));
}

static void NAME(gelu_backward)(void *dx, const void *src, const void *d_out, size_t n, int adds) {
  REAL *out = dx;
  const REAL *x = src, *d = d_out;
  for (size_t i = 0; i < n; i++) {
    double at = (double)x[i];
    double slope = 0.5 * (1 + erf(at * ROOT_HALF)) + at * DENSITY_AT_0 * exp(-0.5 * at * at);
    REAL share = (REAL)slope * d[i];
    out[i] = adds ? out[i] + share : share;
  }
}

/* What follows is computed in f64 and rounded once. */

INLINE double NAME(clamped)(double x) { return x < 0 ? 0 : x > 1 ? 1 : x; }

static void NAME(clamp)(void *dst, const void *src, size_t n) {
  REAL *restrict out = dst;
  const REAL *x = src;
  for (size_t i = 0; i < n; i++) out[i] = (REAL)NAME(clamped)((double)x[i]);
}

static void NAME(clamp_backward)(void *dx, const void *src, const void *d_out, double below, size_t n, int adds) {
  REAL *restrict out = dx;
  const REAL *x = src, *d = d_out;
  for (size_t i = 0; i < n; i++) {
    double at = (double)x[i], g = (double)d[i];
    double share = at > 1 ? 0 : at < 0 ? (g >= 0 || below == 0 ? 0 : below * g) : g;
    out[i] = (REAL)(share + (adds ? (double)out[i] : 0));
  }
}

static void NAME(leak)(void *dst, const void *src, double slope, size_t n) {
  REAL *restrict out = dst;
  const REAL *x = src;
  for (size_t i = 0; i < n; i++) {
    double at = (double)x[i];
    out[i] = (REAL)(at > 1 ? 1 + slope * (at - 1) : NAME(clamped)(at));
  }
}

static void NAME(leak_backward)(void *dx, const void *src, const void *d_out, double slope, size_t n, int adds) {
  REAL *restrict out = dx;
  const REAL *x = src, *d = d_out;
  for (size_t i = 0; i < n; i++) {
    double at = (double)x[i], own = at > 1 ? slope : at >= 0 ? 1 : 0;
    out[i] = (REAL)(own * (double)d[i] + (adds ? (double)out[i] : 0));
  }
}

static void NAME(mix)(void *dst, const void *a, const void *b, size_t n) {
  REAL *restrict out = dst;
  const REAL *x = a, *u = b;
  for (size_t i = 0; i < n; i++) out[i] = (REAL)((double)x[i] + (1 - (double)x[i]) * (double)u[i]);
}

static void NAME(mix_backward)(void *da, const void *b, const void *d_out, size_t n, int adds) {
  REAL *restrict out = da;
  const REAL *u = b, *d = d_out;
  for (size_t i = 0; i < n; i++) out[i] = (REAL)((double)d[i] * (1 - (double)u[i]) + (adds ? (double)out[i] : 0));
}

#undef ROOT_HALF
#undef DENSITY_AT_0

static void NAME(norm)(void *dst, const void *src, const void *weight, double inverse, size_t n) {
  REAL *restrict out = dst;
  const REAL *x = src, *w = weight;
  const REAL r = (REAL)inverse;
  for (size_t i = 0; i < n; i++) out[i] = x[i] * r * w[i];
}

/* y_i = x_i r w_i with r = (mean(x^2) + epsilon)^(-1/2), so dr/dx_i = -r^3 x_i / n. */
static void NAME(norm_backward)(void *dx, int adds, void *d_weight, const void *src, const void *weight,
                                const void *d_out, double inverse, size_t n) {
  REAL *restrict out = dx, *restrict dw = d_weight;
  const REAL *x = src, *w = weight, *d = d_out;
  REAL lane[LANES] = {0};
  size_t whole = n / LANES * LANES;
  for (size_t i = 0; i < whole; i += LANES)
    for (size_t j = 0; j < LANES; j++) lane[j] += d[i + j] * w[i + j] * x[i + j];
  for (size_t i = whole; i < n; i++) lane[i - whole] += d[i] * w[i] * x[i];
  const REAL r = (REAL)inverse;
  const REAL pull = r * r * r * NAME(fold)(lane) / (REAL)n;
  for (size_t i = 0; i < n; i++) dw[i] += d[i] * x[i] * r;
  if (adds)
    for (size_t i = 0; i < n; i++) out[i] += d[i] * w[i] * r - x[i] * pull;
  else
    for (size_t i = 0; i < n; i++) out[i] = d[i] * w[i] * r - x[i] * pull;
}

static void NAME(rotate)(void *dst, const void *src, const void *cosine, const void *sine, double direction,
                         size_t half, size_t heads, int adds) {
  REAL *restrict out = dst;
  const REAL *restrict x = src;
  const REAL *c = cosine, *s = sine;
  const REAL sign = (REAL)direction;
  for (size_t head = 0; head < heads; head++, out += 2 * half, x += 2 * half) {
    for (size_t i = 0; i < half; i++) {
      REAL first = x[i] * c[i] - x[i + half] * (sign * s[i]);
      REAL second = x[i + half] * c[i] + x[i] * (sign * s[i]);
      out[i] = adds ? out[i] + first : first;
      out[i + half] = adds ? out[i + half] + second : second;
    }
  }
}

static const row_kernels NAME(table) = {
    .add = NAME(add),
    .put = NAME(put),
    .put_divided = NAME(put_divided),
    .put_product = NAME(put_product),
    .fill = NAME(fill),
    .sum = NAME(sum),
    .dot = NAME(dot),
    .max = NAME(max),
    .exp_sum = NAME(exp_sum),
    .put_exp = NAME(put_exp),
    .softmax_backward = NAME(softmax_backward),
    .swiglu = NAME(swiglu),
    .swiglu_backward = NAME(swiglu_backward),
    .gelu = NAME(gelu),
    .gelu_backward = NAME(gelu_backward),
    .clamp = NAME(clamp),
    .clamp_backward = NAME(clamp_backward),
    .leak = NAME(leak),
    .leak_backward = NAME(leak_backward),
    .mix = NAME(mix),
    .mix_backward = NAME(mix_backward),
    .norm = NAME(norm),
    .norm_backward = NAME(norm_backward),
    .rotate = NAME(rotate),
};
