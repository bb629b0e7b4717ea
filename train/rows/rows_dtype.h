/* The row kernels for one dtype. Elements are ELEMENT in memory and REAL in registers; LOAD and STORE convert between
 * them. If ROUNDS is 1, STORE rounds, and STORE_REGISTERS(to, from, n) rounds whole registers. EXP is the exponential
 * of a REAL. NAME(x) appends the dtype's suffix to x. rows_body.h includes this file once for each dtype; the macros
 * are undefined at the end. The code gives the same bits for any vector width. */

/* LANES: the number of interleaved partial sums of a sum, which are folded in halves. PIECE: the number of elements
 * that fit in the first-level cache. */
#ifndef LANES
#define LANES 32
#define PIECE 256

/* Computes out[i] = value, or out[i] += value, for all i < n; `value` is a REAL expression in i. If the result must
 * be rounded, it is first computed into other memory, piece by piece, so that loops over exponentials stay in
 * registers. */
#define PUT(out, n, adds, value)                                                   \
  do {                                                                             \
    REAL unrounded[PIECE];                                                         \
    for (size_t from = 0; ROUNDS && from < (n); from += PIECE) {                   \
      size_t end = (n)-from < PIECE ? (n) : from + PIECE;                          \
      for (size_t i = from; i < end; i++) unrounded[i - from] = (value);           \
      NAME(put_piece)((out) + from, unrounded, end - from, adds);                  \
    }                                                                              \
    if (ROUNDS) break;                                                             \
    if (adds)                                                                      \
      for (size_t i = 0; i < (n); i++) (out)[i] = STORE(LOAD((out)[i]) + (value)); \
    else                                                                           \
      for (size_t i = 0; i < (n); i++) (out)[i] = STORE(value);                    \
  } while (0)
#endif

/* Rounds a piece and writes it to out. If `adds`, out is added before, and the contents of `piece` are lost. */
INLINE void NAME(put_piece)(ELEMENT *restrict out, REAL *restrict piece, size_t n, int adds) {
  for (size_t i = 0; adds && i < n; i++) piece[i] = LOAD(out[i]) + piece[i];
  for (size_t i = STORE_REGISTERS(out, piece, n); i < n; i++) out[i] = STORE(piece[i]);
}

/* Returns element i of a row, which has the wide dtype if `is_wide`. Wherever this is inlined, the compiler knows
 * `is_wide`. */
INLINE REAL NAME(get)(const void *row, size_t i, int is_wide) {
  return is_wide ? ((const REAL *)row)[i] : LOAD(((const ELEMENT *)row)[i]);
}

INLINE void NAME(set)(void *row, size_t i, REAL value, int is_wide) {
  if (is_wide)
    ((REAL *)row)[i] = value;
  else
    ((ELEMENT *)row)[i] = STORE(value);
}

INLINE REAL NAME(fold)(REAL lane[LANES]) {
  for (int half = LANES / 2; half; half /= 2)
    for (int j = 0; j < half; j++) lane[j] += lane[j + half];
  return lane[0];
}

INLINE void NAME(add_to_lanes)(REAL lane[LANES], const void *x, size_t n, int is_wide) {
  size_t whole = n / LANES * LANES;
  for (size_t i = 0; i < whole; i += LANES)
    for (size_t j = 0; j < LANES; j++) lane[j] += NAME(get)(x, i + j, is_wide);
  for (size_t i = whole; i < n; i++) lane[i - whole] += NAME(get)(x, i, is_wide);
}

static double NAME(sum)(const void *src, size_t n) {
  REAL lane[LANES] = {0};
  NAME(add_to_lanes)(lane, src, n, 0);
  return (double)NAME(fold)(lane);
}

static double NAME(dot)(const void *left, const void *right, size_t n) {
  const ELEMENT *a = left, *b = right;
  REAL lane[LANES] = {0};
  size_t whole = n / LANES * LANES;
  for (size_t i = 0; i < whole; i += LANES)
    for (size_t j = 0; j < LANES; j++) lane[j] += LOAD(a[i + j]) * LOAD(b[i + j]);
  for (size_t i = whole; i < n; i++) lane[i - whole] += LOAD(a[i]) * LOAD(b[i]);
  return (double)NAME(fold)(lane);
}

