/* The data that each thread keeps between products. They are empty before its first product, and released when the
 * thread ends. */
#include <pthread.h>
#include "base/memory.h"
#include "products/gemm_ways.h"

static _Thread_local gemm_kept own;
static _Thread_local int is_noted;
static pthread_key_t key;

static void release_kept(void *kept) {
  gemm_kept *ended = kept;
  ad_release(ended->widened);
  ad_gemm_onednn_destroy(ended->onednn);
  *ended = (gemm_kept){.widened = NULL};
}

static void make_key(void) { pthread_key_create(&key, release_kept); }

gemm_kept *ad_gemm_kept(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  if (is_noted) return &own;
  pthread_once(&once, make_key);
  is_noted = !pthread_setspecific(key, &own);
  return &own;
}
