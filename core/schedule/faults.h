/* What is wrong with a table: sentences, each with the law of tables that is broken, and where. */
#ifndef SCHEDULE_FAULTS_H
#define SCHEDULE_FAULTS_H
#include "schedule/table.h"

enum { AD_TABLE_FAULTS_MAX = 8, AD_TABLE_FAULT_TEXT = 640 };

/* The place of an action in a rank's list; rank -1: the table does not have the action. */
typedef struct ad_table_spot {
  int32_t rank, place;
} ad_table_spot;

typedef struct ad_table_fault {
  ad_table_law law;
  int32_t rank, place;       /* -1: the fault is on no rank, at no place of a list */
  ad_table_spot other;       /* the other action that the fault is about; rank -1: none */
  int32_t stage, microbatch; /* -1: the fault is of no stage, of no microbatch */
  char text[AD_TABLE_FAULT_TEXT];
} ad_table_fault;

/* The faults of a table: the first ones are kept, all are counted. */
typedef struct ad_table_faults {
  ad_table_fault list[AD_TABLE_FAULTS_MAX];
  size_t count;
} ad_table_faults;

/* Adds a fault of the action at `at`; the sentence begins with "rank 1, place 4 (1B0): ". Returns the fault, whose
 * `other` the caller may set; NULL: the list is full, and the fault is only counted. */
ad_table_fault *ad_table_fault_at(ad_table_faults *faults, ad_table_law law, const ad_table *table, ad_table_spot at,
                                  const char *format, ...) AD_PRINTF(5, 6);
/* Adds a fault of an action that the table lacks; rank, stage, microbatch -1: the fault is of none. */
void ad_table_fault_of(ad_table_faults *faults, ad_table_law law, int32_t rank, int32_t stage, int32_t microbatch,
                       const char *format, ...) AD_PRINTF(6, 7);
const char *ad_table_law_name(ad_table_law law);

#endif
