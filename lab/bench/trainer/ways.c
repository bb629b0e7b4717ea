/* Names the libraries for matrix products, and the instructions that they use, in rows. */
#include "ways.h"

#include <cblas.h>

gemm_way bench_way_of(const gemm_product *product) {
  ad_products with = ad_products_in_use();
  return ad_gemm_choose(&with, product);
}

static const char *name_of(gemm_way way, ad_dtype values) {
  switch (way) {
    case GEMM_ONEDNN:
      return values == AD_BF16 ? "oneDNN bf16" : "oneDNN";
    case GEMM_WIDEN_ONEDNN:
      return "widened to f32, oneDNN's f32 product";
    case GEMM_WIDEN_BLAS:
      return "widened to f32, OpenBLAS's f32 product";
    default:
      return "OpenBLAS";
  }
}

json_t *bench_way_words(gemm_way way, ad_dtype values) {
  int by_onednn = way == GEMM_ONEDNN || way == GEMM_WIDEN_ONEDNN;
  return json_pack("{ss ss?}", "products_by", name_of(way, values), "instructions",
                   by_onednn ? ad_gemm_onednn_instructions() : openblas_get_corename());
}