static double NAME(max)(const void *src, size_t n) {
  const ELEMENT *x = src;
  REAL lane[LANES], most = (REAL)-INFINITY;
  for (int j = 0; j < LANES; j++) lane[j] = most;
  size_t whole = n / LANES * LANES;
  for (size_t i = 0; i < whole; i += LANES)
    for (size_t j = 0; j < LANES; j++) lane[j] = LOAD(x[i + j]) > lane[j] ? LOAD(x[i + j]) : lane[j];
  for (size_t i = whole; i < n; i++) most = LOAD(x[i]) > most ? LOAD(x[i]) : most;
  for (int j = 0; j < LANES; j++) most = lane[j] > most ? lane[j] : most;
  return (double)most;
}

static void NAME(add)(void *dst, const void *a, const void *b, size_t n) {
  ELEMENT *restrict out = dst;
  const ELEMENT *x = a, *y = b;
  PUT(out, n, 0, LOAD(x[i]) + LOAD(y[i]));
}

static void NAME(add_wide)(void *dst, const void *a, const void *b, size_t n) {
  REAL *out = dst;
  const REAL *x = a;
  const ELEMENT *y = b;
  for (size_t i = 0; i < n; i++) out[i] = x[i] + LOAD(y[i]);
}

static void NAME(put)(void *dst, const void *src, double factor, size_t n, int adds) {
  ELEMENT *restrict out = dst;
  const ELEMENT *restrict x = src;
  const REAL f = (REAL)factor;
  PUT(out, n, adds, f * LOAD(x[i]));
}

static void NAME(put_narrow)(void *dst, const void *src, double factor, size_t n, int adds) {
  ELEMENT *restrict out = dst;
  const REAL *restrict x = src;
  const REAL f = (REAL)factor;
  PUT(out, n, adds, f * x[i]);
}

static void NAME(put_wide)(void *dst, const void *src, double factor, size_t n, int adds) {
  REAL *restrict out = dst;
  const ELEMENT *restrict x = src;
  const REAL f = (REAL)factor;
  if (adds)
    for (size_t i = 0; i < n; i++) out[i] += f * LOAD(x[i]);
  else
    for (size_t i = 0; i < n; i++) out[i] = f * LOAD(x[i]);
}

static void NAME(put_divided)(void *dst, const void *src, double divisor, size_t n, int adds) {
  ELEMENT *out = dst;
  const ELEMENT *x = src;
  const REAL d = (REAL)divisor;
  PUT(out, n, adds, LOAD(x[i]) / d);
}

static void NAME(put_product)(void *dst, const void *a, const void *b, size_t n, int adds) {
  ELEMENT *restrict out = dst;
  const ELEMENT *x = a, *y = b;
  PUT(out, n, adds, LOAD(x[i]) * LOAD(y[i]));
}

static void NAME(fill)(void *dst, double value, size_t n, int adds) {
  ELEMENT *out = dst;
  PUT(out, n, adds, (REAL)value);
}

/* The kernel exp_sum, for a src of dtype T or of the wide dtype. If nothing must be rounded, the exponentials are
 * computed directly in dst. */
INLINE double NAME(exp_sum_of)(void *dst, const void *src, int src_is_wide, double shift, size_t n) {
  const REAL s = (REAL)shift;
  REAL unrounded[PIECE], lane[LANES] = {0};
  for (size_t i = 0; i < n; i += PIECE) {
    size_t count = n - i < PIECE ? n - i : PIECE;
    REAL *e = ROUNDS ? &unrounded[0] : (REAL *)dst + i;
    for (size_t j = 0; j < count; j++) e[j] = EXP(NAME(get)(src, i + j, src_is_wide) - s);
    NAME(add_to_lanes)(lane, e, count, 1);
    if (ROUNDS) NAME(put_piece)((ELEMENT *)dst + i, e, count, 0);
  }
  return (double)NAME(fold)(lane);
}

static double NAME(exp_sum)(void *dst, const void *src, double shift, size_t n) {
  return NAME(exp_sum_of)(dst, src, 0, shift, n);
}
static double NAME(exp_sum_narrow)(void *dst, const void *src, double shift, size_t n) {
  return NAME(exp_sum_of)(dst, src, 1, shift, n);
}

static void NAME(put_exp)(void *dst, const void *src, double shift, double factor, size_t n, int adds) {
  ELEMENT *restrict out = dst;
  const ELEMENT *restrict x = src;
  const REAL s = (REAL)shift, f = (REAL)factor;
  PUT(out, n, adds, f * EXP(LOAD(x[i]) - s));
}

