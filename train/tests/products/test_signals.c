/* Tests that a signal handler runs on the thread's own stack while a product is computed, whichever library computes
 * it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include "addend/products.h"
#include "products/ways.h"

#define must(call)                                        \
  do {                                                    \
    if (call) fail_msg("%s: %s", #call, ad_last_error()); \
  } while (0)

/* At sizes like these (m 48, n 32, k 256) some kernels keep another value in the stack pointer. */
enum { M = 48, N = 32, K = 256, SIGNALS = 400, MOST_PRODUCTS = 2000000 };

static char *stack_low, *stack_high;
static volatile sig_atomic_t handled, elsewhere;
static atomic_int done;

/* Uses the frame's address, since the address sanitizer keeps locals on a separate stack. */
static void note_where(int number) {
  const char *here = __builtin_frame_address(0);
  handled++;
  if (here < stack_low || here >= stack_high) elsewhere++;
}

static void find_stack(void) {
  pthread_attr_t attributes;
  void *low;
  size_t bytes;
  assert_int_equal(pthread_getattr_np(pthread_self(), &attributes), 0);
  assert_int_equal(pthread_attr_getstack(&attributes, &low, &bytes), 0);
  pthread_attr_destroy(&attributes);
  stack_low = low;
  stack_high = stack_low + bytes;
}

/* Signals this thread alone: a signal of the process might be handled by one of OpenBLAS's threads, on its stack. */
static void *send_signals(void *to) {
  const struct timespec pause = {.tv_nsec = 200000};
  while (!atomic_load(&done)) {
    pthread_kill(*(pthread_t *)to, SIGUSR2);
    nanosleep(&pause, NULL);
  }
  return NULL;
}

static void prepare(void) {
  struct sigaction action = {.sa_handler = note_where, .sa_flags = SA_RESTART};
  sigemptyset(&action.sa_mask);
  find_stack();
  assert_int_equal(sigaction(SIGUSR2, &action, NULL), 0);
}

static void handlers_run_on_their_stack(void **state) {
  if (!ad_onednn_version()) skip();
  float *a = calloc(M * K, sizeof *a), *b = calloc(K * N, sizeof *b), *out = calloc(M * N, sizeof *out);
  assert_true(a && b && out);
  ad_matrix_product product = {.size = sizeof product,
                               .dtype = AD_F32,
                               .m = M,
                               .n = N,
                               .k = K,
                               .a = {a, K, 0},
                               .b = {b, K, 1},
                               .out = out,
                               .out_stride = N};
  must(ad_multiply_matrices(&product)); /* the first product makes what is made once, before signals come */
  prepare();
  pthread_t self = pthread_self(), sender;
  assert_int_equal(pthread_create(&sender, NULL, send_signals, &self), 0);
  for (long i = 0; i < MOST_PRODUCTS && handled < SIGNALS; i++) must(ad_multiply_matrices(&product));
  atomic_store(&done, 1);
  pthread_join(sender, NULL);
  assert_true(handled >= SIGNALS);
  assert_int_equal(elsewhere, 0);
  free(a), free(b), free(out);
}

int main(void) {
  setenv("ADDEND_PRODUCTS", "onednn", 1);
  const struct CMUnitTest tests[] = {cmocka_unit_test(handlers_run_on_their_stack)};
  return cmocka_run_group_tests_name("signals during products", tests, NULL, NULL);
}
