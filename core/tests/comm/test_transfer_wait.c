/* Tests whether a transfer waits for its other side: the decision by which ranks find circles of waits, and peers that
 * left. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include "comm/shm/transfer.h"
#include "comm/shm/world.h"

typedef struct side {
  int receives, is_matched;    // of a receive
  int is_put;                  // of a send
  shm_parcel_state parcel;     // of a send; 0: the envelope has all bytes
  int is_over, failed, waits;  // the call is complete; the world has an error; what must be found
} side;

static const side sides[] = {
    {.receives = 1, .waits = 1},
    {.receives = 1, .is_matched = 1},
    {.receives = 1, .is_over = 1},
    {.receives = 1, .failed = 1},
    {.waits = 1},
    {.parcel = SHM_POSTED, .waits = 1},
    {.is_put = 1},
    {.is_put = 1, .parcel = SHM_POSTED, .waits = 1},
    {.is_put = 1, .parcel = SHM_TAKEN},
    {.is_put = 1, .parcel = SHM_DONE},
    {.is_put = 1, .parcel = SHM_MOVING},
    {.is_put = 1, .parcel = SHM_COPIED},
    {.is_put = 1, .parcel = SHM_POSTED, .is_over = 1},
    {.is_put = 1, .parcel = SHM_POSTED, .failed = 1},
};

static void a_transfer_waits_until_its_peer_has_done_something(void **state) {
  shm_control *control = calloc(1, sizeof *control);
  shm_parcel *parcel = aligned_alloc(_Alignof(shm_parcel), sizeof *parcel);
  assert_true(control && parcel);
  for (size_t i = 0; i < sizeof sides / sizeof *sides; i++) {
    const side *s = &sides[i];
    shm_world world = {.control = control};
    ad_call call = {.op = (ad_collective_op)(s->receives ? AD_OP_RECEIVE : AD_OP_SEND)};
    shm_transfer t = {.under = {.call = &call}, .is_put = (uint8_t)s->is_put, .is_matched = (uint8_t)s->is_matched};
    atomic_store(&control->failed, s->failed ? 2 : 0);
    atomic_store(&parcel->state, s->parcel);
    call.backend = s->is_over ? NULL : &t;
    if (s->parcel) t.parcel = parcel;
    if (ad_shm_waits_for_peer(&world, &t) != s->waits) fail_msg("side %zu: not %d", i, s->waits);
  }
  free(parcel);
  free(control);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_transfer_waits_until_its_peer_has_done_something),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