static void NAME(softmax_backward)(void *p, void *d, const void *score, const void *slope, double shift, double sum,
                                   double centre, double scale, size_t n) {
  const REAL *from = score, *d_probability = slope;
  const REAL s = (REAL)shift, inverse = (REAL)(1 / sum), c = (REAL)centre, f = (REAL)scale;
  REAL of_score[PIECE], of_probability[PIECE];
  for (size_t i = 0; i < n; i += PIECE) {
    size_t count = n - i < PIECE ? n - i : PIECE;
    for (size_t j = 0; j < count; j++) {
      REAL e = EXP(from[i + j] - s) * inverse;
      of_score[j] = f * (e * (d_probability[i + j] - c));
      of_probability[j] = e;
    }
    NAME(put_piece)((ELEMENT *)d + i, of_score, count, 0);
    NAME(put_piece)((ELEMENT *)p + i, of_probability, count, 0);
  }
}

static void NAME(swiglu)(void *dst, const void *gate, const void *up, size_t n) {
  ELEMENT *restrict out = dst;
  const ELEMENT *g = gate, *u = up;
  PUT(out, n, 0, LOAD(g[i]) / (1 + EXP(-LOAD(g[i]))) * LOAD(u[i]));
}

static void NAME(swiglu_backward)(void *d_gate, int gate_adds, void *d_up, int up_adds, const void *gate,
                                  const void *up, const void *d_out, size_t n) {
  ELEMENT *dg = d_gate, *du = d_up;
  const ELEMENT *g = gate, *u = up, *d = d_out;
  REAL of_gate[PIECE], of_up[PIECE];
  for (size_t i = 0; i < n; i += PIECE, g += PIECE, u += PIECE, d += PIECE) {
    size_t count = n - i < PIECE ? n - i : PIECE;
    for (size_t j = 0; j < count; j++) {
      REAL x = LOAD(g[j]), sigmoid = 1 / (1 + EXP(-x)), silu = x * sigmoid;
      of_up[j] = LOAD(d[j]) * silu;
      of_gate[j] = LOAD(d[j]) * LOAD(u[j]) * (sigmoid + silu * (1 - sigmoid));
    }
    NAME(put_piece)(dg + i, of_gate, count, gate_adds);
    NAME(put_piece)(du + i, of_up, count, up_adds);
  }
}

#define ROOT_HALF 0.70710678118654752440
#define DENSITY_AT_0 0.39894228040143267794 /* 1 / sqrt(2 pi) */

static void NAME(gelu)(void *dst, const void *src, size_t n) {
  ELEMENT *out = dst;
  const ELEMENT *x = src;
  for (size_t i = 0; i < n; i++) {
    double at = (double)LOAD(x[i]);
    out[i] = STORE((REAL)(0.5 * at * (1 + erf(at * ROOT_HALF))));
  }
}

static void NAME(gelu_backward)(void *dx, const void *src, const void *d_out, size_t n, int adds) {
  ELEMENT *out = dx;
  const ELEMENT *x = src, *d = d_out;
  for (size_t i = 0; i < n; i++) {
    double at = (double)LOAD(x[i]);
    double slope = 0.5 * (1 + erf(at * ROOT_HALF)) + at * DENSITY_AT_0 * exp(-0.5 * at * at);
    REAL share = (REAL)slope * LOAD(d[i]);
    out[i] = STORE(adds ? LOAD(out[i]) + share : share);
  }
}

#undef ROOT_HALF
#undef DENSITY_AT_0

INLINE void NAME(norm_of)(void *dst, const void *x, int x_is_wide, const void *weight, double inverse, size_t n) {
  ELEMENT *restrict out = dst;
  const REAL *w = weight;
  const REAL r = (REAL)inverse;
  PUT(out, n, 0, NAME(get)(x, i, x_is_wide) * r * w[i]);
}

static void NAME(norm)(void *dst, const void *x, const void *weight, double inverse, size_t n) {
  NAME(norm_of)(dst, x, 0, weight, inverse, n);
}
static void NAME(norm_wide)(void *dst, const void *x, const void *weight, double inverse, size_t n) {
  NAME(norm_of)(dst, x, 1, weight, inverse, n);
}

