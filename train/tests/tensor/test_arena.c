/* Tests arenas: alignment, growth, marks, and that later steps allocate nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include "tensor/arena.h"
#include "base/memory.h"

#if defined(AD_SANITIZED_ADDRESS)
#include <sanitizer/asan_interface.h>
static int is_hidden(const char *piece, size_t byte) { return __asan_address_is_poisoned(piece + byte); }
#else
static int is_hidden(const char *piece, size_t byte) {
  (void)piece, (void)byte;
  return -1;  // without a sanitizer nothing can notice
}
#endif

enum { PIECES = 40 };

static size_t piece_size(int i) { return (size_t)(i * 37 % 700); }

/* Takes pieces of many sizes, fills each, and checks at the end that no two overlap. */
static void take_a_step(ad_arena *arena) {
  unsigned char *pieces[PIECES];
  for (int i = 0; i < PIECES; i++) {
    pieces[i] = ad_arena_take(arena, piece_size(i));
    assert_non_null(pieces[i]);
    assert_int_equal((uintptr_t)pieces[i] % 64, 0);
    memset(pieces[i], i + 1, piece_size(i));
  }
  for (int i = 0; i < PIECES; i++)
    for (size_t j = 0; j < piece_size(i); j++) assert_int_equal(pieces[i][j], i + 1);
}

static void pieces_are_aligned_and_apart(void **state) {
  for (size_t first = 0; first <= 1 << 16; first = first * 4 + 1) {
    ad_arena *arena;
    assert_int_equal(ad_arena_create(first, &arena), AD_OK);
    take_a_step(arena);
    ad_arena_destroy(arena);
  }
  ad_arena_destroy(NULL);
}

static void zeroed_pieces_are_zero_where_others_were(void **state) {
  ad_arena *arena;
  assert_int_equal(ad_arena_create(1000, &arena), AD_OK);
  memset(ad_arena_take(arena, 777), 0xff, 777);
  ad_arena_reset(arena);
  unsigned char *zeroed = ad_arena_take_zeroed(arena, 777);
  for (int i = 0; i < 777; i++) assert_int_equal(zeroed[i], 0);
  ad_arena_destroy(arena);
}

static void the_second_step_of_a_size_allocates_nothing(void **state) {
  ad_arena *arena;
  assert_int_equal(ad_arena_create(10, &arena), AD_OK);
  take_a_step(arena);
  ad_arena_reset(arena);
  ad_memory_fail_at(0);
  for (int step = 0; step < 5; step++) {
    take_a_step(arena);
    ad_arena_reset(arena);
  }
  assert_int_equal(ad_memory_fail_at(0), 0);
  ad_arena_destroy(arena);
}

static void the_peak_is_the_most_in_use_at_once(void **state) {
  ad_arena *arena;
  assert_int_equal(ad_arena_create(64, &arena), AD_OK);
  assert_int_equal(ad_arena_peak(arena), 0);
  for (int i = 0; i < 10; i++) {
    size_t mark = ad_arena_mark(arena);
    assert_non_null(ad_arena_take(arena, 640));
    ad_arena_rewind(arena, mark);
  }
  assert_int_equal(ad_arena_peak(arena), 640);
  assert_non_null(ad_arena_take(arena, 64));
  assert_non_null(ad_arena_take(arena, 640));
  assert_int_equal(ad_arena_peak(arena), 704);
  ad_arena_reset(arena);
  assert_int_equal(ad_arena_peak(arena), 704);
  ad_arena_destroy(arena);
}

static void a_rewind_across_chunks_keeps_what_was_before(void **state) {
  ad_arena *arena;
  assert_int_equal(ad_arena_create(128, &arena), AD_OK);
  unsigned char *kept = ad_arena_take(arena, 100);
  memset(kept, 7, 100);
  size_t mark = ad_arena_mark(arena);
  for (int round = 0; round < 3; round++) {
    take_a_step(arena);
    size_t inner = ad_arena_mark(arena);
    take_a_step(arena);
    ad_arena_rewind(arena, inner);
    assert_int_equal(ad_arena_mark(arena), inner);
    ad_arena_rewind(arena, mark);
    assert_int_equal(ad_arena_mark(arena), mark);
    if (!round) ad_memory_fail_at(0);
  }
  assert_int_equal(ad_memory_fail_at(0), 0);
  for (int i = 0; i < 100; i++) assert_int_equal(kept[i], 7);
  ad_arena_destroy(arena);
}

