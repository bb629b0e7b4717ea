/* Functions of a single number, applied to every element. A list defines the functions; they share one forward and one
 * backward. Results are computed in f64, piece by piece, and rounded once. */
#include <math.h>
#include "tensor/tape.h"

enum { PIECE = 256 };

/* X(name, dtypes, y, slope): y is an expression of x, slope one of x and of y, the rounded result. The slope is
 * computed from x where the rounding of y would spoil it. */
#define FUNCTIONS(X)                                        \
  X(relu, AD_IN_ANY_FLOAT, x < 0 ? 0 : x, x <= 0 ? 0 : 1)   \
  X(tanh, AD_IN_ANY_FLOAT, tanh(x), 1 - tanh(x) * tanh(x))  \
  X(sigmoid, AD_IN_F32_F64, 1 / (1 + exp(-x)), y * (1 - y)) \
  X(exp, AD_IN_ANY_FLOAT, exp(x), y)                        \
  X(ln, AD_IN_ANY_FLOAT, log(x), 1 / x)                     \
  X(sqrt, AD_IN_ANY_FLOAT, sqrt(x), 0.5 / y)

/* An operation and the loops that compute its function. */
typedef struct function {
  ad_operation op;                     /* must be the first member, because function_of() casts a pointer to it */
  void (*values)(double *v, size_t n); /* replaces each x by y */
  void (*shares)(double *d, const double *x, const double *y, size_t n); /* multiplies each gradient d by the slope */
} function;

#define LOOPS(name, dtypes, value, slope)                                                  \
  static void name##_values(double *v, size_t n) {                                         \
    for (size_t i = 0; i < n; i++) {                                                       \
      double x = v[i];                                                                     \
      v[i] = (value);                                                                      \
    }                                                                                      \
  }                                                                                        \
  static void name##_shares(double *d, const double *of, const double *result, size_t n) { \
    for (size_t i = 0; i < n; i++) {                                                       \
      double x = of[i], y = result[i];                                                     \
      (void)x, (void)y;                                                                    \
      d[i] *= (slope);                                                                     \
    }                                                                                      \
  }
FUNCTIONS(LOOPS)
#undef LOOPS

static const function *function_of(const ad_tensor *out) { return (const function *)(const void *)out->op; }

static size_t piece_at(const ad_tensor *out, size_t at) {
  size_t left = ad_numel(out) - at;
  return left < PIECE ? left : PIECE;
}

/* Reads a piece of an array as f64. */
static void read_piece(double *to, const ad_array *from, size_t at, size_t n) {
  ad_cast(to, AD_F64, (const char *)from->data + at * ad_dtype_size(from->dtype), from->dtype, n);
}

static ad_status forward(ad_tape *tape, ad_tensor *out) {
  double piece[PIECE];
  for (size_t at = 0; at < ad_numel(out); at += PIECE) {
    size_t n = piece_at(out, at);
    read_piece(piece, &out->operand[0]->array, at, n);
    function_of(out)->values(piece, n);
    ad_cast(ad_at(out, out->array.data, at), out->array.dtype, piece, AD_F64, n);
  }
  return AD_OK;
}

static ad_status backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  double x[PIECE], y[PIECE], d[PIECE];
  for (size_t at = 0; at < ad_numel(out); at += PIECE) {
    size_t n = piece_at(out, at);
    read_piece(x, &out->operand[0]->array, at, n);
    read_piece(y, &out->array, at, n);
    read_piece(d, &out->grad, at, n);
    function_of(out)->shares(d, x, y, n);
    ad_slot_put_all(slot, at, d, AD_F64, n);
  }
  return AD_OK;
}

#define RECORDS(called, in, value, slope)                                      \
  static const function of_##called = {{.name = #called,                       \
                                        .dims = "...->...",                    \
                                        .linearity = AD_NONLINEAR,             \
                                        .dtypes = (in),                        \
                                        .raw = 1u << 0,                        \
                                        .forward = forward,                    \
                                        .backward = backward},                 \
                                       called##_values,                        \
                                       called##_shares};                       \
  ad_tensor *ad_##called##_at(ad_tape *tape, ad_tensor *x, const char *site) { \
    return ad_tape_apply(tape, &of_##called.op, &x, 1, NULL, site);            \
  }
FUNCTIONS(RECORDS)
#undef RECORDS