/* Computes the gradients of y_i = x_i r w_i with r = (mean(x^2) + epsilon)^(-1/2), so dr/dx_i = -r^3 x_i / n. */
INLINE void NAME(norm_backward_of)(void *restrict dx, int adds, void *d_weight, const void *x, int is_wide,
                                   const void *weight, const void *d_out, double inverse, size_t n) {
  REAL *restrict dw = d_weight;
  const REAL *w = weight;
  const ELEMENT *d = d_out;
  REAL lane[LANES] = {0};
  size_t whole = n / LANES * LANES;
  for (size_t i = 0; i < whole; i += LANES)
    for (size_t j = 0; j < LANES; j++) lane[j] += LOAD(d[i + j]) * w[i + j] * NAME(get)(x, i + j, is_wide);
  for (size_t i = whole; i < n; i++) lane[i - whole] += LOAD(d[i]) * w[i] * NAME(get)(x, i, is_wide);
  const REAL r = (REAL)inverse;
  const REAL pull = r * r * r * NAME(fold)(lane) / (REAL)n;
  for (size_t i = 0; i < n; i++) dw[i] += LOAD(d[i]) * NAME(get)(x, i, is_wide) * r;
  for (size_t i = 0; i < n; i++) {
    REAL share = LOAD(d[i]) * w[i] * r - NAME(get)(x, i, is_wide) * pull;
    NAME(set)(dx, i, adds ? NAME(get)(dx, i, is_wide) + share : share, is_wide);
  }
}

static void NAME(norm_backward)(void *dx, int adds, void *d_weight, const void *x, const void *weight,
                                const void *d_out, double inverse, size_t n) {
  NAME(norm_backward_of)(dx, adds, d_weight, x, 0, weight, d_out, inverse, n);
}
static void NAME(norm_backward_wide)(void *dx, int adds, void *d_weight, const void *x, const void *weight,
                                     const void *d_out, double inverse, size_t n) {
  NAME(norm_backward_of)(dx, adds, d_weight, x, 1, weight, d_out, inverse, n);
}

INLINE void NAME(rotate_by)(void *dst, const void *src, const void *cosine, const void *sine, double direction,
                            size_t half, size_t heads, int adds) {
  ELEMENT *restrict out = dst;
  const ELEMENT *restrict x = src;
  const REAL *c = cosine, *s = sine;
  const REAL sign = (REAL)direction;
  for (size_t head = 0; head < heads; head++, out += 2 * half, x += 2 * half) {
    for (size_t i = 0; i < half; i++) {
      REAL first = LOAD(x[i]) * c[i] - LOAD(x[i + half]) * (sign * s[i]);
      REAL second = LOAD(x[i + half]) * c[i] + LOAD(x[i]) * (sign * s[i]);
      out[i] = STORE(adds ? LOAD(out[i]) + first : first);
      out[i + half] = STORE(adds ? LOAD(out[i + half]) + second : second);
    }
  }
}

static void NAME(rotate)(void *dst, const void *src, const void *cosine, const void *sine, double direction,
                         size_t half, size_t heads, int adds) {
  if (adds)
    NAME(rotate_by)(dst, src, cosine, sine, direction, half, heads, 1);
  else
    NAME(rotate_by)(dst, src, cosine, sine, direction, half, heads, 0);
}

static const row_kernels NAME(table) = {
    .add = NAME(add),
    .add_wide = NAME(add_wide),
    .put = NAME(put),
    .put_wide = NAME(put_wide),
    .put_narrow = NAME(put_narrow),
    .put_divided = NAME(put_divided),
    .put_product = NAME(put_product),
    .fill = NAME(fill),
    .sum = NAME(sum),
    .dot = NAME(dot),
    .max = NAME(max),
    .exp_sum = NAME(exp_sum),
    .exp_sum_narrow = NAME(exp_sum_narrow),
    .put_exp = NAME(put_exp),
    .softmax_backward = NAME(softmax_backward),
    .swiglu = NAME(swiglu),
    .swiglu_backward = NAME(swiglu_backward),
    .gelu = NAME(gelu),
    .gelu_backward = NAME(gelu_backward),
    .norm = NAME(norm),
    .norm_wide = NAME(norm_wide),
    .norm_backward = NAME(norm_backward),
    .norm_backward_wide = NAME(norm_backward_wide),
    .rotate = NAME(rotate),
};

#undef ELEMENT
#undef REAL
#undef LOAD
#undef STORE
#undef ROUNDS
#undef STORE_REGISTERS
#undef EXP
#undef NAME
