/* The F distribution, computed from the continued fraction of the incomplete beta function (DLMF 8.17.22), which is
 * used only where it converges fast. */
#include "check/chance.h"

#include <math.h>

/* Keeps a number from being 0. Lentz's method for a continued fraction b0 + a1/(b1 + a2/(b2 + ...)) needs this for two
 * ratios: the numerator and the denominator of each convergent, each divided by the previous one. */
static double nonzero(double x) { return fabs(x) < 1e-300 ? 1e-300 : x; }

/* Returns coefficient n of the continued fraction. */
static double coefficient(int n, double x, double a, double b) {
  int half = n / 2;
  double m = half;
  if (n % 2) return -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
  return m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
}

static double fraction(double x, double a, double b) {
  enum { MOST = 100000 };
  double value = 1, numerator = 1, denominator = 0;
  for (int n = 1; n < MOST; n++) {
    double c = coefficient(n, x, a, b);
    denominator = 1 / nonzero(1 + c * denominator);
    numerator = nonzero(1 + c / numerator);
    value *= numerator * denominator;
    if (fabs(numerator * denominator - 1) < 1e-14) break;
  }
  return value;
}

/* Returns the regularized incomplete beta function: x^a y^b / (a B(a, b)) divided by the continued fraction, with y = 1
 * - x. */
static double lower_beta(double x, double y, double a, double b) {
  double front = a * log(x) + b * log(y) + lgamma(a + b) - lgamma(a) - lgamma(b) - log(a);
  return exp(front) / fraction(x, a, b);
}

double ad_chance_of_ratio(double ratio, double above, double below) {
  double a = below / 2, b = above / 2;
  double x = below / (below + above * ratio), y = above * ratio / (below + above * ratio);
  if (!(ratio > 0)) return 1;
  if (!(x > 0)) return 0;
  return x < (a + 1) / (a + b + 2) ? lower_beta(x, y, a, b) : 1 - lower_beta(y, x, b, a);
}

double ad_ratio_of_chance(double chance, double above, double below) {
  enum { HALVINGS = 60 };
  double least = -5, most = 5; /* bounds of log2(ratio) */
  while (ad_chance_of_ratio(exp2(most), above, below) > chance && most < 2000) most *= 2;
  for (int i = 0; i < HALVINGS; i++) {
    double middle = (least + most) / 2;
    if (ad_chance_of_ratio(exp2(middle), above, below) > chance)
      least = middle;
    else
      most = middle;
  }
  return exp2(most);
}
