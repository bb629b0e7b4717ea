/* For loops in which each allocation of a call fails in turn, until the call makes fewer. */
#ifndef TESTS_SUPPORT_ALLOCATIONS_H
#define TESTS_SUPPORT_ALLOCATIONS_H
#include "addend/status.h"
#include "base/memory.h"

/* 1: `status`, of the call before which ad_memory_fail_at(n) was called, is AD_MEMORY if allocation n failed and AD_OK if
 * the call made fewer. A loop that ends at the first AD_OK without asking this would end at a failure that was passed
 * over, and never reach those after it. Lets allocations succeed again. */
static inline int reports_allocation(long n, ad_status status) {
  return status == (ad_memory_fail_at(0) >= n ? AD_MEMORY : AD_OK);
}

#endif
