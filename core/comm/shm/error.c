/* The first error of the world: the first rank to set the error determines it, and all ranks get it. */
#include "comm/shm/error.h"

#include <stdio.h>
#include <time.h>
#include "base/text.h"
#include "comm/shm/wait.h"

void ad_shm_raise(shm_control *control, uint32_t rank, ad_status status, ad_status cause, const char *text) {
  uint32_t none = 0;
  if (!atomic_compare_exchange_strong(&control->failed, &none, 1)) return;
  control->fail_status = status;
  control->fail_cause = cause;
  control->fail_rank = (int32_t)rank;
  snprintf(control->fail_text, sizeof control->fail_text, "%s", text);
  atomic_store(&control->failed, 2);
  ad_shm_wake_all(control);
}

void ad_shm_raise_own(shm_world *world, ad_status cause) {
  char words[AD_MESSAGE_MAX];
  ad_text text = ad_text_on(words, sizeof words);
  ad_text_add(&text, "rank %u: %s", world->rank, ad_last_error());
  ad_shm_raise(world->control, world->rank, AD_PEER_FAILED, cause, words);
}

// If another rank is writing the error's text, first waits for it, but at most 500 ms, since that rank may have died.
ad_status ad_shm_error(const shm_control *control) {
  const struct timespec millisecond = {.tv_nsec = 1000000};
  for (int i = 0; i < 500 && atomic_load_explicit(&control->failed, memory_order_acquire) == 1; i++)
    nanosleep(&millisecond, NULL);
  if (atomic_load_explicit(&control->failed, memory_order_acquire) == 1)
    return ad_fail(AD_RANK_DIED,
                   "a rank died while reporting its error, so the error's message is lost; see what the ranks printed");
  return ad_fail((ad_status)control->fail_status, "%s", control->fail_text);
}