static void every_mark_can_be_returned_to(void **state) {
  ad_arena *arena;
  assert_int_equal(ad_arena_create(64, &arena), AD_OK);
  size_t marks[PIECES];
  for (int i = 0; i < PIECES; i++) {
    marks[i] = ad_arena_mark(arena);
    assert_non_null(ad_arena_take(arena, piece_size(i)));
  }
  for (int i = PIECES; i-- > 0;) {
    ad_arena_rewind(arena, marks[i]);
    assert_int_equal(ad_arena_mark(arena), marks[i]);
    memset(ad_arena_take(arena, piece_size(i) + 1), i, piece_size(i) + 1);
    ad_arena_rewind(arena, marks[i]);
  }
  assert_int_equal(ad_arena_mark(arena), 0);
  ad_arena_destroy(arena);
}

static void without_memory_the_arena_is_unchanged(void **state) {
  ad_arena *arena = NULL;
  for (long n = 1; n <= 2; n++) {
    ad_memory_fail_at(n);
    assert_int_equal(ad_arena_create(128, &arena), AD_MEMORY);
    assert_null(arena);
  }
  ad_memory_fail_at(0);
  assert_int_equal(ad_arena_create(128, &arena), AD_OK);
  assert_non_null(ad_arena_take(arena, 64));
  size_t mark = ad_arena_mark(arena), peak = ad_arena_peak(arena);
  ad_memory_fail_at(1);
  assert_null(ad_arena_take(arena, 1000));
  assert_null(ad_arena_take_zeroed(arena, SIZE_MAX));
  assert_null(ad_arena_take(arena, SIZE_MAX - 10));
  ad_memory_fail_at(0);
  assert_int_equal(ad_arena_mark(arena), mark);
  assert_int_equal(ad_arena_peak(arena), peak);
  assert_non_null(ad_arena_take(arena, 64));
  ad_arena_destroy(arena);
}

static void a_reset_without_memory_leaves_a_working_arena(void **state) {
  ad_arena *arena;
  assert_int_equal(ad_arena_create(64, &arena), AD_OK);
  take_a_step(arena);
  ad_memory_fail_at(1);
  ad_arena_reset(arena);
  assert_int_equal(ad_memory_fail_at(0), 1);
  assert_int_equal(ad_arena_mark(arena), 0);
  ad_arena_rewind(arena, 0);
  take_a_step(arena);
  ad_arena_reset(arena);
  ad_arena_destroy(arena);
}

static void assert_hidden(const char *piece, size_t byte, int expected) {
  int hidden = is_hidden(piece, byte);
  assert_true(hidden == expected || hidden < 0);
}

/* Takes and gives back again and again, as an operation does with scratch memory: in an existing chunk, and in a new
 * chunk that a large piece opened. */
static void the_sanitizer_hides_what_is_not_taken(void **state) {
  ad_arena *arena;
  assert_int_equal(ad_arena_create(1000, &arena), AD_OK);
  const char *kept = ad_arena_take(arena, 40);
  size_t mark = ad_arena_mark(arena);
  for (int i = 0; i < 3; i++) {
    const char *here = ad_arena_take(arena, 200), *there = ad_arena_take(arena, 5000);
    assert_hidden(here, 199, 0);
    assert_hidden(here, 200, 1);
    assert_hidden(there, 4999, 0);
    assert_hidden(there, 5000, 1);
    ad_arena_rewind(arena, mark);
    for (size_t byte = 0; byte < 200; byte++) assert_hidden(here, byte, 1);
    for (size_t byte = 0; byte < 5000; byte++) assert_hidden(there, byte, 1);
    assert_hidden(kept, 39, 0);
  }
  ad_arena_destroy(arena);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(pieces_are_aligned_and_apart),
      cmocka_unit_test(zeroed_pieces_are_zero_where_others_were),
      cmocka_unit_test(the_second_step_of_a_size_allocates_nothing),
      cmocka_unit_test(the_peak_is_the_most_in_use_at_once),
      cmocka_unit_test(a_rewind_across_chunks_keeps_what_was_before),
      cmocka_unit_test(the_sanitizer_hides_what_is_not_taken),
      cmocka_unit_test(every_mark_can_be_returned_to),
      cmocka_unit_test(without_memory_the_arena_is_unchanged),
      cmocka_unit_test(a_reset_without_memory_leaves_a_working_arena),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
