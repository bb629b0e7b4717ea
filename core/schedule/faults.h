/* Faults of a table: each is a sentence, with the law of tables that is broken and the position in the table. */
#ifndef SCHEDULE_FAULTS_H
#define SCHEDULE_FAULTS_H
#include "schedule/table.h"

enum { AD_TABLE_FAULTS_MAX = 8, AD_TABLE_FAULT_TEXT = 640 };

/* Position of an action: rank and index in the rank's list; rank -1: the table does not have the action. */
typedef struct ad_table_spot {
  int32_t rank, place;
} ad_table_spot;

typedef struct ad_table_fault {
  ad_table_law law;
  int32_t rank, place;       /* -1: the fault belongs to no rank, or to no position of a list */
  ad_table_spot other;       /* position of a second action that the fault is about; rank -1: none */
  int32_t stage, microbatch; /* -1: the fault belongs to no stage, or to no microbatch */
  char text[AD_TABLE_FAULT_TEXT];
} ad_table_fault;

/* The faults of a table. The first AD_TABLE_FAULTS_MAX are kept; `count` counts all. */
typedef struct ad_table_faults {
  ad_table_fault list[AD_TABLE_FAULTS_MAX];
  size_t count;
} ad_table_faults;

/* Adds a fault of the action at `at`; the sentence begins with "rank 1, place 4 (1B0): ". Returns the fault, so that
 * the caller can set its `other`; NULL if the list is full: the fault is then only counted. */
ad_table_fault *ad_table_fault_at(ad_table_faults *faults, ad_table_law law, const ad_table *table, ad_table_spot at,
                                  const char *format, ...) AD_PRINTF(5, 6);
/* Adds a fault of an action that is missing from the table. rank, stage and microbatch are -1 if the fault belongs to
 * none. */
void ad_table_fault_of(ad_table_faults *faults, ad_table_law law, int32_t rank, int32_t stage, int32_t microbatch,
                       const char *format, ...) AD_PRINTF(6, 7);
const char *ad_table_law_name(ad_table_law law);

#endif
