/* Tests the allocator, and the test hook that makes a chosen allocation fail. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <string.h>
#include "base/memory.h"
#include "says.h"

static void new_memory_is_zero(void **state) {
  long *numbers = NULL;
  assert_int_equal(ad_new(1000, &numbers), AD_OK);
  for (int i = 0; i < 1000; i++) assert_int_equal(numbers[i], 0);
  ad_release(numbers);
  ad_release(NULL);
}

static void nothing_is_a_valid_pointer(void **state) {
  void *memory[3] = {NULL, NULL, NULL};
  assert_int_equal(ad_new_bytes(0, 8, &memory[0]), AD_OK);
  assert_int_equal(ad_new_bytes(8, 0, &memory[1]), AD_OK);
  assert_int_equal(ad_grow_bytes(&memory[2], 0, 0, 8), AD_OK);
  for (int i = 0; i < 3; i++) {
    assert_non_null(memory[i]);
    ad_release(memory[i]);
  }
}

static void too_much_is_refused_and_nothing_changes(void **state) {
  int value, *place = &value;
  assert_int_equal(ad_new_bytes(SIZE_MAX / 2, 3, (void **)&place), AD_MEMORY);
  assert_ptr_equal(place, &value);
  assert_says("9223372036854775807 elements", "3 bytes");
  int *array = NULL;
  assert_int_equal(ad_grow(&array, 0, 2), AD_OK);
  int *before = array;
  assert_int_equal(ad_grow(&array, 2, SIZE_MAX / 2), AD_MEMORY);
  assert_ptr_equal(array, before);
  ad_release(array);
}

static void growing_keeps_the_old_and_zeroes_the_new(void **state) {
  int *array = NULL;
  size_t held = 0;
  for (size_t count = 1; count < 5000; held = count, count = count * 3 + 1) {
    assert_int_equal(ad_grow(&array, held, count), AD_OK);
    for (size_t i = 0; i < held; i++) assert_int_equal(array[i], i + 1);
    for (size_t i = held; i < count; i++) {
      assert_int_equal(array[i], 0);
      array[i] = (int)i + 1;
    }
  }
  assert_int_equal(ad_grow(&array, held, 1), AD_OK);
  assert_int_equal(array[held - 1], held);
  ad_release(array);
}

static void room_is_kept_while_it_is_enough(void **state) {
  char *memory = NULL;
  size_t held = 0;
  assert_int_equal(ad_make_room(&memory, &held, 0), AD_OK);
  assert_non_null(memory);
  assert_int_equal(ad_make_room(&memory, &held, 100), AD_OK);
  assert_int_equal(held, 100);
  char *before = memory;
  memset(memory, 7, 100);
  assert_int_equal(ad_make_room(&memory, &held, 60), AD_OK);
  assert_ptr_equal(memory, before);
  assert_int_equal(held, 100);
  assert_int_equal(memory[99], 7);
  assert_int_equal(ad_make_room(&memory, &held, 5000), AD_OK);
  assert_int_equal(held, 5000);
  for (int i = 0; i < 5000; i++) assert_int_equal(memory[i], 0);
  ad_memory_fail_at(1);
  assert_int_equal(ad_make_room(&memory, &held, 6000), AD_MEMORY);
  ad_memory_fail_at(0);
  assert_null(memory);
  assert_int_equal(held, 0);
}

static void a_string_is_copied_whole(void **state) {
  char text[] = "blocks.0.attn", *copy = NULL;
  assert_int_equal(ad_copy_string(text, &copy), AD_OK);
  text[0] = 'x';
  assert_string_equal(copy, "blocks.0.attn");
  ad_release(copy);
}

static void exactly_the_chosen_allocation_fails(void **state) {
  int *first = NULL, *second = NULL, *third = NULL;
  char *copy = NULL;
  ad_memory_fail_at(2);
  assert_int_equal(ad_new(1, &first), AD_OK);
  assert_int_equal(ad_new(1, &second), AD_MEMORY);
  assert_null(second);
  assert_int_equal(ad_new(1, &third), AD_OK);
  assert_int_equal(ad_memory_fail_at(1), 3);
  int *before = first;
  assert_int_equal(ad_grow(&first, 1, 100000), AD_MEMORY);
  assert_ptr_equal(first, before);
  ad_memory_fail_at(1);
  assert_int_equal(ad_copy_string("abc", &copy), AD_MEMORY);
  assert_null(copy);
  assert_int_equal(ad_memory_fail_at(0), 1);
  assert_int_equal(ad_copy_string("abc", &copy), AD_OK);
  assert_int_equal(ad_memory_fail_at(0), 1);
  ad_release(first);
  ad_release(third);
  ad_release(copy);
}

enum { PER_THREAD = 1000, THREADS = 4 };

static void *allocate_many(void *failures) {
  for (int i = 0; i < PER_THREAD; i++) {
    int *memory = NULL;
    if (ad_new(1, &memory)) ++*(int *)failures;
    ad_release(memory);
  }
  return NULL;
}

static void one_allocation_fails_whichever_thread_makes_it(void **state) {
  pthread_t threads[THREADS];
  int failures[THREADS] = {0}, failed = 0;
  ad_memory_fail_at(PER_THREAD * THREADS / 2);
  for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, allocate_many, &failures[i]), 0);
  for (int i = 0; i < THREADS; i++) {
    pthread_join(threads[i], NULL);
    failed += failures[i];
  }
  assert_int_equal(failed, 1);
  assert_int_equal(ad_memory_fail_at(0), PER_THREAD * THREADS);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(new_memory_is_zero),
      cmocka_unit_test(nothing_is_a_valid_pointer),
      cmocka_unit_test(too_much_is_refused_and_nothing_changes),
      cmocka_unit_test(growing_keeps_the_old_and_zeroes_the_new),
      cmocka_unit_test(room_is_kept_while_it_is_enough),
      cmocka_unit_test(a_string_is_copied_whole),
      cmocka_unit_test(exactly_the_chosen_allocation_fails),
      cmocka_unit_test(one_allocation_fails_whichever_thread_makes_it),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
